"""Records waiting to be sent, by partition: batches, when they are due, and the memory they take.

Pure: time is an argument, nothing waits here. Not safe across threads; the producer's guard protects it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from klamm.client.errors import KafkaError
from klamm.client.producer.batch import Batch
from klamm.model.ids import TopicPartition
from klamm.records.batch import HEADER_SIZE, RecordTuple


class PartitionQueue:
    """The batches of one partition: open, closed, in flight, and to be retried."""

    __slots__ = ("backoff_until", "closed", "in_flight", "next_sequence", "open", "retries", "where")

    def __init__(self, where: TopicPartition) -> None:
        self.where = where
        self.open: Batch | None = None
        self.closed: deque[Batch] = deque()
        self.retries: list[Batch] = []
        self.in_flight: list[Batch] = []
        self.next_sequence = 0
        self.backoff_until = 0.0

    def __len__(self) -> int:
        return len(self.closed) + len(self.retries) + (self.open is not None)

    # With __len__ alone an empty queue would be false, and `if queue` does not mean that.
    def __bool__(self) -> bool:
        return True

    @property
    def waiting(self) -> Iterator[Batch]:
        """Batches that are not in flight, in order."""
        yield from self.retries
        yield from self.closed
        if self.open is not None:
            yield self.open

    def stuck_since(self, before: float) -> bool:
        """Whether a batch closed before that time has not been sent."""
        return bool(self.closed) and self.closed[0].created < before

    def retry(self, batch: Batch) -> None:
        """Queue a batch to be sent again, before all with a higher sequence."""
        self.retries.append(batch)
        if batch.base_sequence >= 0:
            head = self.retries[0].base_sequence
            # Sequences wrap at 2^31: those in flight are close together, so the signed distance orders them.
            self.retries.sort(key=lambda other: (other.base_sequence - head + 0x40000000) & 0x7FFFFFFF)

    def discard(self, batch: Batch) -> None:
        """Remove a batch from wherever it is."""
        if self.open is batch:
            self.open = None
        elif batch in self.in_flight:
            self.in_flight.remove(batch)
        elif batch in self.retries:
            self.retries.remove(batch)
        elif batch in self.closed:
            self.closed.remove(batch)


class Accumulator:
    """The queues of all partitions, and the memory they take."""

    def __init__(self, batch_size: int, linger_s: float, memory_bytes: int) -> None:
        self.batch_size = batch_size
        self.linger_s = linger_s
        self.memory_bytes = memory_bytes
        self.used = 0
        """Bytes of records not done yet."""
        self.flushing = 0
        """Callers of flush or waiting for memory; while there are any, no batch lingers."""
        self.filled = False
        """Whether a queue became ready since the last `tick`."""
        self.ready: dict[PartitionQueue, None] = {}
        """Queues with a batch to send now, oldest first."""
        self.incomplete: dict[Batch, PartitionQueue] = {}
        """Every batch not done, oldest first."""
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self._lingering: deque[tuple[float, Batch, PartitionQueue]] = deque()

    def queue(self, where: TopicPartition) -> PartitionQueue:
        """The queue of a partition."""
        partition_queue = self.queues.get(where)
        if partition_queue is None:
            partition_queue = self.queues[where] = PartitionQueue(where)
        return partition_queue

    def append(self, queue: PartitionQueue, row: RecordTuple, size: int, now: float) -> Batch:
        """Add a record of at most `size` bytes; the caller has checked that there is memory for it."""
        batch = queue.open
        if batch is None or batch.size + size > self.batch_size:
            batch = self.roll(queue, now)
        batch.rows.append(row)
        batch.size += size
        self.used += size
        return batch

    def roll(self, queue: PartitionQueue, now: float) -> Batch:
        """Close the open batch and open another."""
        if queue.open is not None:
            queue.closed.append(queue.open)
            self._mark_ready(queue)
        batch = queue.open = Batch(queue.where, now)
        self.incomplete[batch] = queue
        self.used += HEADER_SIZE
        if self.linger_s <= 0 or self.flushing:
            batch.due = True
            self._mark_ready(queue)
        else:
            self._lingering.append((now + self.linger_s, batch, queue))
        return batch

    def add(self, queue: PartitionQueue, batch: Batch) -> None:
        """Add a complete batch."""
        # Behind the records that are already there: the order of a partition is that of the calls.
        if queue.open is not None:
            queue.closed.append(queue.open)
            queue.open = None
        queue.closed.append(batch)
        self.incomplete[batch] = queue
        self.used += batch.size
        self._mark_ready(queue)

    def _mark_ready(self, queue: PartitionQueue) -> None:
        self.ready[queue] = None
        self.filled = True

    def tick(self, now: float) -> None:
        """Mark batches ready that have lingered for linger.ms."""
        self.filled = False
        lingering = self._lingering
        while lingering and (self.flushing or lingering[0][0] <= now):
            _, batch, queue = lingering.popleft()
            # One that filled up is closed and ready already.
            if queue.open is batch:
                batch.due = True
                self.ready[queue] = None

    def next_due(self) -> float | None:
        """When the next batch has lingered long enough."""
        while self._lingering:
            due, batch, queue = self._lingering[0]
            if queue.open is batch:
                return due
            self._lingering.popleft()
        return None

    def next_size(self, queue: PartitionQueue) -> int:
        """Bytes of the batch that `take` would return, 0 for none."""
        if queue.retries:
            return queue.retries[0].size
        if queue.closed:
            return queue.closed[0].size
        return queue.open.size if queue.open is not None and queue.open.due else 0

    def take(self, queue: PartitionQueue) -> Batch | None:
        """The next batch of a ready queue, now in flight."""
        if queue.retries:
            batch = queue.retries.pop(0)
        elif queue.closed:
            batch = queue.closed.popleft()
        elif queue.open is not None and queue.open.due:
            batch, queue.open = queue.open, None
        else:
            batch = None
        if not queue.retries and not queue.closed and (queue.open is None or not queue.open.due):
            self.ready.pop(queue, None)
        if batch is not None:
            queue.in_flight.append(batch)
        return batch

    def requeue(self, queue: PartitionQueue, batch: Batch) -> None:
        """Queue a batch in flight to be sent again."""
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        queue.retry(batch)
        self.ready[queue] = None

    def replace(self, queue: PartitionQueue, batch: Batch, parts: list[Batch]) -> None:
        """Send `parts` instead of a batch; the batch is done when they are."""
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        for part in parts:
            # The split batch still counts for the memory; it is released when its parts are done.
            part.size = 0
            self.incomplete[part] = queue
            queue.retry(part)
        self.ready[queue] = None

    def release(self, batch: Batch) -> None:
        """Remove a batch that is done and free its memory."""
        queue = self.incomplete.pop(batch, None)
        if queue is not None:
            queue.discard(batch)
            self.used -= batch.size
            if not len(queue):
                self.ready.pop(queue, None)

    def list_expired(self, before: float) -> list[Batch]:
        """Batches created at or before a time, oldest first."""
        batches = []
        for batch in self.incomplete:
            if batch.created > before:
                break
            if batch.children is None:
                batches.append(batch)
        return batches

    def list_unfinished(self) -> dict[Batch, int]:
        """Every batch not done, with its number of records; one that was split counts as its parts."""
        return {batch: batch.count or len(batch.rows) for batch in self.incomplete if batch.children is None}

    def count_records(self) -> int:
        """Records not done yet."""
        return sum(self.list_unfinished().values())

    def fail_waiting(self, error: KafkaError, *, retries: bool = True) -> None:
        """Fail every batch that is not in flight."""
        for queue in self.queues.values():
            for batch in list(queue.waiting):
                if retries or not batch.sent:
                    self.release(batch)
                    batch.fail(error)
