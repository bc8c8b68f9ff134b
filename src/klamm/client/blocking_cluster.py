"""A cluster over blocking sockets, for commands that send a few requests and exit.

    with BlockingCluster("127.0.0.1:9092") as cluster:
        print(cluster.run(TopicsAdmin(cluster).list_topics()))

It is the transport of the admin families that `AsyncAdmin` is made of (`admin.base.AdminTransport`): its coroutines
never suspend, so `run` drives them without an event loop. Importing asyncio would take a command longer than the rest
of its work. `ask` sends a single message of `klamm.protocol`, in the newest version that both sides speak.
"""

import functools
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from klamm.client.core.routing import ADMIN
from klamm.client.errors import CoordinatorError, KafkaError, error_for
from klamm.model.errors import ErrorCode, KlammError, RemoteProtocolError
from klamm.protocol.apis import BY_NAME, Api
from klamm.protocol.codec import decode, encode
from klamm.protocol.framing import OwnedFrames, encode_frame
from klamm.protocol.header import RequestHeader, decode_response_header, encode_request_header
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

if TYPE_CHECKING:
    import ssl

    from klamm.client.admin.transport import AdminConnection
    from klamm.client.core.metadata import BrokerAddress, ClusterTable
    from klamm.security.login import Credentials

T = TypeVar("T")

RESPONSE_BYTES_MAX = 100 << 20
_RESPONSE_BYTES_MIN = 4
"""The correlation id, which every response begins with."""
_RETRY_S = 0.05
_PASSING = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_CONTROLLER})


class ClusterUnreachable(OSError):
    """Raised when no connection to an address can be made or kept."""


class BlockingConnection:
    """The connection to one broker; one request at a time."""

    def __init__(
        self,
        host: str,
        port: int,
        timeout_s: float = 10.0,
        *,
        client_id: str = "klamm",
        tls: "ssl.SSLContext | None" = None,
        credentials: "Credentials | None" = None,
    ) -> None:
        self.address = f"{host}:{port}"
        self.broken = False
        """Whether a response is outstanding: the next bytes would belong to an older request."""
        self._client_id = client_id
        # As bytes: a str is encoded by the IDNA codec, whose tables take as long to import as a request.
        name: Any = host.encode() if host.isascii() else host
        try:
            self._socket = socket.create_connection((name, port), timeout=timeout_s)
        except OSError as error:
            raise ClusterUnreachable(f"no broker answers at {self.address}: {error.strerror or error}") from error
        if tls is not None:
            self._secure(tls, host)
        self._frames = OwnedFrames(_RESPONSE_BYTES_MIN, RESPONSE_BYTES_MAX)
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        if credentials is not None:
            self._log_in(credentials)

    def _secure(self, tls: "ssl.SSLContext", host: str) -> None:
        try:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host if tls.check_hostname else None)
        except OSError as error:
            self._socket.close()
            reason = getattr(error, "verify_message", "") or error.strerror or error
            raise ClusterUnreachable(f"{self.address} and this client do not agree on TLS: {reason}") from error

    def _log_in(self, credentials: "Credentials") -> None:
        from klamm.security.core.refusal import LoginRefused  # noqa: PLC0415 - only with SASL
        from klamm.security.login import explain_refusal, log_in_blocking  # noqa: PLC0415

        try:
            self._version(BY_NAME["SaslAuthenticate"])  # ApiVersions comes before the login
            log_in_blocking(self.ask, credentials, self._versions)
        except LoginRefused as error:
            self.close()
            text = explain_refusal(self.address, credentials, error)
            raise error_for(ErrorCode.SASL_AUTHENTICATION_FAILED, text) from None
        except OSError:
            self.close()
            raise

    def ask(self, request: Any, version: int | None = None) -> Any:
        """The response to a request; UnsupportedVersionError when this broker does not serve its API."""
        api = BY_NAME[type(request).__name__.removesuffix("Request")]
        return self._exchange(api, self._version(api) if version is None else version, request)

    async def request(self, request: Any, version: int | None = None) -> Any:
        """As `ask`, for admin families; never suspends."""
        return self.ask(request, version)

    def version_of(self, name: str) -> int:
        """The newest version of an API both sides speak; UnsupportedVersionError when there is none."""
        return self._version(BY_NAME[name])

    def _version(self, api: Api) -> int:
        if not self._versions:
            # Version 0: every broker answers it, and only the ranges are needed.
            response = self._exchange(BY_NAME["ApiVersions"], 0, ApiVersionsRequest())
            self._versions = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
        first, last = self._versions.get(api.key, (0, -1))
        version = min(last, api.versions[1])
        if version < max(first, api.versions[0]):
            raise error_for(ErrorCode.UNSUPPORTED_VERSION, f"{self.address} does not speak {api.name}")
        return version

    def _exchange(self, api: Api, version: int, request: Any) -> Any:
        self._correlation_id += 1
        header = RequestHeader(api.key, version, self._correlation_id, self._client_id)
        frame = encode_frame((encode_request_header(header), encode(request, version)))
        if self.broken:
            raise ClusterUnreachable(f"{self.address} closed the connection")
        self.broken = True  # until the response has arrived
        try:
            self._socket.sendall(frame)
            response = self._receive_frame()
        except OSError as error:
            raise ClusterUnreachable(f"{self.address} does not answer: {error.strerror or error}") from error
        correlation_id, start = decode_response_header(response, api.key, version)
        if correlation_id != self._correlation_id:
            raise RemoteProtocolError(f"{self.address} answers another request")
        self.broken = False
        return decode(api.response, version, response, start)[0]

    def _receive_frame(self) -> memoryview:
        """The next response; with one request at a time, bytes behind it belong to none and end the connection."""
        while True:
            count = self._socket.recv_into(self._frames.free_space())
            if not count:
                raise ClusterUnreachable(f"{self.address} closed the connection")
            try:
                frames = self._frames.receive(count)
            except RemoteProtocolError as error:
                raise RemoteProtocolError(f"the connection to {self.address} broke: {error}") from None
            if len(frames) > 1:
                raise RemoteProtocolError(f"{self.address} sends a response without a request")
            if frames:
                return frames[0]

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _options(bootstrap: str, timeout_s: float, settings: Mapping[str, Any]) -> dict[str, Any]:
    from klamm.client.client_settings import admin_settings  # noqa: PLC0415 - most commands have no settings to read

    known = admin_settings({**settings, "bootstrap.servers": bootstrap}, {})
    # --timeout applies unless the setting was written: its default is longer than a person waits.
    wait_s = known.seconds("request.timeout.ms") if "request.timeout.ms" in known.given else timeout_s
    options: dict[str, Any] = {"timeout_s": wait_s, "client_id": known.text("client.id")}
    from klamm.client.tls import tls_context  # noqa: PLC0415

    options["tls"] = tls_context(known)
    from klamm.client.login import client_credentials  # noqa: PLC0415

    options["credentials"] = client_credentials(known)
    return options


