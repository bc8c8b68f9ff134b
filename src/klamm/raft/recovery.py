"""What a member finds on its disk at start: its vote, its newest whole snapshot, its log, and how they fit together."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from klamm.model.errors import CorruptBatch, StorageFailure
from klamm.raft.codec.batches import read_voter_change
from klamm.raft.config import RaftConfig
from klamm.raft.core.log_positions import LogPositions
from klamm.raft.core.messages import OffsetAndEpoch
from klamm.raft.core.roles import ElectionState
from klamm.raft.core.voter_history import VoterHistory
from klamm.raft.disk_log import DiskRaftLog
from klamm.raft.log import RaftLog
from klamm.raft.quorum_state import QuorumStateFile
from klamm.raft.snapshot_folder import SnapshotFolder
from klamm.records.batch import BatchView, iter_batches
from klamm.storage.disk import Disk

SCAN_BYTES = 1024 * 1024

OpenLog: TypeAlias = Callable[[RaftConfig, Disk, int, int, int], RaftLog]
"""(config, disk, now, start offset, recovery point) -> the log."""


@dataclass(slots=True)
class Storage:
    """The open files of one replica and what they said."""

    log: RaftLog
    snapshots: SnapshotFolder
    quorum_state: QuorumStateFile
    election: ElectionState
    positions: LogPositions
    voter_history: VoterHistory
    snapshot: tuple[OffsetAndEpoch, list[bytes]] | None


def open_storage(config: RaftConfig, disk: Disk, now_ms: int, open_log: OpenLog = DiskRaftLog.open) -> Storage:
    """Open everything and check that log and snapshot join; StorageFailure when a part of the history is missing."""
    disk.makedirs(config.folder, exist_ok=True)
    snapshots = SnapshotFolder(config.folder, disk)
    snapshots.remove_partial()
    ids = snapshots.ids()
    snapshot = snapshots.latest_valid()
    newest = snapshot[0] if snapshot else None
    quorum_state = QuorumStateFile(config.folder, disk)
    election = quorum_state.read()
    # With two snapshots the log starts at the older one; what a snapshot contains was synced before it was taken.
    log = open_log(config, disk, now_ms, ids[0].offset if len(ids) > 1 else 0, newest.offset if newest else 0)
    if newest is not None and not _contains(log, newest):
        log.start_at(newest.offset)
    if log.start_offset > (newest.offset if newest else 0):
        raise StorageFailure(f"{config.folder}: the log starts at {log.start_offset}, no whole snapshot leads up to it")
    log.flush()
    base = next((known for known in ids if known.offset == log.start_offset), OffsetAndEpoch(log.start_offset, 0))
    positions = LogPositions(base, log.end_offset, log.epochs(), newest)
    voter_history = _configurations(config, log, snapshots, base if base in ids else newest, newest)
    return Storage(log, snapshots, quorum_state, election, positions, voter_history, snapshot)


def _configurations(
    config: RaftConfig,
    log: RaftLog,
    snapshots: SnapshotFolder,
    base: OffsetAndEpoch | None,
    newest: OffsetAndEpoch | None,
) -> VoterHistory:
    """Who votes, from the snapshot the log starts at and every control record since.

    When that snapshot is damaged, the newest does: what came before it is committed and will not be asked for again.
    """
    given = config.configuration
    try:
        named = None if base is None else snapshots.configuration(base)
    except CorruptBatch as error:
        if newest is None or base == newest:
            raise StorageFailure(
                f"{config.folder}: nobody can tell who votes, the snapshot {base} is damaged ({error}); "
                "restore its files, or let this member begin anew without them"
            ) from error
        base, named = newest, snapshots.configuration(newest)
    start = log.start_offset if base is None else base.offset
    found = VoterHistory(given if named is None else named.apply_to(given), start - 1)
    for view in _whole_batches(config.folder, log):
        if view.is_control and view.base_offset >= start and (change := read_voter_change(view)) is not None:
            found.append(view.base_offset, change)
    return found


def _whole_batches(folder: str, log: RaftLog) -> Iterator[BatchView]:
    """Every batch of the log, after a look whether it is what was written.

    Opening a log takes on trust what was durable when it was last open. A member of the quorum may not: by its epochs
    and its end it is judged who may lead, and what it says is committed nobody compares with anything. The log is short
    (snapshots see to that), so all of it is read: StorageFailure when checksums, offsets or epochs do not hold.
    """
    offset = log.start_offset
    epochs: list[tuple[int, int]] = []
    while offset < log.end_offset:
        begin = offset
        try:
            for view in iter_batches(log.read(offset, SCAN_BYTES), allow_incomplete_tail=True):
                view.check_crc()
                if view.next_offset <= offset:
                    continue
                if view.base_offset > offset or (epochs and view.leader_epoch < epochs[-1][0]):
                    raise CorruptBatch(f"offset {view.base_offset} of epoch {view.leader_epoch} does not follow")
                if not epochs or view.leader_epoch > epochs[-1][0]:
                    epochs.append((view.leader_epoch, offset))
                offset = view.next_offset
                yield view
            if offset == begin:
                raise CorruptBatch("there is no whole batch")
        except (CorruptBatch, OSError) as error:
            raise _damaged(folder, offset, error) from error
    if epochs and tuple(epochs) != log.epochs():
        raise _damaged(folder, log.start_offset, f"its epochs are {epochs}, but {log.epochs()} were noted")


def _damaged(folder: str, offset: int, reason: object) -> StorageFailure:
    return StorageFailure(
        f"{folder}: the log of the metadata is damaged at offset {offset}: {reason}; see `klamm storage check`, "
        "restore its files, or let this member begin anew without them"
    )


def _contains(log: RaftLog, snapshot_id: OffsetAndEpoch) -> bool:
    """Whether the log goes through a snapshot; one fetched from a leader may be ahead of it, or contradict it."""
    if not log.start_offset < snapshot_id.offset <= log.end_offset:
        return log.start_offset == snapshot_id.offset
    written_in = [epoch for epoch, start in log.epochs() if start < snapshot_id.offset]
    return bool(written_in) and written_in[-1] == snapshot_id.epoch
