"""Positions of the log: its start, end, durable end and epoch boundaries.

Elections and replication need no more than that of the log, so the core decides without a disk; the driver then
changes the log on disk accordingly.
"""

from bisect import bisect_right
from dataclasses import dataclass

from klamm.raft.core.messages import OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class Valid:
    """The follower's log is a prefix of ours."""


@dataclass(frozen=True, slots=True)
class Diverging:
    """The follower must truncate to this end of this epoch, or before."""

    end: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class NeedsSnapshot:
    """The follower's position is no longer in our log."""

    snapshot_id: OffsetAndEpoch


class LogPositions:
    """Offsets and epochs of one replica's log.

    `base` is the start of the log with the epoch of the record before it: the oldest snapshot kept, or (0, 0).
    `persisted_offset` is the end of what survives a crash; it trails `end_offset` by what is not synced yet.
    """

    __slots__ = ("_epochs", "_starts", "base", "end_offset", "persisted_offset", "snapshot_id", "truncations")

    def __init__(
        self,
        base: OffsetAndEpoch = OffsetAndEpoch(0, 0),  # noqa: B008 - an immutable tuple
        end_offset: int | None = None,
        epochs: tuple[tuple[int, int], ...] = (),
        snapshot_id: OffsetAndEpoch | None = None,
    ) -> None:
        self.base = base
        self.end_offset = base.offset if end_offset is None else end_offset
        self.persisted_offset = self.end_offset
        self.snapshot_id = snapshot_id
        """The newest snapshot, sent to a follower whose position is before our log."""
        self.truncations = 0
        """How often the log was truncated: a sync that began before a truncation proves nothing about the log after."""
        self._epochs = [epoch for epoch, _ in epochs]
        self._starts = [start for _, start in epochs]

    @property
    def start_offset(self) -> int:
        """The first offset still in the log."""
        return self.base.offset

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot before an empty log."""
        return self._epochs[-1] if self._epochs else self.base.epoch

    @property
    def end(self) -> OffsetAndEpoch:
        """The log end with the epoch of the last record; the larger of two (epoch, offset) is the better log."""
        return OffsetAndEpoch(self.end_offset, self.last_epoch)

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset) pairs, ascending."""
        return tuple(zip(self._epochs, self._starts, strict=True))

    def is_up_to_date(self, other: OffsetAndEpoch) -> bool:
        """Whether a candidate with this log end has everything that may be committed here (Raft, section 5.4.1)."""
        return (other.epoch, other.offset) >= (self.last_epoch, self.end_offset)

    def append(self, base_offset: int, end_offset: int, epoch: int) -> None:
        """Extend the log by a batch."""
        # Gaps and decreasing epochs would break the search for the point where two logs diverge.
        if base_offset != self.end_offset or epoch < self.last_epoch:
            raise AssertionError(f"batch {base_offset}@{epoch} does not continue a log that ends at {self.end}")
        if not self._epochs or epoch > self._epochs[-1]:
            self._epochs.append(epoch)
            self._starts.append(base_offset)
        self.end_offset = end_offset

    def truncate_to(self, offset: int) -> None:
        """Remove everything from `offset` on."""
        self.truncations += 1
        while self._starts and self._starts[-1] >= offset:
            self._starts.pop()
            self._epochs.pop()
        self.end_offset = min(self.end_offset, offset)
        self.persisted_offset = min(self.persisted_offset, self.end_offset)

    def start_at(self, snapshot_id: OffsetAndEpoch) -> None:
        """Replace the log by a snapshot that was fetched from the leader."""
        self.truncations += 1
        self._epochs.clear()
        self._starts.clear()
        self.base = self.snapshot_id = snapshot_id
        self.end_offset = self.persisted_offset = snapshot_id.offset

    def advance_start(self, base: OffsetAndEpoch) -> None:
        """Remove the log before `base`, the id of a snapshot."""
        if base.offset <= self.base.offset:
            return
        self.base = base
        keep = bisect_right(self._starts, base.offset) - 1
        if keep >= 0:
            del self._epochs[:keep], self._starts[:keep]
            self._starts[0] = max(self._starts[0], base.offset)
        # A snapshot at the very end leaves no record: the epoch of the log is then that of `base`.
        if self._starts and base.offset >= self.end_offset:
            self._epochs.clear()
            self._starts.clear()

    def epoch_at(self, offset: int) -> int:
        """The epoch of the record at `offset`; at the end of the log, that of the last record."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else self.base.epoch

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """The largest epoch of this log that is not above `epoch`, with its end offset."""
        index = bisect_right(self._epochs, epoch) - 1
        if index < 0:
            return self.base
        end = self._starts[index + 1] if index + 1 < len(self._starts) else self.end_offset
        return OffsetAndEpoch(end, self._epochs[index])

    def validate(self, offset: int, epoch: int) -> Valid | Diverging | NeedsSnapshot:
        """Whether a follower whose log ends at (offset, epoch) can go on, must truncate, or must load a snapshot."""
        if offset == 0 and self.start_offset == 0:
            return Valid()  # an empty log is a prefix of any other
        base = self.base
        # Before the start of the log no epoch is known with which to compare.
        if self.start_offset > 0 and (
            offset < base.offset or (offset == base.offset and epoch != base.epoch) or epoch < base.epoch
        ):
            return NeedsSnapshot(self.snapshot_id or base)
        ours = self.end_offset_for_epoch(epoch)
        if ours.epoch != epoch or ours.offset < offset:
            return Diverging(ours)
        return Valid()

    def truncation_point(self, diverging: OffsetAndEpoch) -> int:
        """The offset to truncate to, for a leader whose `diverging.epoch` ends at `diverging.offset`."""
        ours = self.end_offset_for_epoch(diverging.epoch)
        # Without that epoch, cut to the end of the last one below it: the next Fetch finds out whether that agrees.
        if ours.epoch == diverging.epoch:
            return min(ours.offset, diverging.offset)
        return ours.offset
