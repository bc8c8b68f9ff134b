"""One partition on this node: its log, its place in the cluster, and the requests that wait on it."""

from collections import deque
from typing import TYPE_CHECKING

from klamm.metadata.image import ClusterImage
from klamm.model.errors import ErrorCode
from klamm.replication.partition import PartitionState
from klamm.replication.settings import TopicSettings
from klamm.replication.waiters import FetchWaiter, PendingAppend, QuickAck
from klamm.storage import Log
from klamm.storage.config import MAX_LONG

if TYPE_CHECKING:
    from klamm.replication.followers import FollowedPartition


class Replica:
    """Joins a log with its partition's state. `leads` and the epoch are kept as plain attributes for the hot path."""

    __slots__ = (
        "ack_waiters",
        "appends",
        "awaits_sync",
        "commits_alone",
        "commits_inline",
        "counted_end",
        "dirty",
        "fetch_waiters",
        "followed",
        "index",
        "leader_epoch",
        "leads",
        "log",
        "min_insync_replicas",
        "quick",
        "quick_acks",
        "quick_all",
        "quick_replies",
        "retired",
        "settings",
        "state",
        "topic",
        "topic_id",
        "unsynced",
    )

    def __init__(self, node_id: int, topic: str, topic_id: bytes, index: int, log: Log) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.state = PartitionState(node_id, high_watermark=log.high_watermark)
        self.settings = TopicSettings()
        self.leads = False
        self.leader_epoch = -1
        self.min_insync_replicas = 1
        self.retired = False
        """Whether this node has let go of the partition."""
        self.counted_end = log.log_end_offset
        """What counts of the leader's own log: all of it, or with flush.messages what the device has."""
        self.commits_inline = False
        """Whether acks=all is satisfied by this node's own write: it is alone in sync and min.insync.replicas is 1."""
        self.quick = False
        """Whether a Produce may be answered from a template: this node leads and timestamps are the producer's."""
        self.quick_all = False
        """Whether a Produce with acks=all may be, once the others in sync have its records too."""
        self.commits_alone = False
        """Whether what is written is committed: this node leads and nobody else is in sync."""
        self.dirty = False
        self.quick_replies: list[tuple[bytearray | None, int, object]] = []
        """Replies made before their write: (bytes, where the error code stands, the connection)."""
        self.quick_acks: deque[QuickAck] = deque()
        """Replies to acks=all that wait for the high watermark, by the offset they need."""
        self.appends: list[PendingAppend] = []
        self.awaits_sync = False
        """Whether flush.messages is set: an append may have to be on the device before it counts."""
        self.unsynced: list[PendingAppend] = []
        """Written, but not yet on the device."""
        self.ack_waiters: dict[PendingAppend, None] = {}
        self.fetch_waiters: dict[FetchWaiter, None] = {}
        self.followed: list[FollowedPartition] = []
        """The places of this partition in followers' fetch sessions."""

    def __repr__(self) -> str:
        return f"Replica({self.topic}-{self.index}, leader {self.state.leader} epoch {self.leader_epoch})"

    def configure(self, settings: TopicSettings) -> None:
        """The topic's settings are now these."""
        if self.log.config != settings.log:
            self.log.config = settings.log
        self.settings = settings
        self.min_insync_replicas = settings.min_insync_replicas
        self.state.min_insync_replicas = settings.min_insync_replicas
        self.refresh()

    def refresh(self) -> None:
        """Copy what the hot path looks at out of the state."""
        state = self.state
        self.leads = state.is_leader and not self.retired
        self.leader_epoch = state.leader_epoch
        self.awaits_sync = self.log.config.flush_messages < MAX_LONG
        self.quick = self.leads and not self.log.config.log_append_time and not self.awaits_sync
        self.commits_alone = self.leads and state.alone_in_sync
        self.commits_inline = self.commits_alone and state.required_in_sync <= 1
        self.quick_all = self.quick and not state.under_min_isr

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest known epoch up to `epoch`; (-1, -1) when that cannot be said.

        The epoch in which this node leads counts from its first moment, though the log learns of it with its first
        batch.
        """
        log = self.log
        if self.leads:
            if epoch == self.leader_epoch:
                return epoch, log.log_end_offset
            latest = log.leader_epochs.latest
            if latest < self.leader_epoch and latest <= epoch < self.leader_epoch:
                return (latest if latest >= 0 else epoch), self.state.epoch_start_offset
        return log.end_offset_for_epoch(epoch)

    def low_watermark(self, cluster: ClusterImage) -> int:
        """The smallest log start among this leader and its live followers: nothing before it can come back."""
        starts = [self.log.log_start_offset]
        for follower, progress in self.state.followers.items():
            broker = cluster.get(follower)
            if broker is not None and not broker.fenced:
                starts.append(progress.log_start_offset)
        return min(starts)

    def tell_followers(self) -> None:
        """Something followers must know has changed, and it is no append: answer their fetches now."""
        for followed in list(self.followed):
            followed.touch()
            if followed.session.parked is not None:
                followed.session.parked(True)

    def retire(self) -> None:
        """This node holds the partition no longer: everybody who waits is told."""
        self.retired = True
        self.leads = False
        self.quick = self.quick_all = False
        self.commits_alone = self.commits_inline = False
        self.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for waiter in list(self.fetch_waiters):
            waiter.look_again()

    def fail_waiters(self, error: ErrorCode) -> None:
        """Whoever waits for acknowledgement will not get it from here."""
        unsynced, self.unsynced = self.unsynced, []
        for pending in unsynced:
            pending.settle(error)
        self.fail_acks(error)

    def fail_acks(self, error: ErrorCode) -> None:
        """Whoever waits for the others in sync waits in vain."""
        waiting, self.ack_waiters = self.ack_waiters, {}
        for pending in waiting:
            pending.settle(error)
        acks, self.quick_acks = self.quick_acks, deque()
        for ack in acks:
            ack.fail(error)

    def advance(self, high_watermark: int) -> None:
        """The high watermark has moved: release those whose records are committed."""
        self.log.advance_high_watermark(high_watermark)
        for followed in self.followed:
            followed.session.changed[followed] = None
        self.release(high_watermark)

    def release(self, high_watermark: int) -> None:
        """Answer acks=all up to the high watermark; too late is said as such when too few are in sync by now."""
        acks = self.quick_acks
        if not acks and not self.ack_waiters:
            return
        error = ErrorCode.NONE
        if len(self.state.maximal_isr) < self.state.required_in_sync:
            error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        while acks and acks[0].required_offset <= high_watermark:
            ack = acks.popleft()
            if error:
                ack.fail(error)
            else:
                ack.send()
        if self.ack_waiters:
            for pending in [p for p in self.ack_waiters if p.required_offset <= high_watermark]:
                del self.ack_waiters[pending]
                pending.settle(error)

    def expire_quick_acks(self, now_ms: int) -> None:
        """Tell those whose time is up that it is; their records stay."""
        if self.quick_acks and any(ack.deadline_ms <= now_ms for ack in self.quick_acks):
            kept = deque[QuickAck]()
            for ack in self.quick_acks:
                if ack.deadline_ms <= now_ms:
                    ack.fail(ErrorCode.REQUEST_TIMED_OUT)
                else:
                    kept.append(ack)
            self.quick_acks = kept
