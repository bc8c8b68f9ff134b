"""What a follower fetches from one leader: which partitions, from which offsets, and what the next request must name.

Pure. The session at the leader keeps what earlier requests named (KIP-227), so a request names only partitions that
moved, came or go. A partition that fails is left out for a while, and for longer each time.
"""

from collections.abc import Iterable

from klamm.model.ids import TopicIdPartition
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, ReplicaState
from klamm.replication.replica import Replica
from klamm.replication.settings import ReplicationConfig

FIRST_PAUSE_MS = 20
"""A new leader that has not applied its election yet usually does so within a few milliseconds."""

NOT_REQUESTED = -1


class Following:
    """One partition that is copied from the leader."""

    __slots__ = (
        "answered",
        "failures",
        "held",
        "in_session",
        "key",
        "leader_epoch",
        "not_before_ms",
        "replica",
        "request",
    )

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.key: TopicIdPartition = (replica.topic_id, replica.index)
        self.leader_epoch = replica.state.leader_epoch
        self.not_before_ms = -1
        self.failures = 0
        self.in_session = False
        """Whether the leader's session has the partition."""
        self.held = False
        """Whether something must happen here before the next fetch: a sync, or looking up the leader's offsets."""
        self.request = NOT_REQUESTED
        """Number of the latest request that named the partition under this epoch."""
        self.answered = False
        """Whether a request that named it under this epoch was answered."""

    @property
    def current(self) -> bool:
        """Whether the replica still follows under the epoch this was begun with."""
        replica = self.replica
        return not replica.retired and not replica.leads and replica.state.leader_epoch == self.leader_epoch


class FetchPlan:
    """The partitions of one fetcher and its session with the leader."""

    def __init__(self, config: ReplicationConfig) -> None:
        self._config = config
        self.partitions: dict[TopicIdPartition, Following] = {}
        self.session_id = 0
        self._epoch = 0
        self._changed: dict[TopicIdPartition, Following] = {}
        self._forgotten: dict[TopicIdPartition, None] = {}
        self._paused: dict[TopicIdPartition, Following] = {}

    # Which partitions

    def add(self, replica: Replica) -> Following:
        """Fetch a partition from now on, or under a new leader epoch."""
        key = (replica.topic_id, replica.index)
        known = self.partitions.get(key)
        if known is not None and known.replica is replica and known.leader_epoch == replica.state.leader_epoch:
            return known
        # A new object for a new epoch: what is still on its way for the old one finds itself replaced.
        following = self.partitions[key] = Following(replica)
        following.in_session = known.in_session if known is not None else False
        self._paused.pop(key, None)
        self._forgotten.pop(key, None)
        self._changed[key] = following
        return following

    def remove(self, key: TopicIdPartition) -> None:
        """Fetch a partition no longer."""
        gone = self.partitions.pop(key, None)
        if gone is not None:
            self._changed.pop(key, None)
            self._paused.pop(key, None)
            if gone.in_session:
                self._forgotten[key] = None

    def mark_moved(self, following: Following) -> None:
        """Name the partition in the next request, since its log end or start has moved."""
        following.failures = 0
        if self.partitions.get(following.key) is following:
            self._changed[following.key] = following
            self._paused.pop(following.key, None)  # or it would be named a second time when the pause ends

    def pause(self, following: Following, now_ms: int) -> int:
        """Leave a partition out for a while; returns for how long."""
        # 16 doublings are beyond any backoff, and keep the shift from growing without bound.
        pause_ms = min(FIRST_PAUSE_MS << min(following.failures, 16), self._config.fetch_backoff_ms)
        following.failures += 1
        self.pause_for(following, now_ms, pause_ms)
        return pause_ms

    def pause_for(self, following: Following, now_ms: int, pause_ms: int) -> None:
        """Leave a partition out for `pause_ms`."""
        # Replaced by a newer epoch meanwhile, which has failed nothing.
        if self.partitions.get(following.key) is not following:
            return
        following.not_before_ms = now_ms + pause_ms
        self._changed.pop(following.key, None)
        self._paused[following.key] = following
        if following.in_session:
            self._forgotten[following.key] = None

    def resume(self, now_ms: int) -> int | None:
        """Fetch partitions again whose pause is over; returns how long until the next, None when none is paused."""
        soonest = None
        for key, following in list(self._paused.items()):
            left = following.not_before_ms - now_ms
            if left <= 0:
                del self._paused[key]
                # A held one comes back through `mark_moved` when its sync or its offsets are done.
                if not following.held:
                    self._changed[key] = following
            elif soonest is None or left < soonest:
                soonest = left
        return soonest

    # Requests

    @property
    def has_news(self) -> bool:
        """Whether a request would name or forget a partition."""
        return bool(self._changed or self._forgotten)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to fetch."""
        return len(self.partitions) == len(self._paused) and not self._changed

    def request(self, node_id: int, broker_epoch: int, number: int = 0) -> FetchRequest:
        """The next request, which goes out as `number`; it counts as sent."""
        config = self._config
        if self.session_id == 0:
            # All of them: also those the last session had, which the next one has not.
            for key, following in self.partitions.items():
                following.in_session = False
                if key not in self._paused and not following.held:
                    self._changed[key] = following
            self._forgotten.clear()
            epoch = 0
        else:
            epoch = self._epoch
            # Wraps to 1: epoch 0 begins a session.
            self._epoch = 1 if epoch == 2**31 - 1 else epoch + 1
        topics: dict[bytes, FetchTopic] = {}
        limit = config.fetch_max_bytes
        for (topic_id, index), following in self._changed.items():
            log = following.replica.log
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = FetchTopic(topic_id=topic_id, partitions=[])
            topic.partitions.append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=following.leader_epoch,
                    fetch_offset=log.log_end_offset,
                    # KIP-595: lets the leader find where the logs diverge without OffsetForLeaderEpoch.
                    last_fetched_epoch=log.leader_epochs.latest,
                    log_start_offset=log.log_start_offset,
                    partition_max_bytes=limit,
                )
            )
            following.in_session = True
            following.request = number
        # Named and forgotten at once would be removed: a leader adds first.
        forgotten = self._forget(self._forgotten.keys() - self._changed.keys())
        self._changed = {}
        self._forgotten = {}
        return FetchRequest(
            replica_state=ReplicaState(replica_id=node_id, replica_epoch=broker_epoch),
            max_wait_ms=config.fetch_wait_max_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_response_max_bytes,
            isolation_level=0,
            session_id=self.session_id,
            session_epoch=epoch,
            topics=list(topics.values()),
            forgotten_topics_data=forgotten,
        )

    def _forget(self, keys: Iterable[TopicIdPartition]) -> list[ForgottenTopic]:
        topics: dict[bytes, ForgottenTopic] = {}
        for topic_id, index in sorted(keys):
            topics.setdefault(topic_id, ForgottenTopic(topic_id=topic_id, partitions=[])).partitions.append(index)
            known = self.partitions.get((topic_id, index))
            if known is not None:
                known.in_session = False
        return list(topics.values())

    def on_session_opened(self, session_id: int) -> None:
        """Continue with the session that the response to a full request has opened."""
        if session_id != self.session_id:
            self.session_id = session_id
            self._epoch = 1

    def restart(self) -> None:
        """Begin a new session with the next request, since this one or its connection is lost."""
        self.session_id = 0
        self._epoch = 0
        self._forgotten.clear()
