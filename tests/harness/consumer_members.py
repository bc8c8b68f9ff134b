"""Members that speak the new group protocol, beside those of `harness.members`.

Run as a program it is one member in a process of its own, to be killed:

    python consumer_members.py BOOTSTRAP GROUP TOPIC
"""

import sys
import time
from typing import Any

from harness.members import Member


class ConsumerProtocolMember(Member):
    """librdkafka with `group.protocol=consumer`; a topic that begins with ^ is a pattern the broker resolves."""

    kind = "confluent-kafka-consumer-protocol"
    strategies = ("uniform", "range")

    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str = "uniform", **how: Any) -> None:
        self.places: set[tuple[str, int]] = set()
        self.errors: list[Any] = []
        super().__init__(bootstrap, group, topic, strategy, **how)

    def _run(self) -> None:
        from confluent_kafka import Consumer, KafkaException

        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "group.protocol": "consumer",
            "group.remote.assignor": self.strategy,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 500,
            "reconnect.backoff.max.ms": 200,
            "log_level": 2,
        }
        if self.instance_id is not None:
            settings["group.instance.id"] = self.instance_id
        consumer = Consumer(settings)

        def assigned(_: Any, partitions: Any) -> None:
            self.owned |= {p.partition for p in partitions}
            self.places |= {(p.topic, p.partition) for p in partitions}

        def revoked(_: Any, partitions: Any) -> None:
            self.owned -= {p.partition for p in partitions}
            self.places -= {(p.topic, p.partition) for p in partitions}
            self.revoked += [p.partition for p in partitions]

        consumer.subscribe([self.topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        try:
            while not self._stop.is_set():
                message = consumer.poll(0.1)
                if message is None:
                    continue
                if message.error() is not None:
                    self.errors.append(message.error())
                    continue
                self.seen.append((message.partition(), message.offset()))
                try:
                    consumer.commit(message=message, asynchronous=False)
                except KafkaException:
                    continue  # the partition is being revoked: its new owner reads the record again
        finally:
            consumer.close()
            self.owned.clear()
            self.places.clear()


def main() -> None:
    bootstrap, group, topic = sys.argv[1:4]
    member = ConsumerProtocolMember(bootstrap, group, topic)
    printed: set[int] = set()
    while member.failure is None:
        if member.owned != printed:
            printed = set(member.owned)
            print(len(printed), flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
