"""What a handler sees of the connection and the request it answers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from klamm.net import Channel
from klamm.server.requests.record_checks import ProduceQueue
from klamm.server.requests.routes import Route
from klamm.storage.batch_validation import INLINE_PACKED_BYTES_MAX

if TYPE_CHECKING:
    from klamm.server.handlers.data.produce_quick import QuickProduce


class Waiter(Protocol):
    """A request that is answered later."""

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""


class _Answered(Enum):
    ANSWERED = 1


ANSWERED = _Answered.ANSWERED
"""Returned by a handler that replies to the channel itself, now or later."""


@dataclass(frozen=True, slots=True)
class ListenerContext:
    """One listener: its name, whether it is for clients or controllers, and what is served there."""

    name: str
    kind: str
    routes: dict[int, Route]


@dataclass(slots=True)
class ConnectionState:
    """What is remembered of one connection between requests."""

    software_name: str = ""
    software_version: str = ""
    quick_produces: "dict[bytes, QuickProduce]" = field(default_factory=dict)
    prefix_lengths: list[int] = field(default_factory=list)
    waiting_produces: ProduceQueue = field(default_factory=ProduceQueue)
    """Produce requests that wait until records before or in them have been looked at."""
    unpacks_elsewhere: bool = False
    """Whether the short way has found that the request at hand has records for a thread."""
    packed_bytes_inline: int = INLINE_PACKED_BYTES_MAX
    """Up to here packed batches of the connection are unpacked on the loop; less once smaller ones were too much."""
    on_close: list[Callable[[], None]] = field(default_factory=list)
    """Called when the connection ends."""
    waiters: dict[Waiter, None] = field(default_factory=dict)


@dataclass(slots=True)
class RequestContext:
    """One request: who asks, through which listener, in which version."""

    channel: Channel
    listener: ListenerContext
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    frame: memoryview
    """The request's bytes, borrowed until the turn ends."""

    @property
    def connection(self) -> ConnectionState:
        """What is remembered of the connection."""
        state: ConnectionState = self.channel.state
        return state
