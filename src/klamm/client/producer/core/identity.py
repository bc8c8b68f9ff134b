"""Who writes: producer id, epoch and, per partition, the sequence of the next record. Pure.

A broker accepts a partition's batches of one producer in the order of their sequences and recognises those it has. So a
batch keeps its sequence however often it is sent. When the chain breaks for good (a batch that may or may not have been
stored is given up), the epoch goes up and sequences begin again: then no older attempt can be accepted any more.
"""

from __future__ import annotations

from collections.abc import Iterable

from klamm.client.producer.batch import Batch
from klamm.client.producer.core.accumulator import PartitionQueue

EPOCH_MAX = 0x7FFF


class ProducerIdentity:
    """The producer id and epoch, once the broker has given them."""

    def __init__(self) -> None:
        self.producer_id = -1
        self.epoch = -1
        self.bump_needed = False
        """Whether sequences must begin again before anything else is sent."""

    @property
    def known(self) -> bool:
        """Whether batches can be stamped."""
        return self.producer_id >= 0

    def given(self, producer_id: int, epoch: int, queues: Iterable[PartitionQueue]) -> None:
        """The broker gave a (new) id and epoch: sequences begin at 0."""
        self.producer_id, self.epoch = producer_id, epoch
        self.bump_needed = False
        self._restart(queues)

    def forget(self) -> None:
        """Ask for a new id."""
        self.producer_id = self.epoch = -1

    def bump(self, queues: Iterable[PartitionQueue]) -> bool:
        """Begin sequences again under the next epoch; False when epochs are used up and a new id is needed."""
        if self.epoch >= EPOCH_MAX:
            self.forget()
            return False
        self.epoch += 1
        self.bump_needed = False
        self._restart(queues)
        return True

    def _restart(self, queues: Iterable[PartitionQueue]) -> None:
        for queue in queues:
            queue.next_sequence = 0
            for batch in queue.retries:
                self._number(queue, batch)

    def stamp(self, queue: PartitionQueue, batch: Batch, count: int) -> None:
        """Give a batch its place, if it has none."""
        if batch.base_sequence < 0:
            batch.count = count
            self._number(queue, batch)

    def _number(self, queue: PartitionQueue, batch: Batch) -> None:
        batch.producer_id, batch.producer_epoch = self.producer_id, self.epoch
        batch.base_sequence = queue.next_sequence
        queue.next_sequence = (queue.next_sequence + batch.count) & 0x7FFFFFFF

    @staticmethod
    def close_gap(queue: PartitionQueue, refused: Batch) -> None:
        """A batch was refused for good: those behind it move up, so that the broker misses nothing."""
        if refused.base_sequence < 0:
            return
        for batch in (*queue.in_flight, *queue.retries):
            distance = (batch.base_sequence - refused.base_sequence) & 0x7FFFFFFF
            if batch is not refused and batch.base_sequence >= 0 and 0 < distance < 0x40000000:
                batch.base_sequence = (batch.base_sequence - refused.count) & 0x7FFFFFFF
        queue.next_sequence = (queue.next_sequence - refused.count) & 0x7FFFFFFF

    @staticmethod
    def is_first(queue: PartitionQueue, batch: Batch) -> bool:
        """Whether no batch before this one is still without an answer."""
        for other in (*queue.in_flight, *queue.retries):
            distance = (batch.base_sequence - other.base_sequence) & 0x7FFFFFFF
            if other is not batch and other.base_sequence >= 0 and 0 < distance < 0x40000000:
                return False
        return True
