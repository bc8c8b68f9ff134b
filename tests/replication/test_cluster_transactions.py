"""Transactions and groups over three real processes: coordinators, partitions and offsets live on different nodes.

Breaks when markers are not sent to the leaders elsewhere, when a coordinator that moved forgets what it decided, or
when a reader of committed records sees half a transaction.
"""

import contextlib
import threading
import time
from collections import Counter

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from harness import Wire
from harness.client_stories import until
from harness.cluster import KlammCluster

pytestmark = pytest.mark.timeout(400)

PATIENCE_S = 90.0
QUIET = {"log_level": 0, "topic.metadata.refresh.interval.ms": 500}


@pytest.fixture
def cluster(tmp_path):
    with KlammCluster(tmp_path, 3) as made:
        admin = AdminClient({"bootstrap.servers": made.bootstrap, **QUIET})
        topics = [NewTopic("source", 3, 3), NewTopic("sink", 6, 3)]
        for future in admin.create_topics(topics).values():
            future.result(PATIENCE_S)
        yield made


def transactional(bootstrap: str, name: str) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0, **QUIET})


def committed(bootstrap: str, topic: str, partitions: int) -> list[bytes]:
    """Everything a reader of committed records sees, to the ends as they are now."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "judge", "isolation.level": "read_committed",
         "enable.auto.commit": False, "auto.offset.reset": "earliest", "enable.partition.eof": True, **QUIET}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    seen, ends = [], set()
    deadline = time.monotonic() + PATIENCE_S
    while len(ends) < partitions:
        assert time.monotonic() < deadline
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            if message.error().name() == "_PARTITION_EOF":
                ends.add(message.partition())
            continue
        ends.discard(message.partition())
        seen.append(message.value())
    consumer.close()
    return seen


def test_a_transaction_over_partitions_of_every_node_is_whole(cluster):
    producer = transactional(cluster.bootstrap, "whole")
    producer.init_transactions(PATIENCE_S)
    for number in range(20):
        producer.begin_transaction()
        for partition in range(6):
            producer.produce("sink", b"%d-%d" % (number, partition), partition=partition)
        if number % 4 == 3:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    expected = {b"%d-%d" % (number, partition) for number in range(20) if number % 4 != 3 for partition in range(6)}

    def read() -> list[bytes] | None:
        """What is committed, once all of it can be read: the last markers follow the answer to the producer."""
        values = committed(cluster.bootstrap, "sink", 6)
        return values if len(values) >= len(expected) else None

    assert Counter(until(read, "every committed record can be read")) == Counter(expected)


def coordinator(cluster: KlammCluster, name: str, *, transaction: bool = False, ask: int = 1) -> int:
    """The node that coordinates the group or the transaction, according to node `ask`."""
    with Wire(cluster.node(ask).port) as wire:
        for _ in range(2000):
            reply = wire.call("find_coordinator", 4, coordinator_keys=[name], key_type=int(transaction))
            if reply.coordinators[0].error_code == 0:
                return int(reply.coordinators[0].node_id)
    raise AssertionError(reply)


def test_a_producer_finds_the_next_coordinator_of_a_group(cluster):
    """librdkafka remembers the dead one in a table of its own, and waits for it when Metadata left it out at once."""
    deciding = coordinator(cluster, "steady", transaction=True)
    group = next(name for name in map("g-{}".format, range(100)) if coordinator(cluster, name) != deciding)
    producer = transactional(cluster.bootstrap, "steady")
    producer.init_transactions(PATIENCE_S)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, **QUIET})
    members = consumer.consumer_group_metadata()

    def commit(offset: int, patience_s: float) -> None:
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition("source", 0, offset)], members, patience_s)
        producer.commit_transaction(patience_s)

    commit(1, PATIENCE_S)
    victim = coordinator(cluster, group)
    cluster.node(victim).kill9()
    survivor = next(node for node in (1, 2, 3) if node != victim)
    deadline = time.monotonic() + PATIENCE_S
    while coordinator(cluster, group, ask=survivor) == victim:
        assert time.monotonic() < deadline
    producer.list_topics(timeout=PATIENCE_S)  # now the producer knows who is left
    commit(2, 30.0)  # a transaction lasts 60
    assert consumer.committed([TopicPartition("source", 0)], PATIENCE_S)[0].offset == 2
    consumer.close()


class Copier(threading.Thread):
    """Consumes, transforms and produces exactly once; a broken transaction is aborted and done again."""

    def __init__(self, bootstrap: str, total: int) -> None:
        super().__init__(daemon=True)
        self._servers = bootstrap
        self._total = total
        self.error: BaseException | None = None
        self.done = 0

    def wait_for(self, more: int) -> None:
        """Return once so many more are copied, or all of them."""
        wanted = min(self.done + more, self._total)
        deadline = time.monotonic() + PATIENCE_S
        while self.done < wanted and self.is_alive():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def run(self) -> None:
        try:
            self._copy()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def _copy(self) -> None:
        while self.done < self._total:
            producer = transactional(self._servers, "copier")
            consumer = Consumer(
                {"bootstrap.servers": self._servers, "group.id": "copiers", "isolation.level": "read_committed",
                 "enable.auto.commit": False, "auto.offset.reset": "earliest", **QUIET}
            )  # fmt: skip
            try:
                producer.init_transactions(PATIENCE_S)
                parts = [TopicPartition("source", index) for index in range(3)]
                positions = consumer.committed(parts, PATIENCE_S)
                self.done = sum(max(part.offset, 0) for part in positions)
                consumer.assign([TopicPartition("source", p.partition, max(p.offset, 0)) for p in positions])
                while self.done < self._total:
                    batch = consumer.consume(50, 1.0)
                    batch = [message for message in batch if message.error() is None]
                    if not batch:
                        continue
                    producer.begin_transaction()
                    for message in batch:
                        producer.produce("sink", message.value(), partition=int(message.value()) % 6)
                    producer.send_offsets_to_transaction(
                        consumer.position(parts), consumer.consumer_group_metadata(), PATIENCE_S
                    )
                    producer.commit_transaction(PATIENCE_S)
                    self.done += len(batch)
            except KafkaException as problem:
                if problem.args[0].txn_requires_abort():
                    with contextlib.suppress(KafkaException):  # the next one with this id ends what is left open
                        producer.abort_transaction(PATIENCE_S)
            finally:
                consumer.close()


def test_nodes_die_under_an_exactly_once_copier(cluster):
    total = 3000
    source = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, **QUIET})
    for number in range(total):
        source.produce("source", b"%d" % number, partition=number % 3)
    assert source.flush(PATIENCE_S) == 0
    copier = Copier(cluster.bootstrap, total)
    copier.start()
    for victim in (1, 2, 3):
        copier.wait_for(300)
        cluster.node(victim).kill9()
        copier.wait_for(300)
        cluster.start([victim])
    copier.join(PATIENCE_S)
    assert not copier.is_alive()
    assert copier.error is None
    seen = Counter(committed(cluster.bootstrap, "sink", 6))
    assert seen == Counter({b"%d" % number: 1 for number in range(total)})
