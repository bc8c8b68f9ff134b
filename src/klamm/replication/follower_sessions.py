"""Fetch sessions of followers at the leader: a request costs only as much as the partitions that have changed.

A follower names its partitions once and then only what moved. The leader keeps, per session, the partitions to check:
those the last request named, and those whose log or high watermark has moved since. Ten thousand quiet partitions cost
nothing, and an append has the followers that wait for it at hand.
"""

from collections.abc import Iterator
from typing import Protocol

from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import TopicIdPartition
from klamm.replication.replica import Replica

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
SESSIONS_PER_FOLLOWER_MAX = 32
"""A follower has a session for each of its fetchers; more are left over from connections that were lost."""


class TryComplete(Protocol):
    """Reads again for a fetch that waits, and answers it if there is enough or `force` is set."""

    def __call__(self, *, force: bool = False) -> None:
        """Answer the fetch if possible."""


class FollowedPartition:
    """One partition of a follower's session: where the follower is, and what was sent to it last."""

    __slots__ = (
        "fetch_offset",
        "key",
        "last_fetched_epoch",
        "leader_epoch",
        "log_start_offset",
        "max_bytes",
        "noted",
        "replica",
        "sent",
        "sent_high_watermark",
        "sent_log_start_offset",
        "session",
    )

    def __init__(self, session: "FollowerSession", key: TopicIdPartition) -> None:
        self.session = session
        self.key = key
        self.replica: Replica | None = None
        self.fetch_offset = -1
        self.max_bytes = 0
        self.leader_epoch = -1
        self.last_fetched_epoch = -1
        self.log_start_offset = -1
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1
        self.sent = False
        """Whether records or a refusal are on their way: nothing more is sent until the follower fetches again."""
        self.noted = False
        """Whether the fetch offset was counted for the replica's ISR and high watermark already."""

    def update(
        self, fetch_offset: int, max_bytes: int, leader_epoch: int, last_fetched_epoch: int, log_start_offset: int
    ) -> None:
        """Take over what the follower's latest fetch names."""
        if fetch_offset == self.fetch_offset or leader_epoch != self.leader_epoch:
            # It may have dropped the last response, which crossed this request on the way: send the offsets again.
            self.sent_high_watermark = self.sent_log_start_offset = -1
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        self.sent = False
        self.noted = False

    def attach(self, replica: Replica | None) -> None:
        """Be marked as changed by appends to this replica from now on."""
        if replica is self.replica:
            return
        if self.replica is not None and self in self.replica.followed:
            self.replica.followed.remove(self)
        self.replica = replica
        self.noted = False
        if replica is not None:
            replica.followed.append(self)

    def touch(self) -> None:
        """Make the next response of the session check the partition."""
        self.session.changed[self] = None


class FollowerSession:
    """The partitions that one fetcher of a follower copies from here."""

    __slots__ = ("changed", "epoch", "follower", "id", "partitions", "replica_epoch", "try_complete_fetch")

    def __init__(self, session_id: int, follower: int, replica_epoch: int) -> None:
        self.id = session_id
        self.follower = follower
        self.replica_epoch = replica_epoch
        self.epoch = INITIAL_EPOCH
        self.partitions: dict[TopicIdPartition, FollowedPartition] = {}
        self.changed: dict[FollowedPartition, None] = {}
        """What the next response checks, longest waiting first."""
        self.try_complete_fetch: TryComplete | None = None
        """Set while a fetch of the session waits."""

    def partition(self, key: TopicIdPartition) -> FollowedPartition:
        """The entry of a partition, made when the follower names it first."""
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = FollowedPartition(self, key)
        return partition

    def forget(self, key: TopicIdPartition) -> None:
        """Drop a partition that the follower copies no longer."""
        partition = self.partitions.pop(key, None)
        if partition is not None:
            partition.attach(None)
            self.changed.pop(partition, None)

    def close(self) -> None:
        """Drop all partitions."""
        for followed in self.partitions.values():
            followed.attach(None)
        self.partitions.clear()
        self.changed.clear()
        self.try_complete_fetch = None


class FollowerSessions:
    """The sessions of all followers of this node; a fetch without a session is answered with all that it names."""

    def __init__(self) -> None:
        self._last_id = 0
        self._sessions: dict[int, FollowerSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FollowerSession]:
        return iter(list(self._sessions.values()))

    def resolve(self, session_id: int, epoch: int, follower: int, replica_epoch: int) -> tuple[FollowerSession, bool]:
        """Return the session a request continues or begins, and whether it continues; KlammError refuses it."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self.close(session_id, follower)
            session = FollowerSession(NO_SESSION, follower, replica_epoch)
            if epoch == INITIAL_EPOCH:
                self._evict(follower, replica_epoch)
                # Counted, not random as for consumers: the follower is compared too.
                session.id = self._last_id = self._last_id % (2**31 - 1) + 1
                session.epoch = 1
                self._sessions[session.id] = session
            return session, False
        known = self._sessions.get(session_id)
        # Ids begin at 1 after every start of this node, so an id of before may belong to another follower.
        if known is None or known.follower != follower:
            raise KlammError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if known.epoch != epoch:
            raise KlammError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        known.epoch = 1 if epoch == 2**31 - 1 else epoch + 1
        known.replica_epoch = replica_epoch
        return known, True

    def close(self, session_id: int, follower: int) -> None:
        """Drop a session that its follower has ended, or whose connection is lost."""
        session = self._sessions.get(session_id)
        if session is not None and session.follower == follower:
            del self._sessions[session_id]
            session.close()

    def _evict(self, follower: int, replica_epoch: int) -> None:
        """Drop the sessions of earlier broker epochs of the follower, and its oldest when it has too many."""
        own = [s for s in self._sessions.values() if s.follower == follower]
        gone = [s for s in own if s.replica_epoch != replica_epoch]
        live = len(own) - len(gone)
        if live >= SESSIONS_PER_FOLLOWER_MAX:
            gone += [s for s in own if s not in gone][: live - SESSIONS_PER_FOLLOWER_MAX + 1]
        for session in gone:
            self.close(session.id, follower)
