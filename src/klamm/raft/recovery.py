"""Opening a member's files at start: its vote, its newest valid snapshot and its log, checked against each other."""

from collections.abc import Iterator
from dataclasses import dataclass

from klamm.model.errors import CorruptBatch, StorageFailure
from klamm.raft.codec.batches import read_voter_change
from klamm.raft.config import RaftConfig
from klamm.raft.core.log_positions import LogPositions
from klamm.raft.core.messages import OffsetAndEpoch
from klamm.raft.core.roles import ElectionState
from klamm.raft.core.voter_history import VoterHistory
from klamm.raft.disk_log import DiskRaftLog
from klamm.raft.quorum_state import QuorumStateFile
from klamm.raft.snapshot_folder import SnapshotFolder
from klamm.records.batch import BatchView, iter_batches
from klamm.storage.disk import Disk

SCAN_BYTES = 1024 * 1024


@dataclass(slots=True)
class RaftStorage:
    """The open files of one replica, and the state read from them."""

    log: DiskRaftLog
    snapshots: SnapshotFolder
    quorum_state: QuorumStateFile
    election: ElectionState
    positions: LogPositions
    voter_history: VoterHistory
    snapshot: tuple[OffsetAndEpoch, list[bytes]] | None


def open_storage(config: RaftConfig, disk: Disk, now_ms: int) -> RaftStorage:
    """Open all files, and check that log and snapshot join.

    Raise StorageFailure when a part of the history is missing or damaged.
    """
    # The metadata log has SCRAM keys and private keys of listeners: its folder is the owner's alone.
    disk.makedirs(config.folder, mode=0o700, exist_ok=True)
    snapshots = SnapshotFolder(config.folder, disk)
    snapshots.remove_partial()
    ids = snapshots.ids()
    snapshot = snapshots.latest_valid()
    newest = snapshot[0] if snapshot else None
    quorum_state = QuorumStateFile(config.folder, disk)
    election = quorum_state.read()
    # With two snapshots the log starts at the older one; what a snapshot contains was synced before it was taken.
    start_offset, recovery_point = ids[0].offset if len(ids) > 1 else 0, newest.offset if newest else 0
    log = DiskRaftLog.open(config, disk, now_ms, start_offset, recovery_point)
    if newest is not None and not _contains(log, newest):
        # A crash between the arrival of a leader's snapshot and the reset of the log: the snapshot is newer.
        log.start_at(newest.offset)
    if log.start_offset > recovery_point:
        raise StorageFailure(f"{config.folder}: the log starts at {log.start_offset}, no valid snapshot precedes it")
    # What was read counts as persisted from now on, so it has to be.
    log.flush()
    base = next(
        (snapshot_id for snapshot_id in ids if snapshot_id.offset == log.start_offset),
        OffsetAndEpoch(log.start_offset, 0),
    )
    positions = LogPositions(base, log.end_offset, log.epochs(), newest)
    voter_history = _read_voter_history(config, log, snapshots, base if base in ids else newest, newest)
    return RaftStorage(log, snapshots, quorum_state, election, positions, voter_history, snapshot)


def _read_voter_history(
    config: RaftConfig,
    log: DiskRaftLog,
    snapshots: SnapshotFolder,
    base: OffsetAndEpoch | None,
    newest: OffsetAndEpoch | None,
) -> VoterHistory:
    """The voters of the snapshot at which the log starts, and every change since.

    When that snapshot is damaged, the newest one serves: voters before it are committed and not needed any more.
    """
    initial = config.initial_voters
    try:
        named = None if base is None else snapshots.read_voter_change(base)
    except CorruptBatch as error:
        if newest is None or base == newest:
            raise StorageFailure(
                f"{config.folder}: the voters are unknown, because snapshot {base} is damaged ({error}); "
                "restore its files, or let this member start without them"
            ) from error
        base, named = newest, snapshots.read_voter_change(newest)
    start = log.start_offset if base is None else base.offset
    history = VoterHistory(initial if named is None else named.apply_to(initial), start - 1)
    for view in _verified_batches(config.folder, log):
        if view.is_control and view.base_offset >= start and (change := read_voter_change(view)) is not None:
            history.append(view.base_offset, change)
    return history


def _verified_batches(folder: str, log: DiskRaftLog) -> Iterator[BatchView]:
    """Every batch of the log, its checksum, offset and epoch verified; StorageFailure when one is damaged.

    Opening a partition log trusts what was durable when it was closed. A member of the quorum must not: elections are
    decided by the end and the epochs of its log, and no other copy is compared with what it calls committed. Snapshots
    keep this log short enough to read all of it.
    """
    offset = log.start_offset
    epochs: list[tuple[int, int]] = []
    while offset < log.end_offset:
        begin = offset
        try:
            for view in iter_batches(log.read(offset, SCAN_BYTES), allow_incomplete_tail=True):
                view.check_crc()
                if view.next_offset <= offset:
                    continue  # a read starts at a batch boundary, which may lie before the log start
                if view.base_offset > offset or (epochs and view.leader_epoch < epochs[-1][0]):
                    raise CorruptBatch(
                        f"offset {view.base_offset} of epoch {view.leader_epoch} where offset {offset} was expected"
                    )
                if not epochs or view.leader_epoch > epochs[-1][0]:
                    epochs.append((view.leader_epoch, offset))
                offset = view.next_offset
                yield view
            if offset == begin:
                raise CorruptBatch(f"no complete batch at offset {offset}")
        except (CorruptBatch, OSError) as error:
            raise _damage_error(folder, offset, error) from error
    if epochs and tuple(epochs) != log.epochs():
        reason = f"its epochs are {epochs}, but the leader epoch checkpoint has {log.epochs()}"
        raise _damage_error(folder, log.start_offset, reason)


def _damage_error(folder: str, offset: int, reason: object) -> StorageFailure:
    return StorageFailure(
        f"{folder}: the metadata log is damaged at offset {offset}: {reason}; see `klamm storage check`, "
        "restore its files, or let this member start without them"
    )


def _contains(log: DiskRaftLog, snapshot_id: OffsetAndEpoch) -> bool:
    """Whether the snapshot is a prefix of the log; one fetched from a leader may be ahead of it or contradict it."""
    if not log.start_offset < snapshot_id.offset <= log.end_offset:
        return log.start_offset == snapshot_id.offset
    epochs = [epoch for epoch, start in log.epochs() if start < snapshot_id.offset]
    return bool(epochs) and epochs[-1] == snapshot_id.epoch
