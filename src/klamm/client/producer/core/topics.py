"""The partition queues of the topics that a producer writes to, and the sticky choice among them. Pure."""

from __future__ import annotations

from collections.abc import Callable

from klamm.client.client_settings import ClientSettings
from klamm.client.core.metadata import ClusterTable
from klamm.client.producer.core.accumulator import Accumulator, PartitionQueue
from klamm.client.producer.core.partitioners import Chance, Sticky
from klamm.model.ids import TopicPartition


class Topic:
    """The queues of a topic and the state of its sticky partitioner."""

    __slots__ = ("led", "queues", "seen", "sticky")

    def __init__(self, queues: list[PartitionQueue], sticky: Sticky) -> None:
        self.queues = queues
        self.sticky = sticky
        self.led: list[bool] = []
        """Which partitions have a leader, as of version `seen` of the metadata."""
        self.seen = -1


class ProducerTopics:
    """The topics that were written to; `use_table` sets the metadata and the clock."""

    def __init__(self, accumulator: Accumulator, settings: ClientSettings, chance: Chance) -> None:
        self.known: dict[str, Topic] = {}
        self._accumulator = accumulator
        self._chance = chance
        self._batch_size = settings.number("batch.size")
        self._adaptive: bool = settings["partitioner.adaptive.partitioning.enable"]
        self._slow_s = settings.seconds("partitioner.availability.timeout.ms")
        self._table = ClusterTable()
        self._clock: Callable[[], float] = float

    def use_table(self, table: ClusterTable, clock: Callable[[], float]) -> None:
        """Use this metadata and clock from now on."""
        self._table, self._clock = table, clock

    def update(self, topic: str) -> Topic:
        """Add queues for the partitions that a topic has in the metadata now."""
        count = self._table.partition_count(topic)
        topic_queues = self.known.get(topic)
        if topic_queues is None:
            topic_queues = self.known[topic] = Topic([], Sticky(self._batch_size, self._chance))
        # Never fewer: while a topic is missing from metadata its queues, and the records in them, stay.
        if count > len(topic_queues.queues):
            topic_queues.queues = [self._accumulator.queue(TopicPartition(topic, index)) for index in range(count)]
            topic_queues.seen = -1
        return topic_queues

    def update_all(self) -> None:
        """Update all topics after a change of metadata."""
        for name in self.known:
            self.update(name)

    def sticky(self, topic: Topic, size: int) -> int:
        """The partition for a record of `size` bytes without a key."""
        sticky = topic.sticky
        if sticky.partition < 0 or sticky.partition >= len(topic.queues) or sticky.add(size):
            self.switch(topic)
        return sticky.partition

    def switch(self, topic: Topic) -> int:
        """Choose another partition, by the lengths of the queues."""
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
