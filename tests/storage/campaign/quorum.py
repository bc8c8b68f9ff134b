"""A seeded random life of the metadata quorum's folder, and what it must hold when it is opened again.

A member of the quorum promises: a vote that was written is never forgotten, what was flushed is there, nothing is there
that was never written, and a snapshot leads up to wherever the log begins.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from klamm.raft.codec.batches import data_batch
from klamm.raft.config import RaftConfig
from klamm.raft.core.messages import OffsetAndEpoch
from klamm.raft.core.quorum import ReplicaKey
from klamm.raft.core.roles import ElectionState
from klamm.raft.recovery import RaftStorage, open_storage
from klamm.records import iter_batches

from .trace import QuickDisk, TracingDisk

if TYPE_CHECKING:
    from .verify import Expectation

NOW = 1_700_000_000_000
Entry = tuple[int, int, bytes]
"""(first offset, offset after the last, the batch)"""


@dataclass(frozen=True)
class Quorum:
    """What the folder holds after a step."""

    entries: tuple[Entry, ...] = ()
    """All batches there ever were, as far as they were not cut off; those before the log's start too."""
    branches: tuple[tuple[Entry, ...], ...] = ()
    """Other ends the log has had since it was last flushed."""
    flushed: int = 0
    committed: int = 0
    election: ElectionState = field(default_factory=ElectionState)
    snapshot: OffsetAndEpoch | None = None
    begin: int = 0
    """Where the log was begun anew after a leader's snapshot."""

    @property
    def end(self) -> int:
        return self.entries[-1][1] if self.entries else self.begin


def config_of(folder: str) -> RaftConfig:
    return RaftConfig(
        1, {1: ("localhost", 9093, bytes(16)), 2: ("localhost", 9094, bytes(16))}, folder, segment_bytes=900
    )


def content_of(snapshot: OffsetAndEpoch) -> list[bytes]:
    return [b"everything before %d" % snapshot.offset, b"." * (snapshot.offset % 700)]


class QuorumLife:
    """Appends, flushes, votes, cuts, takes snapshots and gets them from leaders, restarts."""

    def __init__(self, seed: int, folder: str) -> None:
        self.chance = random.Random(f"quorum {seed}")
        self.disk = TracingDisk(folder)
        self.config = config_of(folder + "/data")
        self.state = Quorum()
        self.steps: list[tuple[int, str, Quorum]] = []
        self._snapshots: list[OffsetAndEpoch] = []
        self.storage = self._open()
        self._note("start")

    def _open(self) -> RaftStorage:
        return open_storage(self.config, self.disk, NOW)

    def _note(self, step: str) -> None:
        log = self.storage.log
        assert log.end_offset == self.state.end, (step, log.end_offset, self.state.end)
        self.steps.append((len(self.disk.ops), step, self.state))

    def run(self, steps: int) -> None:
        choices: list[tuple[Callable[[], None], int]] = [
            (self.append, 30),
            (self.flush, 15),
            (self.vote, 8),
            (self.cut, 5),
            (self.snapshot, 6),
            (self.install, 2),
            (self.restart_killed, 2),
            (self.restart_clean, 2),
        ]
        for _ in range(steps):
            (step,) = self.chance.choices([step for step, _ in choices], [weight for _, weight in choices])
            step()
            self._note(step.__name__)

    def append(self) -> None:
        epoch = max(self.state.election.epoch, 1)
        for _ in range(self.chance.randint(1, 3)):
            start = self.state.end
            values = [self.chance.randbytes(self.chance.randint(5, 150)) for _ in range(self.chance.randint(1, 4))]
            batch = bytes(data_batch(values, NOW, start, epoch))
            self.storage.log.append(bytearray(batch))
            entries = (*self.state.entries, (start, start + len(values), batch))
            self.state = replace(self.state, entries=entries)

    def flush(self) -> None:
        self.storage.log.flush()
        self.state = replace(self.state, flushed=self.state.end, branches=())
        self.state = replace(self.state, committed=self.chance.randint(self.state.committed, self.state.end))

    def vote(self) -> None:
        epoch = self.state.election.epoch + 1
        who = self.chance.choice((None, ReplicaKey(1), ReplicaKey(2)))
        state = ElectionState(epoch, None, who)
        self.storage.quorum_state.write(state, self.config.initial_voters)
        self.state = replace(self.state, election=state)

    def cut(self) -> None:
        """Another leader has something else after what is committed."""
        ends = [end for _, end, _ in self.state.entries if end >= self.state.committed]
        if len(ends) < 2:
            return
        offset = self.chance.choice(ends)
        self.storage.log.truncate_to(offset)
        kept = tuple(entry for entry in self.state.entries if entry[1] <= offset)
        branches = (*self.state.branches, self.state.entries)
        self.state = replace(self.state, entries=kept, branches=branches, flushed=min(self.state.flushed, offset))
        self.vote()

    def snapshot(self) -> None:
        """Of what is committed; the one before the last goes, and the log before the one that stays."""
        ends = [(end, batch) for _, end, batch in self.state.entries if end <= self.state.committed]
        if not ends:
            return
        end, batch = self.chance.choice(ends[-3:])
        snapshot = OffsetAndEpoch(end, next(iter_batches(batch)).leader_epoch)
        if self._snapshots and snapshot <= self._snapshots[-1]:
            return
        self.storage.snapshots.write(
            snapshot,
            content_of(snapshot),
            now_ms=NOW,
            last_contained_log_timestamp=NOW,
            configuration=self.config.initial_voters,
        )
        self._snapshots = [*self._snapshots, snapshot][-2:]
        if len(self._snapshots) == 2 and self.chance.random() < 0.7:
            self.storage.log.delete_before(self._snapshots[0].offset)
            self.storage.snapshots.delete_before(self._snapshots[0])
        self.state = replace(self.state, snapshot=snapshot)

    def install(self) -> None:
        """A leader sends a snapshot of what this log does not have."""
        epoch = max(self.state.election.epoch, 1)
        snapshot = OffsetAndEpoch(self.state.end + self.chance.randint(1, 30), epoch)
        self.storage.log.flush()
        self.storage.snapshots.write(
            snapshot,
            content_of(snapshot),
            now_ms=NOW,
            last_contained_log_timestamp=NOW,
            configuration=self.config.initial_voters,
        )
        self.storage.log.start_at(snapshot.offset)
        self.storage.snapshots.delete_before(snapshot)
        self._snapshots = [snapshot]
        self.state = Quorum(
            (), (), snapshot.offset, snapshot.offset, self.state.election, snapshot, begin=snapshot.offset
        )

    def restart_killed(self) -> None:
        self.storage = self._open()
        # Opening makes durable what it found.
        self.state = replace(self.state, flushed=self.state.end, branches=())

    def restart_clean(self) -> None:
        self.storage.log.close()
        self.restart_killed()