class BlockingCluster:
    """All brokers of a cluster, discovered through any of them; each is connected to when it is first used.

    A request to a broker that is gone fails; the next one goes over a new connection, or to another broker.
    """

    has_controllers = False
    """Whether the nodes are controllers, reached through their own listeners."""

    def __init__(self, bootstrap: str, timeout_s: float = 10.0, settings: Mapping[str, Any] | None = None) -> None:
        """`settings` are those of an admin by Kafka's names: timeouts, TLS, client.id."""
        self._options = _options(bootstrap, timeout_s, settings) if settings else {"timeout_s": timeout_s}
        self._connections: dict[tuple[str, int], BlockingConnection] = {}
        self._addresses = [address.strip() for address in bootstrap.split(",")]
        self._brokers: dict[int, tuple[str, int]] = {}
        self._cluster_id: str | None = None
        self._first = self._reach(self._addresses)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()

    def _reach(self, addresses: Sequence[str]) -> BlockingConnection:
        refused: ClusterUnreachable | None = None
        for address in addresses:
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal():
                raise ClusterUnreachable(f"{address!r} is not an address; write HOST:PORT")
            try:
                return self._connect(host.strip("[]"), int(port))
            except ClusterUnreachable as error:
                refused = error
        raise refused or ClusterUnreachable("no address was given")

    def _connect(self, host: str, port: int) -> BlockingConnection:
        known = self._connections.get((host, port))
        if known is not None and known.broken:
            known.close()
            known = None
        if known is None:
            known = self._connections[host, port] = BlockingConnection(host, port, **self._options)
        return known

    def _any(self) -> BlockingConnection:
        """The connection used before; when it is broken, the first address that answers, discovered or configured."""
        if self._first.broken:
            known = [f"{host}:{port}" for host, port in self._brokers.values()]
            # Configured addresses first: discovered ones may belong to a cluster that was replaced.
            self._first = self._reach([*self._addresses, *known])
        return self._first

    def refresh_brokers(self) -> None:
        """Update the addresses of the brokers."""
        self._take_brokers(self._any().ask(MetadataRequest(topics=[])))

    def _take_brokers(self, response: Any) -> None:
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        self._cluster_id = response.cluster_id

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster; None when its brokers are too old to have one."""
        if self._cluster_id is None:
            self.refresh_brokers()
        return self._cluster_id

    @property
    def broker_ids(self) -> list[int]:
        """The ids of all brokers."""
        if not self._brokers:
            self.refresh_brokers()
        return sorted(self._brokers)

    def broker(self, broker_id: int) -> BlockingConnection:
        """The connection to one broker."""
        if broker_id not in self.broker_ids:
            raise KlammError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not alive")
        return self._connect(*self._brokers[broker_id])

    def ask(self, request: Any) -> Any:
        """The response of any broker: the same one as long as its connection lasts."""
        return self._any().ask(request)

    # AdminTransport

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine over this transport."""
        try:
            work.send(None)
        except StopIteration as done:
            result: T = done.value
            return result
        work.close()
        raise RuntimeError("a coroutine over a blocking cluster must not suspend")

    async def any_connection(self) -> "AdminConnection":
        """The connection to any broker."""
        return self._any()

    async def connection(self, node_id: int, purpose: str = ADMIN) -> BlockingConnection:
        """The connection to one broker."""
        del purpose  # a single request at a time needs no more than one connection per broker
        return self.broker(node_id)

    async def connect(self, host: str, port: int, purpose: str = ADMIN) -> BlockingConnection:
        """The connection to an address."""
        del purpose
        return self._connect(host, port)

    @functools.cached_property
    def table(self) -> "ClusterTable":
        """The metadata of the last `refresh`."""
        from klamm.client.core.metadata import ClusterTable  # noqa: PLC0415 - listing topics needs no leaders

        return ClusterTable()

    async def refresh(self, topics: Iterable[str] = (), *, create_missing: bool = False) -> None:
        """Update the metadata of the brokers and of `topics`; a cluster with auto creation may create missing ones."""
        names = sorted(set(topics))
        wanted = [MetadataRequestTopic(name=name) for name in names]
        response = self._any().ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=create_missing))
        self.table.update(response, names)
        self._take_brokers(response)

    async def find_coordinator(self, kind: int, key: str) -> "BrokerAddress":
        """The coordinator of a group or transactional id."""
        from klamm.client.core.metadata import BrokerAddress  # noqa: PLC0415

        response = self._any().ask(FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key]))
        coordinator = response.coordinators[0] if response.coordinators else response
        if coordinator.error_code:
            raise error_for(coordinator.error_code, coordinator.error_message or f"{key} has no coordinator")
        return BrokerAddress(coordinator.node_id, coordinator.host, coordinator.port)

    def request_update(self) -> None:
        """Nothing: every operation that uses metadata refreshes it first."""

    async def retrying(
        self,
        attempt: Callable[[], Awaitable[T]],
        timeout_s: float,
        on_failure: Callable[[KafkaError], None] | None = None,
    ) -> T:
        """Repeat `attempt` while a coordinator or the controller is not ready; any other error is reported at once."""
        deadline = time.monotonic() + min(timeout_s, self._options["timeout_s"])
        while True:
            try:
                return await attempt()
            except KafkaError as error:
                if not _is_passing(error) or time.monotonic() > deadline:
                    raise
                if on_failure is not None:
                    on_failure(error)
            time.sleep(_RETRY_S)  # noqa: ASYNC251 - blocking is what this transport does

    async def gather(self, work: Iterable[Awaitable[T]]) -> list[T | BaseException]:
        """The result or the KlammError of each awaitable, one after the other."""
        results: list[T | BaseException] = []
        for item in work:
            try:
                results.append(await item)
            except KlammError as error:
                results.append(error)
        return results


def _is_passing(error: KafkaError) -> bool:
    """Whether a coordinator loads, moves, or still ends the last transaction of an id, or a controller is elected.

    The first request of a kind makes a cluster create the internal topic behind it, so a command that reported these
    errors at once would fail in every new cluster.
    """
    return isinstance(error, CoordinatorError) or error.code in _PASSING
