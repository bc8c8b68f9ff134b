"""The state of a connection and of a request that handlers use."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from klamm.controller import QuotaClient
from klamm.net import Channel
from klamm.protocol.messages.api_versions import ApiVersion
from klamm.security.core.principal import Principal
from klamm.server.requests.record_checks import ProduceQueue
from klamm.server.requests.routes import Route
from klamm.storage.batch_validation import INLINE_COMPRESSED_BYTES_MAX

if TYPE_CHECKING:
    from klamm.server.handlers.data.produce_quick import KnownPrefix
    from klamm.server.requests.access.quotas import RequestMeter
    from klamm.telemetry.request_times import ApiTimes


class DelayedRequest(Protocol):
    """A request whose reply is sent later."""

    def cancel(self) -> None:
        """Drop the request: its connection is closed."""


class _HandlerResult(Enum):
    ANSWERED = 1


ANSWERED = _HandlerResult.ANSWERED
"""Returned by a handler that replies to the channel itself, now or later."""


@dataclass(frozen=True, slots=True)
class ListenerContext:
    """One listener: its name, its kind ("broker" or "controller") and its APIs."""

    name: str
    kind: str
    routes: dict[int, Route]
    api_keys: list[ApiVersion] = field(init=False)
    """What ApiVersions lists: made once, because nearly every connection begins with that request."""
    encoded_versions: dict[int, tuple[object, bytes]] = field(init=False, compare=False)
    """The last body of ApiVersions by version, with the state of the features that it was made from."""

    def __post_init__(self) -> None:
        """List the versions of the routes."""
        keys = [
            ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, (first, last) in sorted((key, route.api.advertised) for key, route in self.routes.items())
        ]
        object.__setattr__(self, "api_keys", keys)  # the class is frozen
        object.__setattr__(self, "encoded_versions", {})


@dataclass(slots=True)
class ConnectionState:
    """State of one connection that outlives a request."""

    software_name: str = ""
    software_version: str = ""
    known_prefixes: "dict[bytes, KnownPrefix]" = field(default_factory=dict)
    prefix_lengths: list[int] = field(default_factory=list)
    waiting_produces: ProduceQueue = field(default_factory=ProduceQueue)
    """Produce requests that wait until their own records, or those of earlier ones, are validated."""
    validate_in_thread: bool = False
    """Set by the quick path when the records of the current request have to be validated in a thread."""
    inline_bytes_max: int = INLINE_COMPRESSED_BYTES_MAX
    """Compressed batches up to this size are validated on the loop; lowered when a smaller one took too long."""
    on_close: list[Callable[[], None]] = field(default_factory=list)
    """Called when the connection ends."""
    delayed: dict[DelayedRequest, None] = field(default_factory=dict)
    """Requests to cancel when the connection ends."""

    def forget_prefixes(self) -> None:
        """Let the next Produce request be decoded, and its rights be checked."""
        self.known_prefixes.clear()
        self.prefix_lengths.clear()


@dataclass(slots=True)
class RequestContext:
    """One request: its connection, listener, API version and client."""

    channel: Channel
    listener: ListenerContext
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    frame: memoryview
    """The request's bytes, borrowed until the turn ends."""
    meter: "RequestMeter | None" = field(default=None, init=False)
    """Measures the request of a client that has quotas."""
    times: "ApiTimes | None" = field(default=None, init=False)
    """The times of the request's API."""

    @property
    def connection(self) -> ConnectionState:
        """The state of the connection."""
        state: ConnectionState = self.channel.state
        return state

    @property
    def principal(self) -> Principal:
        """The identity that the request is authorised as."""
        return self.channel.principal

    @property
    def quota_client(self) -> QuotaClient:
        """The client, as quotas name it."""
        return QuotaClient(self.principal.name, self.client_id or "", self.principal)

    @property
    def client_host(self) -> str:
        """The address of the client, as ACLs name it."""
        return self.channel.peer_address[0]


@dataclass(slots=True)
class ForwardedContext(RequestContext):
    """A client's request that a broker has forwarded in an Envelope: authorised as that client, not as the broker."""

    forwarded_principal: Principal
    forwarded_host: str

    @property
    def principal(self) -> Principal:
        """The identity of the client."""
        return self.forwarded_principal

    @property
    def client_host(self) -> str:
        """The address from which the client sent the request to the broker."""
        return self.forwarded_host
