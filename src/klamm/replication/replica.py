"""This node's replica of one partition: its log, its place in the cluster, and who waits on it."""

from klamm.model.errors import ErrorCode
from klamm.replication.partition import PartitionState
from klamm.replication.settings import TopicSettings
from klamm.replication.waiters import FetchWaiter, PendingAppend
from klamm.storage import Log
from klamm.storage.config import MAX_LONG


class Replica:
    """Joins a log with its partition's state. `leads` and the epoch are kept as plain attributes for the hot path."""

    __slots__ = (
        "ack_waiters",
        "appends",
        "awaits_sync",
        "commits_alone",
        "commits_inline",
        "dirty",
        "fetch_waiters",
        "index",
        "leader_epoch",
        "leads",
        "log",
        "min_insync_replicas",
        "quick",
        "quick_replies",
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
        self.leads = False
        self.leader_epoch = -1
        self.min_insync_replicas = 1
        self.commits_inline = False
        """Whether acks=all is satisfied by this node's own write: it is alone in sync and min.insync.replicas is 1."""
        self.quick = False
        """Whether a Produce may be answered from a template: this node leads and timestamps are the producer's."""
        self.commits_alone = False
        """Whether what is written is committed: this node leads and nobody else is in sync."""
        self.dirty = False
        self.quick_replies: list[tuple[bytearray | None, int, object]] = []
        """Replies made before their write: (bytes, where the error code stands, the connection)."""
        self.appends: list[PendingAppend] = []
        self.awaits_sync = False
        """Whether flush.messages is set: an append may have to be on the device before it counts."""
        self.unsynced: list[PendingAppend] = []
        """Written, but not yet on the device."""
        self.ack_waiters: dict[PendingAppend, None] = {}
        self.fetch_waiters: dict[FetchWaiter, None] = {}

    def configure(self, settings: TopicSettings) -> None:
        """The topic's settings are now these."""
        if self.log.config != settings.log:
            self.log.config = settings.log
        self.min_insync_replicas = settings.min_insync_replicas
        self.refresh()

    def refresh(self) -> None:
        """Copy what the hot path looks at out of the state."""
        self.leads = self.state.is_leader
        self.leader_epoch = self.state.leader_epoch
        self.awaits_sync = self.log.config.flush_messages < MAX_LONG
        self.quick = self.leads and not self.log.config.log_append_time and not self.awaits_sync
        self.commits_alone = self.leads and self.state.alone_in_sync
        self.commits_inline = self.commits_alone and self.min_insync_replicas <= 1

    def retire(self) -> None:
        """This node holds the partition no longer: everybody who waits is told."""
        self.leads = False
        self.quick = False
        self.commits_alone = self.commits_inline = False
        self.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for waiter in list(self.fetch_waiters):
            waiter.look_again()

    def fail_waiters(self, error: ErrorCode) -> None:
        """Whoever waits for acknowledgement will not get it from here."""
        waiting = [*self.ack_waiters, *self.unsynced]
        self.ack_waiters, self.unsynced = {}, []
        for pending in waiting:
            pending.settle(error)

    def advance(self, high_watermark: int) -> None:
        """The high watermark has moved: release those whose records are committed."""
        self.log.advance_high_watermark(high_watermark)
        if self.ack_waiters:
            for pending in [p for p in self.ack_waiters if p.required_offset <= high_watermark]:
                del self.ack_waiters[pending]
                pending.settle()
