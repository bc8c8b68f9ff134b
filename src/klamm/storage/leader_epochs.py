"""Leader epochs and their start offsets, by which followers truncate (`leader-epoch-checkpoint`)."""

import os
from bisect import bisect_right

from klamm.storage.checkpoints import LEADER_EPOCH, UnreadableCheckpoint, read_lines, write_lines
from klamm.storage.disk import Disk
from klamm.telemetry.log import get_logger

logger = get_logger("storage")

UNDEFINED = (-1, -1)


class LeaderEpochs:
    """Leader epochs and their start offsets, both growing. Every change is on disk before the call returns."""

    def __init__(self, disk: Disk, folder: str, *, empty: bool = False) -> None:
        """Read the checkpoint; with `empty` the folder is new and there is nothing to read."""
        self._disk = disk
        self.path = os.path.join(folder, LEADER_EPOCH)
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.written = 0
        """How often the checkpoint was written."""
        self.synced = 0
        """Which of these writes is durable; set after a sync of the file."""
        self.damaged = False
        """Whether the checkpoint was unreadable: a power loss came before it reached the disk. Recovery rebuilds it."""
        if empty:
            return
        try:
            rows = [(int(epoch), int(start)) for epoch, start in read_lines(disk, self.path)]
        except (UnreadableCheckpoint, ValueError) as error:
            logger.warning("unreadable leader epoch checkpoint, rebuilding it", path=self.path, reason=error)
            rows = []
            self.damaged = True
        for epoch, start in rows:
            self._epochs.append(epoch)
            self._starts.append(start)

    @property
    def latest(self) -> int:
        """The newest epoch, -1 when none is known."""
        return self._epochs[-1] if self._epochs else -1

    def entries(self) -> list[tuple[int, int]]:
        """All (epoch, start offset) pairs, oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Add an epoch that starts at `start_offset`; conflicting later entries are removed."""
        if self._insert(epoch, start_offset):
            self.flush()

    def correct(self, epoch: int, offset: int) -> None:
        """Take the epoch of `offset` from its batch; for recovery, which writes the file once at its end."""
        # -1: a batch that was written before leader epochs existed.
        if epoch < 0:
            return
        kept = len(self._epochs)
        while kept and (self._starts[kept - 1] >= offset or self._epochs[kept - 1] > epoch):
            kept -= 1
        self._keep(kept)
        if epoch > self.latest:
            self._epochs.append(epoch)
            self._starts.append(offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest known epoch up to `epoch` and its end offset; (-1, -1) when none is known."""
        if epoch < 0 or not self._epochs:
            return UNDEFINED
        # The current epoch has no end yet, so it ends at the log end.
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        higher = bisect_right(self._epochs, epoch)
        # A later epoch than any known: the other side is ahead, and must not truncate by this answer.
        if higher == len(self._epochs):
            return UNDEFINED
        return (self._epochs[higher - 1] if higher else epoch), self._starts[higher]

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch that wrote `offset`, -1 when unknown."""
        count = bisect_right(self._starts, offset)
        return self._epochs[count - 1] if count else -1

    def span(self, offset: int) -> tuple[int, int]:
        """The epoch that wrote `offset`, -1 when unknown, and the offset up to which that answer holds."""
        count = bisect_right(self._starts, offset)
        return self._epochs[count - 1] if count else -1, self._starts[count] if count < len(self._starts) else 2**62

    @property
    def unsynced(self) -> bool:
        """Whether the checkpoint was written since it was last synced."""
        return self.synced < self.written

    def reaches(self, offset: int) -> bool:
        """Return whether the epoch of `offset` is known."""
        return bool(self._starts) and self._starts[0] <= offset

    def extend_back(self, entries: list[tuple[int, int]]) -> None:
        """Add older entries, read from the batches, before the first one."""
        first_epoch, first_start = (self._epochs[0], self._starts[0]) if self._epochs else (2**31, 2**63)
        older = [(epoch, start) for epoch, start in entries if epoch <= first_epoch and start < first_start]
        if older:
            newer = [entry for entry in self.entries() if entry[0] > older[-1][0]]
            self._epochs = [epoch for epoch, _ in older + newer]
            self._starts = [start for _, start in older + newer]
            self.flush()

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that start at or after `end_offset`: the log was truncated there."""
        kept = len(self._starts)
        while kept and self._starts[kept - 1] >= end_offset:
            kept -= 1
        if kept != len(self._starts):
            self._keep(kept)
            self.flush()

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove epochs that ended before `start_offset`; the one that contains it now starts there."""
        count = bisect_right(self._starts, start_offset)
        # The epoch of the first record that is left stays, or a follower would not find where it begins.
        if count > 1 or (count and self._starts[0] != start_offset):
            del self._epochs[: count - 1], self._starts[: count - 1]
            self._starts[0] = start_offset
            self.flush()

    def relocate(self, folder: str) -> None:
        """Use a folder that was renamed."""
        self.path = os.path.join(folder, LEADER_EPOCH)

    def clear(self) -> None:
        """Remove all entries: the log was emptied."""
        if self._epochs:
            self._keep(0)
            self.flush()

    def flush(self) -> None:
        """Write the checkpoint without a sync: `LogFlusher` syncs it before the recovery point passes a new epoch."""
        self.written += 1
        # It is called for every new leader epoch of every partition: a sync each would block the loop.
        write_lines(self._disk, self.path, self.entries(), sync=False)

    def _insert(self, epoch: int, start_offset: int) -> bool:
        if epoch < 0 or (self._epochs and epoch == self._epochs[-1] and start_offset >= self._starts[-1]):
            return False
        kept = len(self._epochs)
        while kept and (self._epochs[kept - 1] >= epoch or self._starts[kept - 1] >= start_offset):
            kept -= 1
        self._keep(kept)
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        return True

    def _keep(self, count: int) -> None:
        del self._epochs[count:], self._starts[count:]
