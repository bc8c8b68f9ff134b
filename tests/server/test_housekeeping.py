"""A node that keeps house: old segments go, compacted topics keep the newest of every key, clients notice nothing."""

import time

import pytest

from harness import KlammProcess, Wire
from harness.wire import NOW_MS, batch, rows
from klamm.model.errors import ErrorCode
from klamm.records import iter_batches

OFFSET_OUT_OF_RANGE = 1
SETTINGS = {"log.retention.check.interval.ms": "200", "log.cleaner.backoff.ms": "100"}


@pytest.fixture(scope="module")
def tidy(tmp_path_factory):
    with KlammProcess(tmp_path_factory.mktemp("tidy"), overrides=SETTINGS) as process:
        yield process


def wait_for(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_old_records_go_and_offsets_stay(tidy):
    with Wire(tidy.port) as wire:
        topic = wire.create_topic(**{"retention.ms": "1000", "file.delete.delay.ms": "0"})
        for i in range(5):
            wire.produce(topic, batch(b"%d" % i, timestamp=NOW_MS))
        wait_for(lambda: wire.list_offset(topic, -2).offset == 5)
        assert wire.end_offset(topic) == 5
        assert wire.fetch(topic, 0).error_code == OFFSET_OUT_OF_RANGE
        assert wire.produce(topic, batch(b"next", timestamp=int(time.time() * 1000))).base_offset == 5


def test_a_compacted_topic_keeps_the_newest_of_every_key_while_it_is_written(tidy):
    with Wire(tidy.port) as wire:
        topic = wire.create_topic(
            **{
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": "0.01",
                "internal.segment.bytes": "20000",
                "file.delete.delay.ms": "0",
            }
        )
        newest = {}
        for i in range(400):
            key, value = b"key%d" % (i % 10), b"%06d" % i + b"x" * 200
            newest[key] = value
            assert wire.produce(topic, batch(value, key=key)).base_offset == i
        segments = tidy.data / f"{topic}-0"
        wait_for(lambda: sum(file.stat().st_size for file in segments.glob("*.log")) < 40_000)
        records, offset = {}, 0
        while offset < 400:
            reply = wire.fetch(topic, offset)
            assert reply.error_code == 0
            for row in rows(reply.records):
                records[row.offset] = (row.key, row.value)
            offset = max([view.next_offset for view in iter_batches(reply.records)], default=400)
        assert len(records) < 200
        assert dict(records.values()) == newest
        assert wire.end_offset(topic) == 400


def test_a_record_without_key_is_refused_by_a_compacted_topic(tidy):
    with Wire(tidy.port) as wire:
        topic = wire.create_topic(**{"cleanup.policy": "compact"})
        refused = wire.produce(topic, batch(b"no key"))
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert [error.batch_index for error in refused.record_errors] == [0]
