"""What goes into the core and what comes out of it: the words between a pure quorum member and who drives it."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from klamm.raft.core.messages import Entry, Message, OffsetAndEpoch
from klamm.raft.core.roles import ElectionState


class Randomness(Protocol):
    """The one thing the core needs of random.Random; seeded by who owns the core."""

    def randrange(self, stop: int, /) -> int:
        """A whole number below `stop`."""


@dataclass(frozen=True, slots=True)
class QuorumTimeouts:
    """How long silence lasts before somebody acts; names and defaults are Kafka's `controller.quorum.*`."""

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

    message: Message


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A request did not reach `peer`, or its answer will not come.

    `refused` says that the peer's machine is there and its process is not: nobody need wait for a timeout.
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
    """A snapshot of ours is complete on disk; `base` is the oldest one kept, where the log now starts."""

    snapshot_id: OffsetAndEpoch
    base: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class Resign:
    """Give up leadership: the node stops."""


Event: TypeAlias = Received | Unreachable | Persisted | SnapshotTaken | Resign


@dataclass(frozen=True, slots=True)
class Append:
    """Write this batch at the end of the log."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log back: what follows was never committed."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class StoreSnapshotChunk:
    """Write these bytes of the leader's snapshot; when `complete`, it replaces log and state."""

    snapshot_id: OffsetAndEpoch
    position: int
    chunk: bytes
    complete: bool


LogOperation: TypeAlias = Append | Truncate | StoreSnapshotChunk


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads which epoch; nobody, as far as we know, when `leader_id` is None."""

    leader_id: int | None
    epoch: int


@dataclass(frozen=True, slots=True)
class Ready:
    """What the core wants done, in the order of the fields."""

    election: ElectionState | None
    log: tuple[LogOperation, ...]
    messages: tuple[Message, ...]
    high_watermark: int
    leadership: Leadership | None
