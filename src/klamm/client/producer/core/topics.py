"""Where records of a topic go: the queues of its partitions, and which of them is next without a key. Pure."""

from __future__ import annotations

from collections.abc import Callable

from klamm.client.config import ClientSettings
from klamm.client.core.metadata import ClusterTable
from klamm.client.producer.core.accumulator import Accumulator, PartitionQueue
from klamm.client.producer.core.partitioners import Chance, Sticky
from klamm.model.ids import TopicPartition


class Topic:
    """What is needed to place a record of a topic."""

    __slots__ = ("led", "queues", "seen", "sticky")

    def __init__(self, queues: list[PartitionQueue], sticky: Sticky) -> None:
        self.queues = queues
        self.sticky = sticky
        self.led: list[bool] = []
        """Which partitions had a leader in the version of the table that was `seen`."""
        self.seen = -1


class ProducerTopics:
    """The topics that were written to; `follow` says whom to ask about leaders and the time."""

    def __init__(self, accumulator: Accumulator, settings: ClientSettings, chance: Chance) -> None:
        self.known: dict[str, Topic] = {}
        self._accumulator = accumulator
        self._chance = chance
        self._batch_size = settings.number("batch.size")
        self._adaptive: bool = settings["partitioner.adaptive.partitioning.enable"]
        self._slow_s = settings.seconds("partitioner.availability.timeout.ms")
        self._table = ClusterTable()
        self._clock: Callable[[], float] = float

    def follow(self, table: ClusterTable, clock: Callable[[], float]) -> None:
        """Learn from this table from now on."""
        self._table, self._clock = table, clock

    def learn(self, topic: str) -> Topic:
        """Take a topic as the table has it now."""
        count = self._table.partition_count(topic)
        topic_queues = self.known.get(topic)
        if topic_queues is None:
            topic_queues = self.known[topic] = Topic([], Sticky(self._batch_size, self._chance))
        if count > len(topic_queues.queues):
            topic_queues.queues = [self._accumulator.queue(TopicPartition(topic, index)) for index in range(count)]
            topic_queues.seen = -1
        return topic_queues

    def learn_all(self) -> None:
        """The table has changed: topics may have grown."""
        for name in self.known:
            self.learn(name)

    def sticky(self, topic: Topic, size: int) -> int:
        """The partition for a record of `size` bytes without a key."""
        sticky = topic.sticky
        if sticky.partition < 0 or sticky.partition >= len(topic.queues) or sticky.took(size):
            self.switch(topic)
        return sticky.partition

    def switch(self, topic: Topic) -> int:
        """Another partition, by how much waits for each."""
        return topic.sticky.switch(len(topic.queues), self._loads(topic) if self._adaptive else None)

    def _loads(self, topic: Topic) -> list[int]:
        if topic.seen != self._table.version:
            topic.seen = self._table.version
            topic.led = [self._table.leader(queue.where) >= 0 for queue in topic.queues]
        before = self._clock() - self._slow_s if self._slow_s else None
        return [
            len(queue) if led and (before is None or not queue.stuck_since(before)) else -1
            for queue, led in zip(topic.queues, topic.led, strict=True)
        ]
