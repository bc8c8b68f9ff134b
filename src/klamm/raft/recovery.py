"""What a member finds on its disk at start: its vote, its newest whole snapshot, its log, and how they fit together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from klamm.model.errors import StorageFailure
from klamm.raft.batches import read_configuration
from klamm.raft.config import RaftConfig
from klamm.raft.configuration import Configuration, ConfigurationLog
from klamm.raft.disk_log import DiskRaftLog
from klamm.raft.log import RaftLog
from klamm.raft.messages import OffsetAndEpoch
from klamm.raft.positions import LogPositions
from klamm.raft.quorum_state import QuorumStateFile
from klamm.raft.snapshot import SnapshotFolder
from klamm.raft.state import ElectionState
from klamm.records.batch import iter_batches
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
    configurations: ConfigurationLog
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
    base_id = next((known for known in ids if known == base), newest)
    configurations = _read_configurations(config.configuration, log, snapshots, base_id)
    return Storage(log, snapshots, quorum_state, election, positions, configurations, snapshot)


def _read_configurations(
    given: Configuration, log: RaftLog, snapshots: SnapshotFolder, base: OffsetAndEpoch | None
) -> ConfigurationLog:
    """Who votes, from the snapshot the log starts at and every control record since."""
    named = None if base is None else snapshots.configuration(base)
    start = log.start_offset if base is None else base.offset
    found = ConfigurationLog(given if named is None else named.apply_to(given), start - 1)
    offset = start
    while offset < log.end_offset and (data := log.read(offset, SCAN_BYTES)):
        for view in iter_batches(data, allow_incomplete_tail=True):
            if view.is_control and view.base_offset >= offset and (change := read_configuration(view)) is not None:
                found.append(view.base_offset, change)
            offset = max(offset, view.next_offset)
    return found


def _contains(log: RaftLog, snapshot_id: OffsetAndEpoch) -> bool:
    """Whether the log goes through a snapshot; one fetched from a leader may be ahead of it, or contradict it."""
    if not log.start_offset < snapshot_id.offset <= log.end_offset:
        return log.start_offset == snapshot_id.offset
    written_in = [epoch for epoch, start in log.epochs() if start < snapshot_id.offset]
    return bool(written_in) and written_in[-1] == snapshot_id.epoch
