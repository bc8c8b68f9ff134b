"""Batches a log has refused for a transient reason, so that no later one is accepted before they are sent again.

Idempotent producers send several batches without waiting. When the first is refused because the disk is full, too few
replicas are in sync, or this node does not lead yet, and the reason is gone when the next one arrives, that one leaves
a gap. OUT_OF_ORDER_SEQUENCE_NUMBER is true then, but means that records were lost: librdkafka begins a new epoch and
sends again all unanswered batches of *other* partitions, which may be stored already and are not recognised as
duplicates under the new epoch. And a producer without state in the log may begin with any sequence, so the later batch
would be accepted and the first one refused for good. So a batch ahead of a refused one gets the same error, until that
one is sent again, its producer begins a new epoch, or a minute has passed.
"""

from collections.abc import Mapping
from typing import NamedTuple

from klamm.model.errors import ErrorCode, KlammError
from klamm.records.batch import HEADER, HEADER_SIZE, BatchView
from klamm.storage.producer_state import ProducerEntry

MEMORY_MS = 60_000
"""After this time, a gap is answered with OUT_OF_ORDER_SEQUENCE_NUMBER."""
PRODUCERS_MAX = 1000
"""Per log; producer ids come from clients, so the memory they take is bounded."""
_HALF = 2**30
_WRAP = 2**31


class BatchRefusal(NamedTuple):
    """The first batch of a producer that was refused and not sent again."""

    epoch: int
    sequence: int
    code: ErrorCode
    at_ms: int


class RefusedBatches:
    """The refused batches of one log, one per producer; the oldest is dropped when there are too many."""

    def __init__(self) -> None:
        self._first: dict[int, BatchRefusal] = {}

    def __len__(self) -> int:
        return len(self._first)

    def note(self, data: memoryview, entries: Mapping[int, ProducerEntry], code: ErrorCode, now_ms: int) -> None:
        """Record a refused batch, if it would have been next; `entries` are the producers of the log."""
        if len(data) < HEADER_SIZE:
            return
        _, _, _, magic, _, _, _, _, _, producer_id, epoch, sequence, _ = HEADER.unpack_from(data)
        if magic != 2 or producer_id < 0 or sequence < 0:
            return
        entry = entries.get(producer_id)
        if entry is not None:
            following = entry.next_sequence if epoch == entry.epoch else 0
            if epoch < entry.epoch or sequence != following:
                return  # stored already, or out of order anyway
        known = self._first.get(producer_id)
        # For a producer that the log has no state of, only the refused batches show which comes first.
        if entry is None and known is not None and _is_recent(known, now_ms) and _precedes(known, epoch, sequence):
            return
        # The oldest goes: its producer has had the longest time to send the batch again.
        if known is None and len(self._first) >= PRODUCERS_MAX:
            del self._first[next(iter(self._first))]
        self._first[producer_id] = BatchRefusal(epoch, sequence, code, now_ms)

    def check(self, batch: BatchView, entries: Mapping[int, ProducerEntry], now_ms: int) -> None:
        """Refuse a batch that comes after one that was refused."""
        producer_id, epoch, sequence = batch.producer_id, batch.producer_epoch, batch.base_sequence
        refusal = self._first.get(producer_id)
        if refusal is None or epoch < refusal.epoch:
            return
        entry = entries.get(producer_id)
        is_stored = entry is not None and entry.epoch == epoch and entry.next_sequence != refusal.sequence
        if is_stored or epoch > refusal.epoch or sequence == refusal.sequence or not _is_recent(refusal, now_ms):
            del self._first[producer_id]
        elif _is_after(sequence, refusal.sequence):
            raise KlammError(
                refusal.code,
                f"sequence {refusal.sequence} of producer {producer_id} was refused and must come before {sequence}",
            )


def _is_recent(refusal: BatchRefusal, now_ms: int) -> bool:
    """Return whether it was not long ago. Callers cache the clock, so `at_ms` may be slightly ahead of `now_ms`."""
    return abs(now_ms - refusal.at_ms) <= MEMORY_MS


def _precedes(refusal: BatchRefusal, epoch: int, sequence: int) -> bool:
    return refusal.epoch > epoch or (refusal.epoch == epoch and _is_after(sequence, refusal.sequence))


def _is_after(sequence: int, other: int) -> bool:
    """Return whether a sequence number comes after another; they wrap around."""
    return 0 < (sequence - other) % _WRAP < _HALF
