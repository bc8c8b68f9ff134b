"""A partition on this node: its log, its state in the cluster, and the requests that wait on it."""

from typing import TYPE_CHECKING

from klamm.metadata.image import ClusterImage
from klamm.model.errors import ErrorCode
from klamm.replication.core.acknowledgements import Acknowledgements
from klamm.replication.core.partition import PartitionState
from klamm.replication.delayed_fetch import DelayedFetch
from klamm.replication.settings import TopicSettings
from klamm.storage import Log
from klamm.storage.config import MAX_LONG

if TYPE_CHECKING:
    from klamm.replication.follower_sessions import FollowedPartition


class Replica:
    """Joins a log with its partition's state. `leads` and the epoch are kept as plain attributes for the hot path."""

    __slots__ = (
        "acknowledged_end_offset",
        "acknowledgements",
        "awaits_sync",
        "bytes_out",
        "can_encode_reply_before_write",
        "commits_alone",
        "delayed_fetches",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "followed",
        "has_staged",
        "index",
        "leader_epoch",
        "leader_high_watermark",
        "leads",
        "log",
        "min_insync_replicas",
        "produces",
        "quick_produces",
        "retired",
        "settings",
        "state",
        "topic",
        "topic_id",
        "under_min_isr",
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
        """Whether this node no longer has a replica of the partition."""
        self.acknowledged_end_offset = log.log_end_offset
        """What counts of the leader's own log: all of it, or with flush.messages what the device has."""
        self.has_staged = False
        """Whether something was staged since the last write; a duplicate counts, for its reply waits too."""
        self.acknowledgements = Acknowledgements()
        self.delayed_fetches: dict[DelayedFetch, None] = {}
        self.followed: list[FollowedPartition] = []
        """This partition's entries in followers' fetch sessions."""
        # Counts since this replica was made:
        self.produces = 0
        """Batches of producers that were appended, without those of `quick_produces`."""
        self.quick_produces = 0
        """Requests that took the quick path of Produce: one batch each."""
        self.failed_produces = 0
        self.fetches = 0
        """Reads for consumers."""
        self.failed_fetches = 0
        self.leader_high_watermark = 0
        """As of the last response to a follower's fetch."""
        self.bytes_out = 0
        """Bytes of records in responses to consumers."""
        # Derived from state and settings by `refresh`, for the hot path:
        self.under_min_isr = False
        """Whether acks=all is refused with NOT_ENOUGH_REPLICAS."""
        self.commits_alone = False
        """Whether what is written is committed: this node leads and no other replica is in sync."""
        self.awaits_sync = False
        """Whether flush.messages is set: an append may have to be on the device before it counts."""
        self.can_encode_reply_before_write = False
        """Whether the reply to an append can be encoded before the write: its time is the producer's, and no sync has
        to come first."""

    def __repr__(self) -> str:
        return f"Replica({self.topic}-{self.index}, leader {self.state.leader} epoch {self.leader_epoch})"

    def configure(self, settings: TopicSettings) -> None:
        """Take over the topic's settings."""
        # Only if they differ: assigning derives the limits of the append path again, and metadata comes often.
        if self.log.config != settings.log:
            self.log.config = settings.log
        self.settings = settings
        self.min_insync_replicas = settings.min_insync_replicas
        self.state.min_insync_replicas = settings.min_insync_replicas
        self.refresh()

    def refresh(self) -> None:
        """Derive what the hot path looks at from state and settings; called after every change of either."""
        state = self.state
        # A request that began before the replica was removed may still hold it.
        self.leads = state.is_leader and not self.retired
        self.leader_epoch = state.leader_epoch
        self.under_min_isr = state.under_min_isr
        self.commits_alone = self.leads and state.alone_in_sync
        self.awaits_sync = self.log.config.flush_messages < MAX_LONG
        self.can_encode_reply_before_write = self.leads and not self.log.config.log_append_time and not self.awaits_sync

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest known epoch up to `epoch`; (-1, -1) when it is not known.

        The epoch in which this node leads counts from its election, though the log has it only with its first batch.
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
        """The smallest log start among this leader and its live followers, which DeleteRecords waits for."""
        starts = [self.log.log_start_offset]
        for follower, progress in self.state.followers.items():
            broker = cluster.get(follower)
            # As in Kafka: DeleteRecords does not wait for a fenced broker, which gets the log start when it is back.
            if broker is not None and not broker.fenced:
                starts.append(progress.log_start_offset)
        return min(starts)

    def complete_follower_fetches(self) -> None:
        """Answer the fetches of followers now, after a change other than an append: of the log start."""
        for followed in list(self.followed):
            followed.touch()
            if followed.session.try_complete_fetch is not None:
                followed.session.try_complete_fetch(force=True)

    def retire(self) -> None:
        """End all waiting requests of a partition that was removed from this node."""
        self.retired = True
        self.leads = self.can_encode_reply_before_write = self.commits_alone = False
        self.acknowledgements.fail_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for delayed_fetch in list(self.delayed_fetches):
            delayed_fetch.try_complete()

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Move the high watermark of the log and complete the replies it has reached."""
        self.log.advance_high_watermark(high_watermark)
        for followed in self.followed:
            followed.session.changed[followed] = None
        self.acknowledge_committed(high_watermark)

    def acknowledge_committed(self, high_watermark: int) -> None:
        """Complete acks=all up to the high watermark; fail it if fewer than min.insync.replicas are in sync now."""
        waiting = self.acknowledgements.until_committed
        if not waiting or waiting[0].required_offset > high_watermark:
            return
        error = ErrorCode.NONE
        # As in Kafka, checked again at the end: the ISR may have shrunk since the append was accepted.
        if len(self.state.maximal_isr) < self.state.required_in_sync:
            error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        self.acknowledgements.on_committed(high_watermark, error)
