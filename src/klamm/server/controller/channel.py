"""A broker's channel to the active controller, in this process or on another node.

Requests of brokers are sent as they are, those of clients inside an Envelope. When the controller fails or is no longer
active, the request is sent to the next one within its deadline. It may therefore be carried out twice, which all of
these requests allow. There is one channel per purpose, so that a slow response does not delay the heartbeats behind it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from klamm.controller import QuotaClient
from klamm.model.errors import ErrorCode, KlammError, ProtocolError, RemoteProtocolError
from klamm.net import OutboundSecurity, Peer, PeerGone
from klamm.protocol.apis import BY_NAME
from klamm.protocol.codec import decode, encode
from klamm.protocol.header import RequestHeader, decode_response_header, encode_request_header
from klamm.protocol.messages.default_principal import DefaultPrincipalData
from klamm.protocol.messages.envelope import EnvelopeRequest
from klamm.protocol.schema import blob, int16, int64, message, wire
from klamm.raft import RaftDriver
from klamm.security.core.principal import ANONYMOUS, Principal
from klamm.server.controller.runtime import CommittedResponse, ControllerRuntime

ENVELOPE = 58
DEFAULT_TIMEOUT_MS = 30_000
RETRY_MS = 50
"""The pause after a failed attempt; a new leader of the quorum ends it early."""
CONNECT_MS = 1_000
"""How long a connection attempt may take: another controller may be active by then."""
ATTEMPT_MS = 10_000
"""How long one attempt may take, so that a controller that hangs does not use up the deadline."""
_RETRIED = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT})
_DIRECT = frozenset(api.name for api in BY_NAME.values() if api.listeners == ("controller",))


@message(api_key=ENVELOPE, versions=(0, 0), flexible=0)
class ForwardedResponse:
    """An EnvelopeResponse with the offset of the change's last record in a tagged field that other brokers skip."""

    response_data: bytes | None = wire(blob, nullable=0, default=None)
    error_code: int = wire(int16)
    offset: int = wire(int64, tag=10_000, default=-1)


