"""Validation of the records in a produced batch, in the pieces they are unpacked to, none of which is kept.

A batch with a valid checksum may hold anything, and broken records in a log stop every reader. So the broker checks
before it stores: a record fills the bytes it claims, number and offset deltas match the header, nothing is left over.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from klamm.model.buffer import Buffer
from klamm.model.errors import ErrorCode, RecordRefused
from klamm.records.batch import BatchView
from klamm.records.kernels import layout, produce

_STATE = Struct(f"={20 + 3 * layout.NOTED_MAX}q")
_HEAD = Struct("=20q")
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class NotedRecord(NamedTuple):
    """A sound record that breaks a rule of its topic."""

    offset_delta: int
    """Its offset from that of the batch: where nothing was compacted away, its place in it."""
    keyless: bool
    """It has no key where every record needs one; otherwise its timestamp is outside of what is allowed."""
    timestamp: int


class RecordCheck:
    """The check of one batch, fed with its records section uncompressed, in pieces cut anywhere.

    `oldest` and `newest` bound timestamps; `keyed` requires a key in every record. What breaks these, from
    `first_delta` on, is noted; what is no record at all is RecordRefused(INVALID_RECORD), after which the check is not
    to be used. Offset deltas count from 0 unless the batch is `stored`, when compaction may have left gaps.
    """

    __slots__ = ("_name", "_state")

    def __init__(
        self,
        batch: BatchView,
        name: str,
        *,
        oldest: int = _INT64_MIN,
        newest: int = _INT64_MAX,
        keyed: bool = False,
        stored: bool = False,
        first_delta: int = 0,
    ) -> None:
        self._name = name
        self._state = bytearray(_STATE.size)
        stamped = stored and batch.is_log_append_time
        base_timestamp = batch.max_timestamp if stamped else batch.base_timestamp
        oldest, newest = max(oldest, _INT64_MIN), min(newest, _INT64_MAX)
        # In the order of `layout`, from COUNT to STAMPED.
        _HEAD.pack_into(
            self._state, 0, batch.record_count, 0, 0, 0, 0, 0, 0, 0, base_timestamp, oldest, newest, keyed, -1, 0, 0, 0,
            not stored, first_delta, 0, stamped,
        )  # fmt: skip

    def feed(self, piece: Buffer) -> None:
        """Check the next piece."""
        fault = produce.check_records(piece, self._state)
        if fault:
            raise self._refusal(_FAULTS[fault])

    def passing(self, pieces: Iterable[Buffer]) -> Iterator[Buffer]:
        """Yield the same pieces, every one checked before; the end is checked too."""
        for piece in pieces:
            self.feed(piece)
            yield piece
        self.finish()

    def finish(self) -> None:
        """Check that every record the header counts has come completely."""
        self.feed(b"")
        counted, done, field, _, bits, *_ = _HEAD.unpack_from(self._state)
        if done != counted or field or bits:
            raise self._refusal("is missing or cut")

    @property
    def largest_timestamp(self) -> int:
        """The largest timestamp of the records, -1 when none has one."""
        largest: int = _HEAD.unpack_from(self._state)[12]
        return largest

    @property
    def noted_count(self) -> int:
        """How many records break a rule."""
        return _HEAD.unpack_from(self._state)[15]  # type: ignore[no-any-return]

    @property
    def noted(self) -> list[NotedRecord]:
        """The first of these records."""
        state = _STATE.unpack(self._state)
        count = min(state[15], layout.NOTED_MAX)
        return [NotedRecord(state[at], not state[at + 1], state[at + 2]) for at in range(20, 20 + 3 * count, 3)]

    def _refusal(self, what: str) -> RecordRefused:
        counted, done, *_ = _HEAD.unpack_from(self._state)
        return RecordRefused(
            ErrorCode.INVALID_RECORD, f"record {done} of {counted} in the batch for {self._name} {what}"
        )


_FAULTS = {
    layout.BROKEN: "does not fit the bytes that should hold it",
    layout.MISPLACED: "does not have its place in the batch as its offset delta",
    layout.BEYOND: "has a timestamp beyond 64 bits",
    layout.TRAILING: "would be one more than the batch counts",
}
