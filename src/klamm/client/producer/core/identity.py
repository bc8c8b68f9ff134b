"""Idempotence: producer id, epoch and, per partition, the sequence of the next record. Pure.

A broker accepts a partition's batches of one producer in the order of their sequences and recognises duplicates. So a
batch keeps its sequence however often it is sent. When a batch fails that may or may not have been stored, the epoch is
bumped and sequences start at 0: the broker then refuses every older attempt.
"""

from __future__ import annotations

from collections.abc import Iterable

from klamm.client.producer.batch import Batch
from klamm.client.producer.core.accumulator import PartitionQueue

EPOCH_MAX = 0x7FFF  # an int16 on the wire
_SEQUENCE_MASK = 0x7FFFFFFF  # sequences wrap from 2^31 - 1 to 0
_SEQUENCE_HALF = 0x40000000  # a shorter distance is ahead, a longer one behind


class ProducerIdentity:
    """The producer id and epoch, once the broker has assigned them."""

    def __init__(self) -> None:
        self.producer_id = -1
        self.epoch = -1
        self.bump_needed = False
        """Whether the epoch must be bumped before anything else is sent."""

    @property
    def known(self) -> bool:
        """Whether batches can be stamped."""
        return self.producer_id >= 0

    def assign(self, producer_id: int, epoch: int, queues: Iterable[PartitionQueue]) -> None:
        """Take an id and epoch that the broker assigned; sequences start at 0."""
        self.producer_id, self.epoch = producer_id, epoch
        self.bump_needed = False
        self._restart(queues)

    def forget(self) -> None:
        """Drop the id, so that a new one is requested."""
        self.producer_id = self.epoch = -1

    def bump(self, queues: Iterable[PartitionQueue]) -> bool:
        """Start sequences at 0 under the next epoch (KIP-360); False when epochs are used up and a new id is needed."""
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
            # In order: they were sent under the old epoch and must be the first of the new one.
            for batch in queue.retries:
                self._number(queue, batch)

    def stamp(self, queue: PartitionQueue, batch: Batch, count: int) -> None:
        """Give a batch its sequence, if it has none."""
        if batch.base_sequence < 0:
            batch.count = count
            self._number(queue, batch)

    def _number(self, queue: PartitionQueue, batch: Batch) -> None:
        batch.producer_id, batch.producer_epoch = self.producer_id, self.epoch
        batch.base_sequence = queue.next_sequence
        queue.next_sequence = (queue.next_sequence + batch.count) & _SEQUENCE_MASK

    @staticmethod
    def close_gap(queue: PartitionQueue, refused: Batch) -> None:
        """Move the batches behind a refused one up, so that the broker sees no gap in the sequences."""
        if refused.base_sequence < 0:
            return
        for batch in (*queue.in_flight, *queue.retries):
            distance = (batch.base_sequence - refused.base_sequence) & _SEQUENCE_MASK
            if batch is not refused and batch.base_sequence >= 0 and 0 < distance < _SEQUENCE_HALF:
                # Those in flight were sent with the old sequence: the broker refuses them as out of order, and they
                # are sent again with the new one (`Batch.sent_sequence`).
                batch.base_sequence = (batch.base_sequence - refused.count) & _SEQUENCE_MASK
        queue.next_sequence = (queue.next_sequence - refused.count) & _SEQUENCE_MASK

    @staticmethod
    def is_first(queue: PartitionQueue, batch: Batch) -> bool:
        """Whether no batch before this one is in flight or waits for a retry."""
        for other in (*queue.in_flight, *queue.retries):
            distance = (batch.base_sequence - other.base_sequence) & _SEQUENCE_MASK
            if other is not batch and other.base_sequence >= 0 and 0 < distance < _SEQUENCE_HALF:
                return False
        return True
