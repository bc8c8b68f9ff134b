"""Fetch sessions (KIP-227): a client that polls the same partitions names only what has changed.

Pure: the caller gives the time and the random source. A session is a numbered list of partitions with what the client
was last sent of each; its epoch counts its requests, so a lost or repeated one is detected. The cache is bounded: a
client that gets no session names all its partitions in every request.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from random import Random

from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import ZERO_UUID

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1

STALE_MS = 120_000
"""A session unused for so long may be given up for a new one; Kafka's MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS."""

PartitionKey = tuple[bytes | str, int]


@dataclass(slots=True)
class FetchedPartition:
    """One partition of a fetch: what the client requests, and what was sent to it last."""

    topic: str | None
    topic_id: bytes
    index: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    sent_high_watermark: int = -1
    sent_log_start_offset: int = -1
    known_as: str | None = None
    """The name of the topic with this id when it was last known; decides the error once the id is gone."""

    @property
    def key(self) -> PartitionKey:
        """By id where the client speaks ids (Fetch v13+), else by name."""
        return (self.topic if self.topic_id == ZERO_UUID and self.topic is not None else self.topic_id, self.index)

    def update(self, other: "FetchedPartition") -> None:
        """Take over what the client requests now; what was sent to it stays."""
        self.fetch_offset = other.fetch_offset
        self.max_bytes = other.max_bytes
        self.current_leader_epoch = other.current_leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch
        self.log_start_offset = other.log_start_offset


@dataclass(slots=True)
class FetchSession:
    """The partitions of one polling client."""

    id: int
    uses_topic_ids: bool
    privileged: bool
    last_used_ms: int
    epoch: int = INITIAL_EPOCH
    partitions: dict[PartitionKey, FetchedPartition] = field(default_factory=dict)

    def rotate(self, keys: Iterable[PartitionKey]) -> None:
        """Move partitions that have just had their turn to the end, so that busy ones do not starve the rest."""
        for key in keys:
            partition = self.partitions.pop(key, None)
            if partition is not None:
                self.partitions[key] = partition


@dataclass(slots=True)
class FetchContext:
    """What one Fetch request means: the partitions to read, and how to answer."""

    partitions: list[FetchedPartition]
    session: FetchSession | None = None
    incremental: bool = False

    @property
    def session_id(self) -> int:
        """The session id of the response."""
        return self.session.id if self.session is not None else NO_SESSION


class FetchSessions:
    """All sessions of a broker, at most `slots_max`."""

    def __init__(self, slots_max: int, random: Random) -> None:
        self._slots_max = slots_max
        self._random = random
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(
        self,
        session_id: int,
        epoch: int,
        partitions: list[FetchedPartition],
        forgotten: Iterable[PartitionKey],
        *,
        uses_topic_ids: bool,
        privileged: bool,
        now_ms: int,
    ) -> FetchContext:
        """Return the partitions a request is to be answered with; KlammError refuses the request."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            # A client that begins a session names the one it ends.
            self._sessions.pop(session_id, None)
            if epoch == FINAL_EPOCH:
                return FetchContext(partitions)
            session = self._create(partitions, uses_topic_ids=uses_topic_ids, privileged=privileged, now_ms=now_ms)
            return FetchContext(partitions, session)
        session = self._continue(session_id, epoch, uses_topic_ids)
        # Before the additions, unlike Kafka's order: a partition both forgotten and named stays.
        for key in forgotten:
            session.partitions.pop(key, None)
        for partition in partitions:
            known = session.partitions.get(partition.key)
            if known is None:
                session.partitions[partition.key] = partition
            else:
                known.update(partition)
        # As in Kafka: a session that has lost its last partition is over, and the response carries session id 0.
        if not session.partitions:
            del self._sessions[session.id]
            return FetchContext([])
        session.last_used_ms = now_ms
        session.epoch = _next_epoch(session.epoch)
        return FetchContext(list(session.partitions.values()), session, incremental=True)

    def end(self, session: FetchSession) -> None:
        """Drop a session that the client does not get."""
        self._sessions.pop(session.id, None)

    def _continue(self, session_id: int, epoch: int, uses_topic_ids: bool) -> FetchSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise KlammError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        # A request that was sent twice, or after one that was lost: its base is not what the client assumes.
        if session.epoch != epoch:
            raise KlammError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        # KIP-516: keys by name and by id do not mix, so a client that was upgraded begins a new session.
        if session.uses_topic_ids != uses_topic_ids:
            raise KlammError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return session

    def _create(
        self, partitions: list[FetchedPartition], *, uses_topic_ids: bool, privileged: bool, now_ms: int
    ) -> FetchSession | None:
        if len(self._sessions) >= self._slots_max and not self._evict(privileged=privileged, now_ms=now_ms):
            return None
        # Random (KIP-227): after a restart, a client that still names an old session must not meet the one of another.
        session_id = self._random.randint(1, 2**31 - 1)
        while session_id in self._sessions:
            session_id = self._random.randint(1, 2**31 - 1)
        session = FetchSession(session_id, uses_topic_ids, privileged, now_ms, _next_epoch(INITIAL_EPOCH))
        session.partitions = {partition.key: partition for partition in partitions}
        self._sessions[session_id] = session
        return session

    def _evict(self, *, privileged: bool, now_ms: int) -> bool:
        """Drop the session unused for longest, if it is stale or a follower needs its slot."""
        # A consumer never replaces a follower: replication must not fall back to full requests for it.
        oldest = min(
            (session for session in self._sessions.values() if privileged >= session.privileged),
            key=attrgetter("privileged", "last_used_ms"),
            default=None,
        )
        if oldest is None:
            return False
        if now_ms - oldest.last_used_ms < STALE_MS and not (privileged and not oldest.privileged):
            return False
        del self._sessions[oldest.id]
        return True


def _next_epoch(epoch: int) -> int:
    return 1 if epoch == 2**31 - 1 else epoch + 1
