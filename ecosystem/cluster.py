"""Three nodes of either broker, with what tests do to them: make topics, write, read back, kill, restart.

Topics are made, written and read with librdkafka, so that a program written in Java is judged by a reader that shares
no code with it, nor with the broker.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat.clusters import BrokerCluster

WAIT_S = 120.0
# Coordinators on every node, and transactions whose time is over ended within a second.
SETTINGS = {
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.min.session.timeout.ms": "1000",
}


@dataclass(frozen=True)
class Read:
    """A record as a reader saw it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None

    @property
    def text(self) -> str:
        return (self.value or b"").decode()


class Cluster(BrokerCluster):
    """Three combined nodes; three copies of each partition, two of which must be in sync."""

    def __init__(self, kind: str, folder: Path, *, overrides: dict[str, str] | None = None) -> None:
        super().__init__(kind, folder, nodes=3, overrides={**SETTINGS, **(overrides or {})})
        self._admin: AdminClient | None = None

    @property
    def admin(self) -> AdminClient:
        """librdkafka's admin client, connected to all nodes."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._admin

    def create_topic(self, name: str, partitions: int = 6, **settings: str) -> str:
        """Make a topic of three copies; dots of settings are written as underscores."""
        config = {setting.replace("_", "."): value for setting, value in settings.items()}
        topic = NewTopic(name, partitions, 3, config=config)
        try:
            self.admin.create_topics([topic])[name].result(WAIT_S)
        except KafkaException as error:
            # librdkafka drops the connections of bootstrap.servers once it knows the nodes; a request that waits on one
            # of them fails with this code. The topic may have been created.
            if error.args[0].code() != KafkaError._DESTROY_BROKER:
                raise
            self._create_again(topic)
        eventually(lambda: self._has_leaders(name, partitions), f"{name} has leaders")
        return name

    def _create_again(self, topic: NewTopic) -> None:
        try:
            self.admin.create_topics([topic])[topic.topic].result(WAIT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def produce(self, topic: str, records: Iterable[tuple[str | bytes | None, str | bytes]], **settings: str) -> int:
        """Send records of (key, value) with acks=all and idempotence; gives their number once all are acknowledged."""
        failures: list[str] = []
        count = 0

        def delivered(error: object, _message: object) -> None:
            if error is not None:
                failures.append(str(error))

        config = {"bootstrap.servers": self.bootstrap, "enable.idempotence": "true", "log_level": "0", **settings}
        producer = Producer(config)
        for key, value in records:
            while True:
                try:
                    producer.produce(topic, value, key, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
            count += 1
        producer.flush(WAIT_S)
        assert not failures, failures[0]
        return count

    def read(self, topic: str, isolation: str = "read_committed") -> list[Read]:
        """Every record of a topic up to its end at the time of the call, partition by partition."""
        config = {"bootstrap.servers": self.bootstrap, "group.id": "ecosystem-reader", "enable.auto.commit": "false"}
        reader = Consumer({**config, "isolation.level": isolation, "enable.partition.eof": "true", "log_level": "0"})
        try:
            partitions = list(reader.list_topics(topic, WAIT_S).topics[topic].partitions)
            reader.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            return sorted(_read_to_ends(reader, set(partitions)), key=_position)
        finally:
            reader.close()

    def read_values(self, topic: str, isolation: str = "read_committed") -> list[str]:
        """The values of `read` as text."""
        return [record.text for record in self.read(topic, isolation)]

    def wait_for_records(self, topic: str, count: int, stall_s: float = WAIT_S) -> None:
        """Wait until so many records of a topic are committed; gives up when none has come for `stall_s`."""
        committed = -1
        deadline = 0.0
        while committed < count:
            present = self._count_committed(topic, committed)
            if present > committed:
                committed, deadline = present, time.monotonic() + stall_s
            elif time.monotonic() > deadline:
                raise AssertionError(f"{topic}: {committed} of {count} records, and no more for {stall_s:.0f} s")
            time.sleep(0.2)

    def _count_committed(self, topic: str, default: int) -> int:
        """How many records are committed; `default` while the cluster does not reply."""
        try:
            return len(self.read(topic))
        except KafkaException:
            return default

    def wait_for_progress(self, topic: str, count: int) -> None:
        """Wait until more records of a topic are committed than now, or all `count` that there will be."""
        self.wait_for_records(topic, min(len(self.read(topic)) + 1, count))

    def leader(self, topic: str, partition: int = 0) -> int:
        """The id of the node that leads a partition."""
        return int(self.admin.list_topics(topic, WAIT_S).topics[topic].partitions[partition].leader)

    def restart(self, node_id: int) -> None:
        """Kill a node with SIGKILL, start it on the same ports and data, wait until it is in sync."""
        self.node(node_id).kill9()
        self.restore()

    def restore(self) -> None:
        """Start the nodes that are down, and wait until every partition has all of its copies in sync."""
        for node in self.nodes:
            if node.process is None:
                node.start()
        eventually(self._is_in_sync, "every partition has all replicas in sync")

    def _is_in_sync(self) -> bool:
        metadata = self.admin.list_topics(timeout=WAIT_S)
        partitions = [partition for topic in metadata.topics.values() for partition in topic.partitions.values()]
        in_sync = all(len(partition.isrs) == len(partition.replicas) for partition in partitions)
        return in_sync and len(metadata.brokers) == len(self.nodes)

    def _has_leaders(self, topic: str, partitions: int) -> bool:
        described = self.admin.list_topics(topic, WAIT_S).topics[topic].partitions.values()
        return len(described) == partitions and all(partition.leader > 0 for partition in described)


def eventually(check: Callable[[], object], what: str, timeout_s: float = WAIT_S, pause_s: float = 0.2) -> None:
    """Wait until `check` gives something true; errors of a broker that is away count as not yet."""
    deadline = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            if check():
                return
            last = None
        except (KafkaException, OSError) as error:
            last = error
        time.sleep(pause_s)
    raise AssertionError(f"not within {timeout_s:.0f} s: {what}" + (f" ({last})" if last else ""))


def _read_to_ends(reader: Consumer, unread: set[int]) -> list[Read]:
    records = []
    deadline = time.monotonic() + WAIT_S
    while unread:
        message = reader.poll(1.0)
        if time.monotonic() > deadline:
            raise AssertionError(f"the ends of partitions {sorted(unread)} were not reached in {WAIT_S:.0f} s")
        if message is None:
            continue
        error = message.error()
        if error is None:
            deadline = time.monotonic() + WAIT_S
            records.append(Read(message.partition(), message.offset(), message.key(), message.value()))
        elif error.name() == "_PARTITION_EOF":
            unread.discard(message.partition())
        elif not error.retriable():
            raise KafkaException(error)
    return records


def _position(record: Read) -> tuple[int, int]:
    return record.partition, record.offset
