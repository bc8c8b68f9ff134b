"""What a log has refused for a reason that passes, so that nothing sent behind it is taken before it comes again.

Idempotent producers send several batches without waiting. When the first is refused because the disk is full, too few
replicas are in sync, or this node does not lead yet, and the reason is gone when the next one arrives, that one leaves
a gap. OUT_OF_ORDER_SEQUENCE_NUMBER is true then, but says that something was lost: librdkafka begins a new epoch and
sends again whatever is unanswered in *other* partitions, which may be there already and cannot be known for a duplicate
under the new epoch. And a producer the log does not know yet may begin with any sequence, so the later batch would be
taken and the first one refused for good. So whatever is ahead of a refused batch gets the same answer it got, until it
comes again, its producer begins a new epoch, or a minute has passed.
"""

from collections.abc import Mapping
from typing import NamedTuple

from klamm.model.errors import ErrorCode, KlammError
from klamm.records.batch import HEADER, HEADER_SIZE, BatchView
from klamm.storage.producer_state import ProducerEntry

MEMORY_MS = 60_000
"""After so long, whoever still leaves a gap is told so."""
PRODUCERS_MAX = 1000
_HALF = 2**30
_WRAP = 2**31


class Refusal(NamedTuple):
    """The first batch of a producer that was refused and has not come again."""

    epoch: int
    sequence: int
    code: ErrorCode
    at_ms: int


class RefusedBatches:
    """The refused batches of one log, one for each producer, the oldest forgotten when there are too many."""

    def __init__(self) -> None:
        self._first: dict[int, Refusal] = {}

    def __len__(self) -> int:
        return len(self._first)

    def note(self, data: memoryview, entries: Mapping[int, ProducerEntry], code: ErrorCode, now_ms: int) -> None:
        """Remember a refused batch, if it would have been next; `entries` are the producers the log knows."""
        if len(data) < HEADER_SIZE:
            return
        _, _, _, magic, _, _, _, _, _, producer_id, epoch, sequence, _ = HEADER.unpack_from(data)
        if magic != 2 or producer_id < 0 or sequence < 0:
            return
        entry = entries.get(producer_id)
        if entry is not None:
            following = entry.next_sequence if epoch == entry.epoch else 0
            if epoch < entry.epoch or sequence != following:
                return  # it is there already, or would not have been taken anyway
        known = self._first.get(producer_id)
        # Of a producer the log has nothing of, only the refusals tell what comes first.
        if entry is None and known is not None and _is_recent(known, now_ms) and _precedes(known, epoch, sequence):
            return
        if known is None and len(self._first) >= PRODUCERS_MAX:
            del self._first[next(iter(self._first))]
        self._first[producer_id] = Refusal(epoch, sequence, code, now_ms)

    def check(self, batch: BatchView, entries: Mapping[int, ProducerEntry], now_ms: int) -> None:
        """Refuse a batch that is ahead of one that was refused."""
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


def _is_recent(refusal: Refusal, now_ms: int) -> bool:
    """Whether it was not long ago; those who ask look at the clock now and then, so it may lie a little ahead."""
    return abs(now_ms - refusal.at_ms) <= MEMORY_MS


def _precedes(refusal: Refusal, epoch: int, sequence: int) -> bool:
    return refusal.epoch > epoch or (refusal.epoch == epoch and _is_after(sequence, refusal.sequence))


def _is_after(sequence: int, other: int) -> bool:
    """Whether a sequence number comes after another; they wrap."""
    return 0 < (sequence - other) % _WRAP < _HALF
