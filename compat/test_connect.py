"""Kafka Connect and MirrorMaker 2 against one node: a short run of what `make ecosystem` does on three, with kills."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.brokers import Broker
from ecosystem.cluster import eventually
from ecosystem.connect_workers import append_lines, sink_config, source_config, workers
from ecosystem.mirrors import mirror_properties, start_mirror
from klamm.client import Admin, Producer, UnknownTopicOrPartitionError, read_topic

Rows = list[tuple[int, bytes | None, bytes | None]]


def read(bootstrap: str, topic: str) -> Rows:
    """All committed records of a topic; none of one that does not exist yet."""
    try:
        records = read_topic(topic, bootstrap=bootstrap, timeout_s=60)
    except UnknownTopicOrPartitionError:
        return []
    rows = records.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    return [(row["partition"], row["key"], row["value"]) for row in rows]


def wait_for_records(bootstrap: str, topic: str, count: int) -> None:
    def has_all() -> bool:
        return len(read(bootstrap, topic)) >= count

    eventually(has_all, f"{topic} has {count} records")


def test_a_file_source_and_a_file_sink(broker: Broker, topic: str, tmp_path: Path) -> None:
    """Every line of the file is committed to the topic once, in order, and arrives in the other file; the worker is
    killed with SIGKILL between."""
    with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
        admin.create_topic(topic, 1)
    source, sink = tmp_path / "in.txt", tmp_path / "out.txt"
    lines = append_lines(source, 0, 1000)
    with workers(broker.bootstrap, f"{topic}-connect", tmp_path, 1, replication=1) as (worker,):
        worker.create("source", source_config(source, topic))
        worker.create("sink", sink_config(sink, topic))
        wait_for_records(broker.bootstrap, topic, len(lines))
        worker.process.kill9()
        lines += append_lines(source, len(lines), len(lines) + 500)
        worker.start()
        wait_for_records(broker.bootstrap, topic, len(lines))
        assert [value for _, _, value in read(broker.bootstrap, topic)] == [line.encode() for line in lines]
        # A sink delivers at least once: every line, some of them again.
        eventually(lambda: set(sink.read_text().split()) >= set(lines), "every line is in the other file")


@pytest.fixture
def other_broker(subject: type[Broker], tmp_path: Path) -> Iterator[Broker]:
    node = subject(tmp_path / "other")
    try:
        yield node.start()
    finally:
        node.close()


def test_mirror_maker_both_ways(broker: Broker, other_broker: Broker, topic: str, tmp_path: Path) -> None:
    """The topic of each of two nodes is mirrored to the other, with its partitions and its order, each record once."""
    homes = {"here": broker.bootstrap, "there": other_broker.bootstrap}
    for name, bootstrap in homes.items():
        with Admin({"bootstrap.servers": bootstrap}) as admin:
            admin.create_topic(topic, 3)
        with Producer({"bootstrap.servers": bootstrap}) as producer:
            for number in range(1000):
                producer.send(topic, f"{name}-{number}".encode(), key=f"{name}-{number % 50}".encode())
    (tmp_path / "mirror").mkdir()
    properties = mirror_properties(*homes.values(), topic, replication=1)
    with start_mirror(tmp_path / "mirror", properties) as mirror:
        for name, target in (("here", homes["there"]), ("there", homes["here"])):
            rows = read(homes[name], topic)
            assert len(rows) == 1000
            wait_for_records(target, f"{name}.{topic}", 1000)
            assert read(target, f"{name}.{topic}") == rows
        assert mirror.is_running, mirror.tail()
