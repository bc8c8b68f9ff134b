"""A disk that is really full, under a real process, as seen by a third-party client.

What is refused is not there, what was acknowledged is and stays, and room again is all it takes to go on.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from harness.small_disk import MB, KlammOnDisk, SmallDisk

PATIENCE_S = 60.0
QUIET = {"log_level": 0, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100}
"""Brokers are killed here: librdkafka need not tell, nor wait long."""

# A group has been here before, and checkpoints are written all the time, also while there is no room for them.
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "log.segment.bytes": str(MB),
    "log.flush.offset.checkpoint.interval.ms": "200",
    "replica.high.watermark.checkpoint.interval.ms": "200",
}
Place = tuple[str, int]


@pytest.fixture
def disk(tmp_path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "small", 8) as made:
        yield made


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what


class Writer:
    """One producer that tries once; remembers what it was promised."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: dict[Place, list[tuple[int, bytes]]] = {}
        self._count = 0
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "retries": 0, "linger.ms": 0, "message.timeout.ms": 60_000, **QUIET}
        )

    def send(self, where: Place, size: int) -> str:
        """Write one record of that size; the name of the error, empty when there is none."""
        outcome: list[str] = []
        value = b"%08d" % self._count + os.urandom(size - 8)
        self._count += 1

        def on_delivery_report(error: KafkaError | None, message: Message) -> None:
            outcome.append("" if error is None else error.name())
            if error is None:
                self.acknowledged.setdefault(where, []).append((message.offset(), value))

        self._producer.produce(where[0], value, partition=where[1], on_delivery=on_delivery_report)
        assert self._producer.flush(PATIENCE_S) == 0, "neither stored nor refused"
        return outcome[0]

    def fill(self, places: Sequence[Place], size: int) -> None:
        """Write to these in turn until the broker refuses all of them."""
        while not all(outcomes := [self.send(where, size) for where in places]):
            pass
        assert set(outcomes) == {"KAFKA_STORAGE_ERROR"}

    def all_there(self, consumer: Consumer) -> bool:
        """Whether all that was promised can be read, and nothing else."""
        return all(read(consumer, where) == promised for where, promised in self.acknowledged.items())


def new_consumer(bootstrap: str) -> Consumer:
    settings = {"bootstrap.servers": bootstrap, "group.id": "readers", "enable.auto.commit": False, **QUIET}
    return Consumer({**settings, "enable.partition.eof": True, "auto.offset.reset": "error", "fetch.wait.max.ms": 50})


def read(consumer: Consumer, where: Place) -> list[tuple[int, bytes]]:
    """All records of a partition up to its end."""
    consumer.assign([TopicPartition(*where, 0)])
    records: list[tuple[int, bytes]] = []
    while True:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"{len(records)} records and no end of {where}"
        error = message.error()
        if error is None:
            records.append((message.offset(), message.value()))
        elif error.code() == KafkaError._PARTITION_EOF:
            return records
        else:
            raise AssertionError(str(error))


def create(bootstrap: str, name: str, partitions: int = 1, **config: str) -> None:
    topic = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([topic])[name].result(PATIENCE_S)


def test_a_full_disk_refuses_loses_nothing_and_goes_on_with_room(tmp_path, disk):
    """Everything the node has lies on the one disk, its metadata too; one topic is synced record by record."""
    places = [("plain", 0), ("flushed", 0)]
    with KlammOnDisk(tmp_path / "node", disk, overrides=SETTINGS) as node:
        create(node.bootstrap, "plain")
        create(node.bootstrap, "flushed", flush_messages="1")
        writer, consumer = Writer(node.bootstrap), new_consumer(node.bootstrap)
        assert [writer.send(where, 50_000) for where in places] == [""] * 2
        consumer.commit(offsets=[TopicPartition(*places[0], 0)], asynchronous=False)
        disk.fill(leaving=3 * MB)
        writer.fill(places, 50_000)
        disk.fill()
        assert disk.free_bytes == 0
        for size in (5000, 50_000, 500_000):
            assert [writer.send(where, size) for where in places] == ["KAFKA_STORAGE_ERROR"] * 2
        for where in places:
            count = len(writer.acknowledged[where])
            assert count > 10
            assert consumer.get_watermark_offsets(TopicPartition(*where), PATIENCE_S) == (0, count)
        assert writer.all_there(consumer)
        until(lambda: "checkpoint write failed" in node.log(), "a checkpoint finds no room")
        disk.make_room()
        for where in places:
            assert [writer.send(where, 50_000) for _ in range(20)] == [""] * 20
        assert writer.all_there(consumer)
        consumer.close()
        crash(node, writer)
        for where in places:
            until(lambda where=where: not writer.send(where, 50_000), "it takes records")
        node.stop()


