"""Applies a leader's Fetch response to a follower's log: append, truncate, move its offsets. Nothing here waits.

Truncation goes by epochs alone (KIP-101, KIP-279), not by the high watermark, which lags on a follower. The leader
names the last epoch both logs share and where it ends there; what lies beyond was never committed.
"""

from enum import Enum

from klamm.model.errors import CorruptBatch, ErrorCode, KlammError, StorageFailure
from klamm.protocol.messages.fetch import EpochEndOffset, PartitionData
from klamm.replication.manager import ReplicaManager
from klamm.replication.replica import Replica
from klamm.storage import Log
from klamm.telemetry.log import get_logger

log = get_logger("replication")


class Applied(Enum):
    """The effect of a partition's part of a response."""

    NOTHING = "no news, or none that moved an end of the log"
    MOVED = "an end of the log is elsewhere"
    OUT_OF_RANGE = "the leader does not have the fetch offset"
    FAILED = "failed, to be retried after a pause"
    LOST = "the log here takes no appends any more"


def apply_fetched_partition(replicas: ReplicaManager, replica: Replica, data: PartitionData) -> Applied:
    """Apply the leader's response for a partition to its replica here."""
    code = data.error_code
    if code:
        return _apply_refusal(replica, ErrorCode(code))
    # Before the offsets: below the leader's high watermark this log may hold other records than the leader.
    if data.diverging_epoch is not None and data.diverging_epoch.end_offset >= 0:
        try:
            truncate(replica, data.diverging_epoch)
        except StorageFailure as failure:
            log.warning("truncation failed", partition=_name(replica), reason=failure.message)
            return Applied.LOST if replica.log.failed else Applied.FAILED
        return Applied.MOVED
    kept = replica.log
    moved = False
    records = data.records
    if records is not None and len(records):
        before = kept.log_end_offset
        try:
            kept.append_as_follower(records)
        except StorageFailure as failure:
            log.warning("append from leader failed", partition=_name(replica), reason=failure.message)
            return Applied.LOST if kept.failed else Applied.FAILED
        # Damaged on the way, or at the leader: the next fetch may bring them undamaged.
        except (CorruptBatch, KlammError) as error:
            log.warning("records from leader cannot be appended", partition=_name(replica), reason=error)
            return Applied.FAILED
        moved = kept.log_end_offset > before
        replicas.replication_bytes_in += len(records)
    # After the append: neither offset may go beyond the end of the log here.
    moved |= follow_offsets(replicas, replica, data)
    return Applied.MOVED if moved else Applied.NOTHING


def follow_offsets(replicas: ReplicaManager, replica: Replica, data: PartitionData) -> bool:
    """Move the high watermark and the log start to the leader's; True when the log start has moved."""
    replica.leader_high_watermark = data.high_watermark
    replicas.advance_follower_high_watermark(replica, data.high_watermark)
    kept = replica.log
    if data.log_start_offset <= kept.log_start_offset:
        return False
    kept.advance_log_start(min(data.log_start_offset, kept.log_end_offset))
    replica.state.high_watermark = kept.high_watermark
    return True  # the next fetch carries it to the leader, where DeleteRecords waits for it


def _apply_refusal(replica: Replica, code: ErrorCode) -> Applied:
    if code is ErrorCode.OFFSET_OUT_OF_RANGE:
        return Applied.OUT_OF_RANGE
    # Expected while leadership moves: the metadata of this node and of the leader change at different times.
    if code not in (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ):
        log.warning("leader refused fetch", partition=_name(replica), reason=code.name)
    return Applied.FAILED


def truncate(replica: Replica, diverging: EpochEndOffset) -> None:
    """Truncate what the leader's history does not have."""
    kept = replica.log
    offset = common_end(kept, diverging.epoch, diverging.end_offset)
    # Expected only after an unclean leader election, which gives up committed records.
    if offset < kept.high_watermark:
        log.warning(
            "truncation below high watermark",
            partition=_name(replica), offset=offset, high_watermark=kept.high_watermark,
        )  # fmt: skip
    log.info(
        "log truncated to leader epoch",
        partition=_name(replica),
        offset=offset,
        end=kept.log_end_offset,
        epoch=diverging.epoch,
    )
    kept.truncate_to(max(offset, kept.log_start_offset))
    _follow_log(replica)


def common_end(kept: Log, epoch: int, end_offset: int) -> int:
    """The offset up to which both logs agree by this response; the next one may name an earlier one."""
    own_epoch, own_end = kept.end_offset_for_epoch(epoch)
    if own_epoch < 0:
        return min(end_offset, kept.log_end_offset)
    # KIP-279: this log never had the leader's epoch, so its own earlier epoch is where they may still agree.
    if own_epoch != epoch:
        return min(own_end, kept.log_end_offset)
    return min(own_end, end_offset, kept.log_end_offset)


def reset_to_leader(replica: Replica, leader_start: int, leader_end: int) -> None:
    """Follow a leader whose log does not contain this log's end: it is shorter, or starts beyond it."""
    kept = replica.log
    # The leader was elected uncleanly, or lost its disk: its log is the partition now.
    if leader_end < kept.log_end_offset:
        log.warning("log truncated to leader end", partition=_name(replica), offset=leader_end)
        kept.truncate_to(max(leader_end, kept.log_start_offset))
    # Retention at the leader passed this replica while it was away; a gap cannot be appended to.
    if leader_start > kept.log_end_offset:
        log.warning("log restarted at leader start", partition=_name(replica), offset=leader_start)
        kept.truncate_fully_and_start_at(leader_start)
    elif leader_start > kept.log_start_offset:
        kept.advance_log_start(leader_start)
    _follow_log(replica)


def _follow_log(replica: Replica) -> None:
    replica.state.high_watermark = replica.log.high_watermark
    replica.acknowledged_end_offset = replica.log.log_end_offset


def _name(replica: Replica) -> str:
    return f"{replica.topic}-{replica.index}"
