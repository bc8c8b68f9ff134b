"""The messages between quorum members as values: Kafka's raft RPCs, independent of their encoding.

The transport encodes them with `raft/codec/wire`; the simulation passes them as they are.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from klamm.model.errors import ErrorCode
from klamm.raft.core.quorum import ReplicaKey
from klamm.raft.core.voter_history import VoterChange


class OffsetAndEpoch(NamedTuple):
    """A position in the log and the epoch of the record before it; names a snapshot, or where logs diverge."""

    offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """The first record of a leader's epoch: committing it commits everything before it."""

    leader_id: int
    voters: tuple[ReplicaKey, ...]
    granting_voters: tuple[ReplicaKey, ...]


Payload: TypeAlias = "tuple[bytes, ...] | LeaderChange | VoterChange | bytes"
"""Record values of a proposal, control records, or (on a follower) a batch exactly as replicated."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch of the log; appended, replicated and committed atomically."""

    base_offset: int
    last_offset: int
    epoch: int
    payload: Payload
    append_time_ms: int = 0
    voter_change: VoterChange | None = None
    """The change of the voters that the batch holds, if any."""

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""
        return self.last_offset + 1


@dataclass(frozen=True, slots=True)
class RaftVoteRequest:
    """Asks for a vote, or with `pre_vote` whether one would be granted; a pre-vote binds no voter."""

    candidate: ReplicaKey
    epoch: int
    last: OffsetAndEpoch
    pre_vote: bool


@dataclass(frozen=True, slots=True)
class RaftVoteResponse:
    """Granted or not, with the leader and epoch of the voter."""

    epoch: int
    leader_id: int | None
    granted: bool = False
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class RaftBeginQuorumEpochRequest:
    """Announces a new leader to a voter that has not fetched from it yet."""

    leader_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class RaftBeginQuorumEpochResponse:
    """Acknowledges the request, or fences its sender with a newer epoch."""

    epoch: int
    leader_id: int | None
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class RaftEndQuorumEpochRequest:
    """Announces that a leader resigned, with its preferred successors, so that they need not wait for a timeout."""

    leader_id: int
    epoch: int
    preferred_successors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RaftEndQuorumEpochResponse:
    """Acknowledges the request, or fences its sender with a newer epoch."""

    epoch: int
    leader_id: int | None
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class RaftFetchRequest:
    """Asks for records from `fetch_offset` on, and acknowledges that everything before is durable at the sender."""

    replica: ReplicaKey
    epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    high_watermark: int = -1
    max_wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class RaftFetchResponse:
    """Entries, or where the logs diverge, or which snapshot to fetch instead.

    The core sets `read_from`; the driver reads the entries from there on when it sends the response.
    """

    epoch: int
    leader_id: int | None
    high_watermark: int = -1
    log_start_offset: int = 0
    diverging: OffsetAndEpoch | None = None
    snapshot_id: OffsetAndEpoch | None = None
    # Bytes are read only when the response is sent: a parked fetch may be answered with more than it waited for.
    read_from: int | None = None
    entries: tuple[Entry, ...] = field(default=(), repr=False)
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class RaftFetchSnapshotRequest:
    """Asks for the bytes of a snapshot from `position` on."""

    replica: ReplicaKey
    epoch: int
    snapshot_id: OffsetAndEpoch
    position: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class RaftFetchSnapshotResponse:
    """A chunk of a snapshot; the driver fills in `size` and `chunk` when it sends the response."""

    epoch: int
    leader_id: int | None
    snapshot_id: OffsetAndEpoch | None = None
    position: int = 0
    max_bytes: int = 0
    size: int = 0
    chunk: bytes = field(default=b"", repr=False)
    error: ErrorCode = ErrorCode.NONE


RaftRequest: TypeAlias = (
    RaftVoteRequest
    | RaftBeginQuorumEpochRequest
    | RaftEndQuorumEpochRequest
    | RaftFetchRequest
    | RaftFetchSnapshotRequest
)
RaftResponse: TypeAlias = (
    RaftVoteResponse
    | RaftBeginQuorumEpochResponse
    | RaftEndQuorumEpochResponse
    | RaftFetchResponse
    | RaftFetchSnapshotResponse
)


@dataclass(frozen=True, slots=True)
class RaftMessage:
    """A request or response with its addresses; a response carries the correlation id of its request."""

    source: int
    destination: int
    correlation_id: int
    body: RaftRequest | RaftResponse