def crash(node, writer):
    """Killed and started again, the node has everything it acknowledged."""
    node.kill9()
    node.start()
    again = new_consumer(node.bootstrap)
    until(lambda: writer.all_there(again), "what was acknowledged is there after a crash")
    again.close()


def test_one_full_log_dir_of_two(tmp_path, disk):
    """Partitions of the other go on; those that could not even be created come when there is room."""
    other = tmp_path / "large"
    overrides = {**SETTINGS, "metadata.log.dir": str(tmp_path / "metadata")}
    with KlammOnDisk(tmp_path / "node", disk, other, overrides=overrides) as node:
        create(node.bootstrap, "t", 2)
        writer, consumer = Writer(node.bootstrap), new_consumer(node.bootstrap)
        small, large = sorted((("t", 0), ("t", 1)), key=lambda where: (other / f"t-{where[1]}").exists())
        assert (disk.outside / f"t-{small[1]}").exists()
        consumer.commit(offsets=[TopicPartition(*small, 0)], asynchronous=False)
        disk.fill(leaving=MB)
        writer.fill([small], 50_000)
        disk.fill()
        assert [writer.send(where, 50_000) for where in (small, large)] == ["KAFKA_STORAGE_ERROR", ""]
        create(node.bootstrap, "late", 4)
        until(lambda: "replica offline" in node.log(), "there is no room for a folder")
        late = {("late", number) for number in range(4)}
        served = {where for where in late if (other / f"late-{where[1]}").exists()}
        assert served
        assert served < late
        for where in sorted(served):
            until(lambda where=where: not writer.send(where, 50_000), "the other disk serves what is new")
        assert {writer.send(where, 50_000) for where in late - served} == {"KAFKA_STORAGE_ERROR"}
        assert writer.all_there(consumer)
        disk.make_room()
        for where in sorted(late - served):
            until(lambda where=where: not writer.send(where, 50_000), "there is room: the partition is made")
        assert [writer.send(where, 50_000) for where in (small, large)] == ["", ""]
        consumer.close()
        crash(node, writer)
        node.stop()


def test_metadata_that_finds_no_room_stops_the_node_which_says_so(tmp_path, disk):
    """A controller that cannot write down what it decided must not go on; with room, it starts where it was."""
    with KlammOnDisk(tmp_path / "node", disk, overrides=SETTINGS) as node:
        create(node.bootstrap, "t")
        writer = Writer(node.bootstrap)
        assert writer.send(("t", 0), 50_000) == ""
        disk.fill()
        admin = AdminClient({"bootstrap.servers": node.bootstrap, **QUIET})
        admin.create_topics([NewTopic("many", 200, 1)])
        assert node.process.wait(PATIENCE_S) == 1
        assert "the node stops" in node.log()
        assert "no space left" in node.log().lower()
        node.kill9()
        disk.make_room()
        node.start()
        again = new_consumer(node.bootstrap)
        until(lambda: writer.all_there(again), "what was acknowledged is there")
        again.close()
        create(node.bootstrap, "many", 3)
        until(lambda: not writer.send(("many", 2), 1000), "it takes records")
        node.stop()
