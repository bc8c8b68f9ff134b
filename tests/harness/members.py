"""Members of consumer groups, each in a thread of its own, that read, commit what they read, and report their state.

Run as a program it is one member in a process of its own, to be killed:

    python members.py KIND BOOTSTRAP GROUP TOPIC STRATEGY
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

SESSION_MS = 6000


class Member:
    """One consumer: `seen` is what it read, `owned` what it has now, `revoked` every partition ever taken from it."""

    kind: str
    strategies: tuple[str, ...]

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        strategy: str = "range",
        *,
        instance_id: str | None = None,
        session_ms: int = SESSION_MS,
    ) -> None:
        self.bootstrap = bootstrap
        self.group = group
        self.topic = topic
        self.strategy = strategy
        self.instance_id = instance_id
        self.session_ms = session_ms
        self.seen: list[tuple[int, int]] = []
        self.owned: set[int] = set()
        self.revoked: list[int] = []
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guard, daemon=True, name=f"{self.kind} {group}")
        self._thread.start()

    def _guard(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - raised by `stop`
            self.failure = error

    def _run(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Leave the group (a static member keeps its place) and raise its error."""
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), f"{self.kind} does not stop"
        if self.failure is not None:
            raise self.failure


class ConfluentMember(Member):
    kind = "confluent-kafka"
    strategies = ("range", "roundrobin", "cooperative-sticky")

    def _run(self) -> None:
        from confluent_kafka import Consumer, KafkaException

        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": self.strategy,
            "session.timeout.ms": self.session_ms,
            "heartbeat.interval.ms": 300,
            "topic.metadata.refresh.interval.ms": 500,
            "reconnect.backoff.max.ms": 200,
            "log_level": 2,
        }
        if self.instance_id is not None:
            settings["group.instance.id"] = self.instance_id
        consumer = Consumer(settings)

        def assigned(_: Any, partitions: Any) -> None:
            self.owned |= {p.partition for p in partitions}

        def revoked(_: Any, partitions: Any) -> None:
            self.owned -= {p.partition for p in partitions}
            self.revoked += [p.partition for p in partitions]

        consumer.subscribe([self.topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        try:
            while not self._stop.is_set():
                message = consumer.poll(0.1)
                if message is None or message.error() is not None:
                    continue
                self.seen.append((message.partition(), message.offset()))
                try:
                    consumer.commit(message=message, asynchronous=False)
                except KafkaException:
                    continue  # a rebalance revoked the partition: its new owner reads the record again
        finally:
            consumer.close()
            self.owned.clear()


class KafkaPythonMember(Member):
    kind = "kafka-python"
    strategies = ("range", "roundrobin")

    def _run(self) -> None:
        from kafka import ConsumerRebalanceListener, KafkaConsumer
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from kafka.errors import KafkaError

        member = self

        class Listener(ConsumerRebalanceListener):
            def on_partitions_assigned(self, assigned: Any) -> None:
                member.owned = {p.partition for p in assigned}

            def on_partitions_revoked(self, revoked: Any) -> None:
                member.owned -= {p.partition for p in revoked}
                member.revoked += [p.partition for p in revoked]

        assignor = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}[self.strategy]
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=[assignor],
            session_timeout_ms=self.session_ms,
            heartbeat_interval_ms=300,
            metadata_max_age_ms=500,
            **({"group_instance_id": self.instance_id} if self.instance_id else {}),
        )
        consumer.subscribe([self.topic], listener=Listener())
        try:
            while not self._stop.is_set():
                # Much longer than a rebalance takes: this client drops a join when its poll times out.
                for partition, records in consumer.poll(timeout_ms=1500).items():
                    self.seen += [(partition.partition, record.offset) for record in records]
                try:
                    if self.owned:
                        consumer.commit()
                except KafkaError:
                    continue
        finally:
            consumer.close()
            self.owned.clear()


class AioMember(Member):
    kind = "aiokafka"
    strategies = ("range", "roundrobin")

    def _run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from aiokafka.errors import KafkaError

        member = self

        class Listener(ConsumerRebalanceListener):
            async def on_partitions_assigned(self, assigned: Any) -> None:
                member.owned = {p.partition for p in assigned}

            async def on_partitions_revoked(self, revoked: Any) -> None:
                member.owned -= {p.partition for p in revoked}
                member.revoked += [p.partition for p in revoked]

        assignor = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}[self.strategy]
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=(assignor,),
            session_timeout_ms=self.session_ms,
            heartbeat_interval_ms=300,
            metadata_max_age_ms=500,
            **({"group_instance_id": self.instance_id} if self.instance_id else {}),
        )
        consumer.subscribe([self.topic], listener=Listener())
        await consumer.start()
        try:
            while not self._stop.is_set():
                batches = await consumer.getmany(timeout_ms=100)
                for partition, records in batches.items():
                    self.seen += [(partition.partition, record.offset) for record in records]
                if batches:
                    try:
                        await consumer.commit()
                    except KafkaError:
                        continue
        finally:
            await consumer.stop()
            self.owned.clear()


KINDS: dict[str, type[Member]] = {kind.kind: kind for kind in (ConfluentMember, KafkaPythonMember, AioMember)}


def wait_until(condition: Callable[[], bool], seconds: float = 50.0, what: str = "it did not happen") -> None:
    """Look every few milliseconds until `condition` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def settled(members: list[Member], partitions: int) -> bool:
    """Whether every partition has one owner among the members, and none has more than one above another.

    On the way there, a member may have some partitions while another still has to revoke the rest.
    """
    shares = [list(member.owned) for member in members]
    sizes = [len(share) for share in shares]
    owned = sorted(partition for share in shares for partition in share)
    return owned == list(range(partitions)) and max(sizes) - min(sizes) <= 1


def main() -> None:
    kind, bootstrap, group, topic, strategy = sys.argv[1:6]
    member = KINDS[kind](bootstrap, group, topic, strategy, session_ms=int(sys.argv[6]))
    printed: set[int] = set()
    while member.failure is None:
        if member.owned != printed:
            printed = set(member.owned)
            print(len(printed), flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
