"""A log we compacted is a log Kafka could have compacted: its tools read it, its broker serves it and goes on."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.brokers import ApacheKafka, Broker
from compat.clients import ALL_CODECS, JavaClient, Record, Seen

DUMP = "org.apache.kafka.tools.DumpLogSegments"
COMPLAINTS = re.compile(r"corrupt|exception|isvalid: false|out of order|skipped|not found", re.IGNORECASE)
TOPIC = "compacted"
SETTLE_S = 30.0


@pytest.fixture
def nodes() -> Iterator[list[Broker]]:
    made: list[Broker] = []
    yield made
    for node in made:
        node.close()


def test_apache_kafka_reads_and_serves_what_we_compacted(
    java: JavaClient, subject: type[Broker], tmp_path: Path, nodes: list[Broker]
) -> None:
    node = subject(tmp_path, overrides={"log.cleaner.backoff.ms": "100"})
    nodes.append(node)
    node.start()
    newest = write(java, node)
    folder = node.data / f"{TOPIC}-0"
    deadline = time.monotonic() + SETTLE_S
    while sum(path.stat().st_size for path in folder.glob("*.log")) > 1_500_000:
        assert time.monotonic() < deadline, "nothing was compacted"
        time.sleep(0.2)
    before = read(java, node)
    assert len(before) < 200
    values = {record.key: record.value for record in before}
    assert {key: value for key, value in values.items() if value is not None} == {
        key: value for key, value in newest.items() if value is not None
    }
    node.stop()

    files = [path for path in sorted(folder.iterdir()) if path.suffix in (".log", ".index", ".timeindex", ".snapshot")]
    dumped = java.tool(DUMP, "--deep-iteration", "--files", ",".join(map(str, files)))
    assert not COMPLAINTS.search(dumped.text), dumped.text
    assert "deleteHorizonMs: OptionalLong[" in dumped.text

    heir = node.successor(ApacheKafka)
    nodes.append(heir)
    heir.start()
    after = read(java, heir)
    assert set(map(str, after)) <= set(map(str, before)), "Kafka may have gone on compacting, nothing else"
    assert {record.key: record.value for record in after} == values
    _, end = java.ends(heir.bootstrap, TOPIC)
    assert java.produce(heir.bootstrap, TOPIC, [Record(b"goes on", key=b"k")], idempotent=True) == [end]
    heir.stop()
    back = heir.successor(subject)
    nodes.append(back)
    back.start()
    assert read(java, back)[-1].value == b"goes on"


def write(java: JavaClient, node: Broker) -> dict[bytes, bytes | None]:
    """Ten keys over and over in every codec, some deleted, enough for several segments."""
    java.create(
        node.bootstrap,
        TOPIC,
        1,
        cleanup_policy="compact",
        segment_bytes="1048576",
        min_cleanable_dirty_ratio="0.01",
        file_delete_delay_ms="0",
    )
    newest: dict[bytes, bytes | None] = {}
    for i in range(60):
        records = []
        for n in range(10):
            key = b"key %d" % n
            newest[key] = None if (i + n) % 29 == 5 else b"%d of %d " % (i, n) * 700
            records.append(Record(newest[key], key=key))
        java.produce(node.bootstrap, TOPIC, records, codec=ALL_CODECS[i % len(ALL_CODECS)], idempotent=True)
    filler = [Record(bytes([65 + i % 26]) * 9000, key=b"filler %d" % (i % 3)) for i in range(400)]
    for start in range(0, 400, 40):
        java.produce(node.bootstrap, TOPIC, filler[start : start + 40])
    newest |= {record.key: record.value for record in filler if record.key is not None}
    return newest


def read(java: JavaClient, node: Broker) -> list[Seen]:
    """Everything a consumer finds from the beginning, up to the last record there is."""
    _, end = java.ends(node.bootstrap, TOPIC)
    records: list[Seen] = []
    offset = 0
    while offset < end:
        more = java.consume(node.bootstrap, TOPIC, offset=offset, count=1)
        if not more:
            break
        records += more
        offset = records[-1].offset + 1
    return records
