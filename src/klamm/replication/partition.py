"""What one replica knows of its partition's place in the cluster: pure, numbers in, numbers out.

The leader's high watermark is the smallest log end among the in-sync replicas; it never goes back while one replica
leads. Epochs order leaders: a request that names an older one comes from somebody who missed a change (fenced), a newer
one from somebody who knows of a change this replica has not seen yet.
"""

from dataclasses import dataclass, field

from klamm.metadata.image import PartitionImage
from klamm.model.errors import ErrorCode


@dataclass(slots=True)
class FollowerProgress:
    """How far a follower has come, as its fetches tell."""

    log_end_offset: int = -1
    log_start_offset: int = -1
    last_fetch_ms: int = -1


@dataclass(slots=True)
class PartitionState:
    """Leadership, in-sync replicas and high watermark of one partition, seen from `node_id`."""

    node_id: int
    leader: int = -1
    leader_epoch: int = -1
    partition_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    high_watermark: int = 0
    followers: dict[int, FollowerProgress] = field(default_factory=dict)

    @property
    def is_leader(self) -> bool:
        """Whether this node leads."""
        return self.leader == self.node_id

    @property
    def alone_in_sync(self) -> bool:
        """Whether an append of the leader is committed as soon as it is written."""
        return self.isr == (self.node_id,)

    def apply(self, image: PartitionImage) -> bool:
        """Take over what the metadata log says; True when a new leader epoch has begun."""
        if image.partition_epoch < self.partition_epoch:
            return False
        new_epoch = image.leader_epoch > self.leader_epoch
        self.leader = image.leader
        self.leader_epoch = image.leader_epoch
        self.partition_epoch = image.partition_epoch
        self.replicas = image.replicas
        self.isr = image.isr
        if not self.is_leader:
            self.followers.clear()
        else:
            known = {} if new_epoch else self.followers
            others = (replica for replica in image.replicas if replica != self.node_id)
            self.followers = {replica: known.get(replica) or FollowerProgress() for replica in others}
        return new_epoch

    def on_local_append(self, log_end_offset: int) -> int:
        """The leader's log has grown to `log_end_offset`; the high watermark that follows."""
        if self.is_leader:
            if self.alone_in_sync:
                reached = log_end_offset
            else:
                ends = [self.followers[r].log_end_offset for r in self.isr if r in self.followers]
                reached = min([log_end_offset, *ends])
            self.high_watermark = max(self.high_watermark, reached)
        return self.high_watermark

    def on_follower_fetch(self, replica_id: int, fetch_offset: int, log_end_offset: int, now_ms: int) -> int:
        """A follower asks from `fetch_offset`, so it has all before it; the high watermark that follows."""
        progress = self.followers.get(replica_id)
        if progress is not None:
            progress.log_end_offset = fetch_offset
            progress.last_fetch_ms = now_ms
        return self.on_local_append(log_end_offset)

    def check_leader_epoch(self, current_leader_epoch: int) -> ErrorCode:
        """Compare the epoch a request names (-1: none) with ours."""
        if current_leader_epoch in (-1, self.leader_epoch):
            return ErrorCode.NONE
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    def check(self) -> None:
        """Raise AssertionError when the parts disagree."""
        assert set(self.isr) <= set(self.replicas), "isr outside replicas"
        assert not self.is_leader or self.node_id in self.isr, "the leader is not in sync with itself"
        assert self.high_watermark >= 0
