"""Three real processes and an unmodified client: what was acknowledged is there once, in order, whatever is killed.

Breaks when acks=all is answered before the in-sync replicas have the records, when a follower truncates by anything but
epochs, when a new leader forgets the sequences of producers, or when a replica that came back is let in too early.
"""

import itertools
import threading
import time
from collections import defaultdict

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from harness.cluster import KlammCluster

pytestmark = pytest.mark.timeout(400)

PATIENCE_S = 90.0
QUEUED_MAX = 500
QUIET = {"log_level": 0, "topic.metadata.refresh.interval.ms": 500}


class Load(threading.Thread):
    """One idempotent producer that numbers what it sends to each partition, and notes what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 1, **QUIET}
        )
        self._topic = topic
        self._partitions = partitions
        self._enough = threading.Event()
        self.acked: dict[int, list[int]] = defaultdict(list)
        self.failed: list[str] = []
        self.sent: dict[int, int] = defaultdict(int)

    @property
    def count(self) -> int:
        return sum(map(len, self.acked.values()))

    def run(self) -> None:
        for partition in itertools.cycle(range(self._partitions)):
            if self._enough.is_set():
                break
            number = self.sent[partition]
            self.sent[partition] += 1
            self._producer.produce(
                self._topic, b"%d" % number, partition=partition, on_delivery=self._note(partition, number)
            )
            self._producer.poll(0)
            while len(self._producer) > QUEUED_MAX and not self._enough.is_set():
                self._producer.poll(0.05)

    def _note(self, partition: int, number: int):
        def note(error, _message):
            if error is None:
                self.acked[partition].append(number)
            else:
                self.failed.append(str(error))

        return note

    def wait_for(self, more: int) -> None:
        """Return once so many more are acknowledged."""
        wanted = self.count + more
        deadline = time.monotonic() + PATIENCE_S
        while self.count < wanted:
            assert time.monotonic() < deadline, f"{self.count} of {wanted} acknowledged; {self.failed[:3]}"
            time.sleep(0.02)

    def finish(self) -> None:
        self._enough.set()
        self.join(PATIENCE_S)
        assert self._producer.flush(PATIENCE_S) == 0
        assert not self.failed


def create(bootstrap: str, topic: str, partitions: int, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    for future in admin.create_topics([NewTopic(topic, partitions, 3, config=config)]).values():
        future.result(PATIENCE_S)


def leaders(bootstrap: str, topic: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    partitions = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    return {partition.id: partition.leader for partition in partitions.values()}


def wait_until_in_sync(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    deadline = time.monotonic() + PATIENCE_S
    while True:
        partitions = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions.values()
        if all(len(partition.isrs) == 3 and partition.leader >= 0 for partition in partitions):
            return
        assert time.monotonic() < deadline, [
            (partition.id, partition.leader, partition.isrs) for partition in partitions
        ]
        time.sleep(0.1)


def read_all(bootstrap: str, topic: str, partitions: int) -> dict[int, list[int]]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False,
         "auto.offset.reset": "earliest", "enable.partition.eof": True, **QUIET}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    consumed: dict[int, list[int]] = defaultdict(list)
    open_ends = set(range(partitions))
    deadline = time.monotonic() + PATIENCE_S
    while open_ends:
        assert time.monotonic() < deadline
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            if message.error().name() == "_PARTITION_EOF":
                open_ends.discard(message.partition())
            continue
        open_ends.add(message.partition()) if message.partition() not in open_ends else None
        consumed[message.partition()].append(int(message.value()))
    consumer.close()
    return consumed


def check(load: Load, consumed: dict[int, list[int]]) -> None:
    for partition, acked in load.acked.items():
        assert consumed[partition] == sorted(set(consumed[partition])), (
            f"partition {partition} repeats or is out of order"
        )
        assert set(acked) <= set(consumed[partition]), f"partition {partition} lost what was acknowledged"


@pytest.fixture
def cluster(tmp_path):
    with KlammCluster(tmp_path, 3) as made:
        yield made


def test_leaders_die_under_load_and_nothing_is_lost(cluster):
    """Every node in turn is killed while it leads, comes back and is in sync again before the next one goes."""
    create(cluster.bootstrap, "load", 3, **{"min.insync.replicas": "2"})
    load = Load(cluster.bootstrap, "load", 3)
    load.start()
    load.wait_for(300)
    for victim in (1, 2, 3):
        cluster.node(victim).kill9()
        load.wait_for(300)
        cluster.start([victim])
        wait_until_in_sync(cluster.bootstrap, "load")
        load.wait_for(300)
    load.finish()
    check(load, read_all(cluster.bootstrap, "load", 3))


def test_all_die_at_once_and_what_was_acknowledged_is_there(cluster):
    """The page cache outlives a killed process, so nothing may be missing when all three come back."""
    create(cluster.bootstrap, "all", 3)
    load = Load(cluster.bootstrap, "all", 3)
    load.start()
    load.wait_for(500)
    for node in cluster.nodes:
        node.kill9()
    cluster.start()
    load.wait_for(500)
    load.finish()
    wait_until_in_sync(cluster.bootstrap, "all")
    check(load, read_all(cluster.bootstrap, "all", 3))


def test_a_clean_restart_of_every_node_is_not_noticed(cluster):
    create(cluster.bootstrap, "rolling", 3)
    load = Load(cluster.bootstrap, "rolling", 3)
    load.start()
    load.wait_for(300)
    for victim in (1, 2, 3):
        cluster.node(victim).stop()
        load.wait_for(200)
        cluster.start([victim])
        wait_until_in_sync(cluster.bootstrap, "rolling")
    load.finish()
    check(load, read_all(cluster.bootstrap, "rolling", 3))
