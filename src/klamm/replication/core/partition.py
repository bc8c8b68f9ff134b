"""Leadership, ISR and high watermark of one partition, as one of its replicas has them. Pure: numbers in, numbers out.

The leader's high watermark is the smallest log end among the in-sync replicas; it never goes back while one replica
leads. Epochs order leaders: a request that names an older epoch comes from a client or replica that missed a
change (fenced), a newer epoch from one that has applied a change this replica has not.

Three sets of followers hold the high watermark back: those in sync, those proposed to the controller and not decided
yet (whichever way it decides, nothing was committed without them), and those about to join: without waiting for them a
busy leader that is alone would always be ahead of the followers that could join.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from klamm.metadata.image import PartitionImage
from klamm.model.errors import ErrorCode


@dataclass(slots=True)
class FollowerProgress:
    """How far a follower has come, by the offsets it fetches from."""

    log_end_offset: int = -1
    log_start_offset: int = -1
    broker_epoch: int = -1
    """The broker epoch of the follower's latest fetch; -1 before the first."""
    last_fetch_ms: int = -1
    last_leader_end: int = -1
    """Where the leader's log ended when the follower last fetched."""
    caught_up_ms: int = -1
    """When the follower last had everything the leader had."""

    def on_fetch(self, offset: int, leader_end: int, now_ms: int) -> None:
        """Note a fetch from `offset`: the follower has all before it."""
        if offset >= leader_end:
            self.caught_up_ms = now_ms
        elif offset >= self.last_leader_end >= 0:
            # It has all the leader had at its previous fetch, so it was caught up then, as Kafka counts.
            self.caught_up_ms = max(self.caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = offset
        self.last_leader_end = leader_end
        self.last_fetch_ms = now_ms

    def is_caught_up(self, leader_end: int, now_ms: int, lag_ms: int) -> bool:
        """Whether it has everything, or had it not long ago."""
        return self.log_end_offset >= leader_end or (self.caught_up_ms >= 0 and now_ms - self.caught_up_ms <= lag_ms)


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
    min_insync_replicas: int = 1
    lag_ms: int = 30_000
    """How long a follower may be behind and still count as in sync."""
    epoch_start_offset: int = 0
    """Where the log ended when this node became leader; a follower that has less cannot join."""
    in_sync_until_ms: int = -1
    """Until then no replica in sync was behind: the leader had just begun, or all of them had everything."""
    followers: dict[int, FollowerProgress] = field(default_factory=dict)
    proposed: tuple[int, ...] | None = None
    """The ISR that was proposed to the controller and is not decided on."""
    _joining: set[int] = field(default_factory=set)
    _counted: tuple[FollowerProgress, ...] = ()

    @property
    def is_leader(self) -> bool:
        """Whether this node leads."""
        return self.leader == self.node_id

    @property
    def alone_in_sync(self) -> bool:
        """Whether an append of the leader is committed as soon as it is written."""
        return self.isr == (self.node_id,) and not self._counted and not self.under_min_isr

    @property
    def required_in_sync(self) -> int:
        """How many replicas an acks=all write needs; never more than there are."""
        return min(self.min_insync_replicas, len(self.replicas))

    @property
    def under_min_isr(self) -> bool:
        """Whether too few are in sync; nothing becomes visible then (KIP-966)."""
        return len(self.isr) < self.required_in_sync

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """In-sync replicas, whether decided or proposed (KIP-497: the leader counts both until it is decided)."""
        return self.isr if self.proposed is None else tuple(dict.fromkeys((*self.isr, *self.proposed)))

    def apply(self, image: PartitionImage, log_end_offset: int = 0, now_ms: int = -1) -> bool:
        """Take over the partition's metadata; True when a new leader epoch has begun."""
        if image.partition_epoch < self.partition_epoch:
            return False
        new_epoch = image.leader_epoch > self.leader_epoch
        # A newer partition epoch decides the proposal, whichever way: the controller refuses one made under the old.
        if new_epoch or image.partition_epoch > self.partition_epoch:
            self.proposed = None
        self.leader = image.leader
        self.leader_epoch = image.leader_epoch
        self.partition_epoch = image.partition_epoch
        self.replicas = image.replicas
        self.isr = image.isr
        if not self.is_leader:
            self.followers.clear()
            self._joining.clear()
        else:
            if new_epoch:
                self.epoch_start_offset = log_end_offset
                self.in_sync_until_ms = now_ms
            # Offsets of followers under an earlier epoch prove nothing: their logs may be truncated since.
            known = {} if new_epoch else self.followers
            others = (replica for replica in image.replicas if replica != self.node_id)
            self.followers = {replica: known.get(replica) or FollowerProgress() for replica in others}
            self._joining = set() if new_epoch else self._joining & set(self.followers)
        self._recount()
        return new_epoch

    def on_local_append(self, log_end_offset: int) -> int:
        """Return the high watermark after the leader's log has grown to `log_end_offset`."""
        if self.leader == self.node_id and not self.under_min_isr:
            reached = log_end_offset
            for follower in self._counted:
                if follower.log_end_offset < reached:  # noqa: PLR1730 - a call per follower and append costs more
                    reached = follower.log_end_offset
            # Never back: a follower that restarted fetches from an earlier offset, and consumers have read beyond it.
            self.high_watermark = max(self.high_watermark, reached)
        return self.high_watermark

    def on_follower_fetch(
        self,
        replica_id: int,
        fetch_offset: int,
        log_end_offset: int,
        now_ms: int,
        *,
        leader_end: int | None = None,
        log_start_offset: int = -1,
        broker_epoch: int = -1,
        eligible: bool = False,
    ) -> int:
        """Return the high watermark after a follower has fetched from `fetch_offset`, so has all before it.

        `log_end_offset` is what counts of the leader's own log; `leader_end` where it ends, if that is further.
        `eligible` says whether the controller would let the follower join.
        """
        progress = self.followers.get(replica_id)
        if progress is not None:
            end = log_end_offset if leader_end is None else leader_end
            progress.on_fetch(fetch_offset, end, now_ms)
            progress.log_start_offset = log_start_offset
            progress.broker_epoch = broker_epoch
            if replica_id not in self.isr:
                # By time and not by offset: a follower of a busy leader is always some batches behind.
                self._join(replica_id, eligible and progress.is_caught_up(end, now_ms, self.lag_ms))
        return self.on_local_append(log_end_offset)

    # In-sync replicas

    def may_join(self, replica_id: int) -> bool:
        """Whether a follower has everything that is committed, and this leader's beginning."""
        progress = self.followers.get(replica_id)
        return (
            progress is not None
            and self.is_leader
            # One proposal at a time: the partition epoch it names would be outdated by the other.
            and self.proposed is None
            and replica_id not in self.isr
            and progress.log_end_offset >= max(self.high_watermark, self.epoch_start_offset)
        )

    def laggards(self, log_end_offset: int, now_ms: int) -> list[int]:
        """In-sync followers that have been behind for too long."""
        if not self.is_leader or self.proposed is not None:
            return []
        behind = []
        for replica_id in self.isr:
            progress = self.followers.get(replica_id)
            if progress is None or progress.log_end_offset >= log_end_offset:
                continue
            # A new leader has no fetch of any follower yet: lag counts from its election at the earliest.
            if now_ms - max(progress.caught_up_ms, self.in_sync_until_ms) > self.lag_ms:
                behind.append(replica_id)
        return behind

    def propose(self, isr: Iterable[int]) -> None:
        """Note that this ISR is proposed to the controller; until it is decided, all of its members count."""
        self.proposed = tuple(isr)
        self._recount()

    def withdraw(self) -> None:
        """Drop the proposal: the controller refused it, or its response is lost. The decided ISR counts."""
        self.proposed = None
        self._recount()

    def reconsider(self, log_end_offset: int, now_ms: int, eligible: Callable[[int, int], bool]) -> bool:
        """Stop counting followers that were to join but have fallen behind or are gone; True if there were any."""
        before = len(self._joining)
        for replica_id in list(self._joining):
            progress = self.followers[replica_id]
            current = progress.is_caught_up(log_end_offset, now_ms, self.lag_ms)
            if not current or not eligible(replica_id, progress.broker_epoch):
                self._join(replica_id, False)
        return len(self._joining) < before

    def _join(self, replica_id: int, joins: bool) -> None:
        if joins != (replica_id in self._joining):
            (self._joining.add if joins else self._joining.discard)(replica_id)
            self._recount()

    def _recount(self) -> None:
        self._joining.difference_update(self.isr)
        counted = {*self.isr, *(self.proposed or ()), *self._joining} if self.is_leader else ()
        self._counted = tuple(self.followers[r] for r in counted if r in self.followers)

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
