"""The interface between the pure core and its driver: events in, Ready out."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from klamm.raft.core.messages import Entry, OffsetAndEpoch, RaftMessage
from klamm.raft.core.roles import ElectionState


class Randomness(Protocol):
    """What the core needs of random.Random; passed in, so that a simulation can seed it."""

    def randrange(self, stop: int, /) -> int:
        """Return a number from 0 up to, not including, `stop`."""


@dataclass(frozen=True, slots=True)
class QuorumTimeouts:
    """Timeouts and limits of the protocol; names and defaults are those of Kafka's `controller.quorum.*`."""

    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    request_timeout_ms: int = 2000
    fetch_max_wait_ms: int = 500
    snapshot_max_bytes: int = 8 * 1024 * 1024
    election_backoff_max_ms: int = 1000
    retry_backoff_ms: int = 20


@dataclass(frozen=True, slots=True)
class Received:
    """A message of another member arrived."""

    message: RaftMessage


@dataclass(frozen=True, slots=True)
class PeerUnreachable:
    """A request did not reach `peer`, or its response was lost.

    `refused` means that the peer's machine runs and its process does not: no timeout has to be waited for.
    """

    peer: int
    correlation_id: int
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Persisted:
    """The log is on disk up to `end_offset`."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A snapshot of this replica is complete on disk; `base` is the oldest one kept, where the log now starts."""

    snapshot_id: OffsetAndEpoch
    base: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class Resign:
    """The node stops: give up leadership and do not campaign again."""


Event: TypeAlias = Received | PeerUnreachable | Persisted | SnapshotTaken | Resign


@dataclass(frozen=True, slots=True)
class AppendEntry:
    """Write this batch at the end of the log."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the log to `end_offset`: what follows was never committed."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class StoreSnapshotChunk:
    """Write these bytes of the leader's snapshot; when `complete`, it replaces log and state."""

    snapshot_id: OffsetAndEpoch
    position: int
    chunk: bytes
    complete: bool


LogOperation: TypeAlias = AppendEntry | Truncate | StoreSnapshotChunk


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leader of an epoch; `leader_id` is None while it is unknown."""

    leader_id: int | None
    epoch: int


@dataclass(frozen=True, slots=True)
class Ready:
    """What the driver has to do, in the order of the fields."""

    election: ElectionState | None
    """Must be durable before anything else is done: a vote that is sent and then forgotten could be granted twice."""
    log: tuple[LogOperation, ...]
    messages: tuple[RaftMessage, ...]
    high_watermark: int
    leadership: Leadership | None