def quorum_findings(folder: str, expected: "Expectation", chance: random.Random) -> list[str]:
    """Open the folder as a member of the quorum would, and list what is not as promised."""
    before, after = expected.before, expected.after
    config = config_of(folder + "/data")
    try:
        storage = open_storage(config, QuickDisk(), NOW)
    except Exception as error:  # noqa: BLE001 - whatever a start raises is a finding
        return [f"the start failed: {type(error).__name__}: {error}"]
    log, problems = storage.log, []
    if storage.election not in (before.election, after.election):
        problems.append(f"remembers {storage.election}, not {before.election}")
    newest = min((state.snapshot.offset if state.snapshot else 0) for state in (before, after))
    if (storage.snapshot[0].offset if storage.snapshot else 0) < newest:
        problems.append(f"has lost the snapshot at {newest}")
    if storage.snapshot is not None and storage.snapshot[1] != content_of(storage.snapshot[0]):
        problems.append(f"holds another snapshot at {storage.snapshot[0]}")
    if log.end_offset < min(before.flushed, after.flushed):
        problems.append(f"ends at {log.end_offset}; {min(before.flushed, after.flushed)} was flushed")
    if not expected.power and log.end_offset < min(before.end, after.end):
        problems.append(f"ends at {log.end_offset}; {min(before.end, after.end)} was written")
    entries = []
    while (at := entries[-1][1] if entries else log.start_offset) < log.end_offset:
        more = [(v.base_offset, v.next_offset, bytes(v.raw)) for v in iter_batches(log.read(at, 1 << 20))]
        if not more or more[-1][1] <= at:
            problems.append(f"cannot be read from {at} to {log.end_offset}")
            break
        entries += more
    histories = [history for state in (before, after) for history in (state.entries, *state.branches)]
    if entries and not any(_is_part(entries, history) for history in histories):
        problems.append(f"holds {[entry[:2] for entry in entries]}, which was never written like that")
    extra = bytes(data_batch([b"next"], NOW, log.end_offset, storage.election.epoch + 100))
    log.append(bytearray(extra))
    log.flush()
    end = log.end_offset
    log.close()
    again = open_storage(config, QuickDisk(), NOW)
    if again.log.end_offset != end:
        problems.append(f"ends at {again.log.end_offset} after a clean stop, not at {end}")
    again.log.close()
    return problems


def _is_part(entries: list[Entry], history: tuple[Entry, ...]) -> bool:
    at = next((i for i, entry in enumerate(history) if entry[0] == entries[0][0]), None)
    return at is not None and list(history[at : at + len(entries)]) == entries
