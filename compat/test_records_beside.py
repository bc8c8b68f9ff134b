"""Batches whose checksum agrees and whose records are none: Apache Kafka and Klamm refuse the same ones.

Kafka calls most of them INVALID_RECORD. Where its codec fails it says UNKNOWN_SERVER_ERROR, and some it stores, because
it does not look at every field of every record; Klamm says INVALID_RECORD to all of them.
"""

from collections.abc import Iterator

import pytest

from compat.brokers import KINDS, Broker
from harness import broken_batches
from harness.wire import Wire, batch

INVALID_RECORD, UNKNOWN_SERVER_ERROR = 87, -1
MOVED = (3, 5, 6)
"""Kafka answers CreateTopics before the new partition is led."""

STORED_BY_KAFKA = {
    *(name for name in broken_batches.SECTIONS if "offset delta" in name),
    "a record larger than the batch",
    "a record smaller than its fields",
    "a record of negative size",
}
"""Kafka assigns the offsets of uncompressed records itself, and ignores the sizes of compressed ones."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Broker]]:
    brokers = {kind: KINDS[kind](tmp_path_factory.mktemp(kind)) for kind in ("kafka", "klamm")}
    try:
        yield {kind: broker.start() for kind, broker in brokers.items()}
    finally:
        for broker in brokers.values():
            broker.close()


def answers(broker: Broker, batches: list[bytes], **settings: str) -> list[int]:
    """The error each batch gets in a topic of its own."""
    with Wire(broker.port) as wire:
        topic = wire.create_topic(**settings)
        while wire.produce(topic, batch(b"first", key=b"k")).error_code in MOVED:
            pass
        return [int(wire.produce(topic, records).error_code) for records in batches]


@pytest.mark.parametrize("settings", [{}, {"cleanup_policy": "compact"}], ids=str)
def test_broken_records_are_refused_by_both(both: dict[str, Broker], settings: dict[str, str]) -> None:
    cases = list(broken_batches.broken_sections())
    replies = {kind: answers(broker, [records for _, records in cases], **settings) for kind, broker in both.items()}
    for (name, _), kafka, klamm in zip(cases, replies["kafka"], replies["klamm"], strict=True):
        assert klamm == INVALID_RECORD, name
        stored = name.rsplit(", ", 1)[0] in STORED_BY_KAFKA
        assert kafka in (
            (INVALID_RECORD, UNKNOWN_SERVER_ERROR, 0) if stored else (INVALID_RECORD, UNKNOWN_SERVER_ERROR)
        ), name


def test_data_of_no_codec_are_refused_by_both(both: dict[str, Broker]) -> None:
    cases = list(broken_batches.broken_codecs())
    replies = {kind: answers(broker, [records for _, records in cases]) for kind, broker in both.items()}
    assert replies["klamm"] == [INVALID_RECORD] * len(cases)
    assert set(replies["kafka"]) <= {INVALID_RECORD, UNKNOWN_SERVER_ERROR}


@pytest.mark.parametrize("codec", ["none", *broken_batches.CODECS])
def test_a_largest_timestamp_that_no_record_has_is_put_right_by_both(both: dict[str, Broker], codec: str) -> None:
    records = broken_batches.seal(broken_batches.TWO, 2, codec, max_timestamp=broken_batches.NOW_MS + 5000)
    replies = {}
    for kind, broker in both.items():
        with Wire(broker.port) as wire:
            topic = wire.create_topic()
            while wire.produce(topic, batch(b"first")).error_code in MOVED:
                pass
            assert wire.produce(topic, records).error_code == 0
            replies[kind] = [
                wire.list_offset(topic, timestamp).offset
                for timestamp in (broken_batches.NOW_MS, broken_batches.NOW_MS + 1, -3)
            ]
    assert replies["kafka"] == replies["klamm"] == [0, -1, 0]