class ControllerChannel:
    """Sends requests to the active controller; lives on the node's loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        raft: RaftDriver,
        runtime: ControllerRuntime | None,
        *,
        purpose: str,
        address: Callable[[int], tuple[str, int] | None],
        wait_applied: Callable[[int], Awaitable[None]] | None = None,
        on_lost: Callable[[], None] | None = None,
        security: OutboundSecurity | None = None,
        own_client: "ForwardedClient | None" = None,
    ) -> None:
        self._loop = loop
        self._security = security
        self._raft = raft
        self._address = address
        """Returns the address of a member of the quorum, which need not be a voter in this node's log or file."""
        self._runtime = runtime
        self._purpose = purpose
        self._peer: Peer | None = None
        self._changed = asyncio.Event()
        self._wait_applied = wait_applied
        self._on_lost = on_lost
        """Called when the connection to the controller ends."""
        self._own_client = own_client or ForwardedClient()
        """The client of admin requests that this node sends for itself, e.g. to create an internal topic."""

    def on_leader_change(self) -> None:
        """End the pauses of waiting requests: the quorum has another leader."""
        self._changed.set()

    def close(self) -> None:
        """Close the connection."""
        if self._peer is not None:
            self._peer.close()

    async def ask(
        self,
        request: Any,
        version: int | None = None,
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        client: "ForwardedClient | None" = None,
    ) -> Any:
        """Return the active controller's response; KlammError REQUEST_TIMED_OUT when there was none in time."""
        if version is None:
            version = BY_NAME[_name(request)].versions[1]
        deadline = self._loop.time() + timeout_ms / 1000
        reason: BaseException | str = "the quorum has no leader"
        while (left := deadline - self._loop.time()) > 0:
            # Cleared before the attempt: a leader that is elected during it must end the pause after it.
            self._changed.clear()
            try:
                outcome = await self._attempt(request, version, client, int(left * 1000) + 1)
                if outcome is not None:
                    await self._take_effect(outcome.offset, deadline)
                    return outcome.response
            # Sent or not is unknown; every request here may be carried out twice.
            except PeerGone as error:
                reason = error
            except KlammError as error:
                # Any other error is the controller's decision on the request.
                if error.code not in _RETRIED:
                    raise
                reason = error
            await self._pause(deadline)
        raise KlammError(ErrorCode.REQUEST_TIMED_OUT, f"no active controller answered within {timeout_ms} ms: {reason}")

    async def _attempt(
        self, request: Any, version: int, client: "ForwardedClient | None", timeout_ms: int
    ) -> CommittedResponse | None:
        """Send the request once; None when the active controller is unknown or another node by now."""
        # The controller of this process is called directly, without envelope and connection.
        if self._runtime is not None and self._runtime.active is not None:
            return await self._ask_local(self._runtime, request, version, client, timeout_ms)
        peer = self._find_peer()
        if peer is None:
            return None
        # A controller that hangs must not use up the deadline: the next attempt may go to its successor.
        timeout_ms = min(timeout_ms, ATTEMPT_MS)
        # APIs that only controllers serve are sent as they are; admin requests go inside an Envelope.
        if _name(request) in _DIRECT:
            response = await peer.ask(request, version, timeout_ms=timeout_ms)
            return None if response.error_code == ErrorCode.NOT_CONTROLLER else CommittedResponse(response)
        return await self._forward(peer, request, version, client or self._own_client, timeout_ms)

    async def _ask_local(
        self,
        runtime: ControllerRuntime,
        request: Any,
        version: int,
        client: "ForwardedClient | None",
        timeout_ms: int,
    ) -> CommittedResponse:
        quota_client = client.quota_client if client is not None else None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await runtime.ask(request, version, quota_client)
        except TimeoutError:
            raise KlammError(ErrorCode.REQUEST_TIMED_OUT, "the change was not committed in time") from None

    async def _forward(
        self, peer: Peer, request: Any, version: int, client: "ForwardedClient", timeout_ms: int
    ) -> CommittedResponse | None:
        api = BY_NAME[_name(request)]
        header = encode_request_header(RequestHeader(api.key, version, 0, client.client_id))
        envelope = EnvelopeRequest(
            request_data=header + encode(request, version),
            request_principal=client.principal,
            client_host_address=client.host_address,
        )
        reply = await peer.ask_raw(ENVELOPE, 0, [encode(envelope, 0)], timeout_ms=timeout_ms)
        try:
            envelope_response, _ = decode(ForwardedResponse, 0, reply)
            if envelope_response.error_code == ErrorCode.NOT_CONTROLLER:
                return None
            if envelope_response.error_code or envelope_response.response_data is None:
                raise KlammError(ErrorCode(envelope_response.error_code or ErrorCode.UNKNOWN_SERVER_ERROR))
            _, start = decode_response_header(envelope_response.response_data, api.key, version)
            response, _ = decode(api.response, version, envelope_response.response_data, start)
        except ProtocolError as error:
            raise KlammError(ErrorCode.UNKNOWN_SERVER_ERROR, f"invalid response of the controller: {error}") from error
        return CommittedResponse(response, envelope_response.offset)

    def _find_peer(self) -> Peer | None:
        """Return the connection to the active controller; None while none is known or it is this node itself."""
        leader = self._raft.leader[0]
        if leader is None or leader == self._raft.config.node_id or not len(self._raft.core.voters):
            return None  # without voters the log has not been read yet, and the leader may be an old one
        address = self._address(leader)
        if address is None:
            return None
        host, port = address
        # One connection, to the current leader only: its end is how the controller notices a dead broker.
        if self._peer is None or (self._peer.host, self._peer.port) != address:
            self.close()
            client_id = f"broker-{self._raft.config.node_id}-{self._purpose}"
            self._peer = Peer(
                self._loop,
                host,
                port,
                client_id=client_id,
                connect_timeout_ms=CONNECT_MS,
                reconnect_backoff_max_ms=200,
                on_closed=self._on_lost,
                security=self._security,
            )
        return self._peer

    async def wait_applied(self, offset: int) -> None:
        """Return once the change at `offset` of the metadata log, if any, has taken effect on this broker."""
        if offset >= 0 and self._wait_applied is not None:
            await self._wait_applied(offset)

    async def _take_effect(self, offset: int, deadline: float) -> None:
        """Wait until this broker has applied the change; after the deadline the response is sent all the same."""
        try:
            async with asyncio.timeout_at(deadline):
                await self.wait_applied(offset)
        except TimeoutError:
            pass

    async def _pause(self, deadline: float) -> None:
        wait = min(RETRY_MS / 1000, max(deadline - self._loop.time(), 0))
        try:
            async with asyncio.timeout(wait):
                await self._changed.wait()
        except TimeoutError:
            pass


def encode_principal(principal: Principal) -> bytes:
    """Return a principal as an Envelope contains it: its version as an int16, then the data."""
    data = DefaultPrincipalData(
        type=principal.type, name=principal.name, token_authenticated=principal.token_authenticated
    )
    return b"\0\0" + encode(data, 0)


def decode_principal(data: bytes | None) -> Principal:
    """Return the principal of an Envelope; ProtocolError when it cannot be read."""
    if data is None or bytes(data[:2]) != b"\0\0":
        raise RemoteProtocolError("the envelope has no principal of version 0")
    principal, _ = decode(DefaultPrincipalData, 0, data, 2)
    return Principal(principal.type, principal.name, principal.token_authenticated)


class ForwardedClient:
    """The client of a forwarded request, as the envelope describes it."""

    __slots__ = ("client_id", "host_address", "principal")

    def __init__(
        self, client_id: str | None = None, host_address: bytes = b"\x7f\0\0\1", principal: bytes | None = None
    ) -> None:
        self.client_id = client_id
        self.host_address = host_address
        self.principal = principal if principal is not None else _ANONYMOUS

    @property
    def quota_client(self) -> QuotaClient:
        """The client, as quotas name it."""
        principal = decode_principal(self.principal)
        return QuotaClient(principal.name, self.client_id or "", principal)


def _name(request: Any) -> str:
    return type(request).__name__.removesuffix("Request")


_ANONYMOUS = encode_principal(ANONYMOUS)
