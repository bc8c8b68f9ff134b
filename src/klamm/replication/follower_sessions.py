"""The leader's side of following: sessions of followers, looked at only where something has changed.

A follower names its partitions once and then only what moved. The leader keeps, per session, the partitions worth
looking at: those the last request named, and those whose log or high watermark has moved since. Ten thousand quiet
partitions cost nothing, and an append finds the followers that wait for it without a search.
"""

from collections.abc import Callable, Iterator

from klamm.model.errors import ErrorCode, KlammError
from klamm.replication.replica import Replica

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
SESSIONS_PER_FOLLOWER_MAX = 32
"""A follower has one for each of its fetchers; more are left over from connections that were lost."""

Key = tuple[bytes, int]


class FollowedPartition:
    """One partition of a follower's session: where it is, and what it was told."""

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
        "session",
        "told_high_watermark",
        "told_log_start_offset",
    )

    def __init__(self, session: "FollowerSession", key: Key) -> None:
        self.session = session
        self.key = key
        self.replica: Replica | None = None
        self.fetch_offset = -1
        self.max_bytes = 0
        self.leader_epoch = -1
        self.last_fetched_epoch = -1
        self.log_start_offset = -1
        self.told_high_watermark = -1
        self.told_log_start_offset = -1
        self.sent = False
        """Whether records or a refusal are on their way: nothing more until the follower says where it is."""
        self.noted = False
        """Whether where the follower is counts for the replica's in-sync replicas and high watermark already."""

    def ask(
        self, fetch_offset: int, max_bytes: int, leader_epoch: int, last_fetched_epoch: int, log_start_offset: int
    ) -> None:
        """The follower says where it is."""
        if fetch_offset == self.fetch_offset or leader_epoch != self.leader_epoch:
            # It may have dropped the last answer, which came after it had decided to ask anew.
            self.told_high_watermark = self.told_log_start_offset = -1
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        self.sent = False
        self.noted = False

    def follow(self, replica: Replica | None) -> None:
        """Hear of appends to this replica from now on."""
        if replica is self.replica:
            return
        if self.replica is not None and self in self.replica.followed:
            self.replica.followed.remove(self)
        self.replica = replica
        self.noted = False
        if replica is not None:
            replica.followed.append(self)

    def touch(self) -> None:
        """Something about the partition has changed."""
        self.session.changed[self] = None


class FollowerSession:
    """What one fetcher of one follower follows here."""

    __slots__ = ("changed", "epoch", "follower", "id", "parked", "partitions", "replica_epoch")

    def __init__(self, session_id: int, follower: int, replica_epoch: int) -> None:
        self.id = session_id
        self.follower = follower
        self.replica_epoch = replica_epoch
        self.epoch = INITIAL_EPOCH
        self.partitions: dict[Key, FollowedPartition] = {}
        self.changed: dict[FollowedPartition, None] = {}
        """What the next answer looks at, longest waiting first."""
        self.parked: Callable[[bool], None] | None = None
        """Answers the fetch that waits; called with True it answers whatever there is."""

    def partition(self, key: Key) -> FollowedPartition:
        """The place of a partition, made when the follower names it first."""
        found = self.partitions.get(key)
        if found is None:
            found = self.partitions[key] = FollowedPartition(self, key)
        return found

    def forget(self, key: Key) -> None:
        """The follower does not want the partition any more."""
        found = self.partitions.pop(key, None)
        if found is not None:
            found.follow(None)
            self.changed.pop(found, None)

    def close(self) -> None:
        """Let go of everything."""
        for followed in self.partitions.values():
            followed.follow(None)
        self.partitions.clear()
        self.changed.clear()
        self.parked = None


class FollowerSessions:
    """The sessions of all followers of this node; one without is answered with all it names."""

    def __init__(self) -> None:
        self._last_id = 0
        self._sessions: dict[int, FollowerSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FollowerSession]:
        return iter(list(self._sessions.values()))

    def resolve(self, session_id: int, epoch: int, follower: int, replica_epoch: int) -> tuple[FollowerSession, bool]:
        """The session a request goes on with or begins, and whether it goes on; KlammError is the whole answer."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self.close(session_id, follower)
            session = FollowerSession(NO_SESSION, follower, replica_epoch)
            if epoch == INITIAL_EPOCH:
                self._make_room(follower, replica_epoch)
                session.id = self._last_id = self._last_id % (2**31 - 1) + 1
                session.epoch = 1
                self._sessions[session.id] = session
            return session, False
        found = self._sessions.get(session_id)
        if found is None or found.follower != follower:
            raise KlammError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if found.epoch != epoch:
            raise KlammError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        found.epoch = 1 if epoch == 2**31 - 1 else epoch + 1
        found.replica_epoch = replica_epoch
        return found, True

    def close(self, session_id: int, follower: int) -> None:
        """The follower is done with a session, or its connection is lost."""
        found = self._sessions.get(session_id)
        if found is not None and found.follower == follower:
            del self._sessions[session_id]
            found.close()

    def _make_room(self, follower: int, replica_epoch: int) -> None:
        """An earlier life of the follower needs its sessions no more; neither does one that has too many."""
        own = [s for s in self._sessions.values() if s.follower == follower]
        gone = [s for s in own if s.replica_epoch != replica_epoch]
        live = len(own) - len(gone)
        if live >= SESSIONS_PER_FOLLOWER_MAX:
            gone += [s for s in own if s not in gone][: live - SESSIONS_PER_FOLLOWER_MAX + 1]
        for session in gone:
            self.close(session.id, follower)
