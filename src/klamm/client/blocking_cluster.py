"""A blocking way to ask a cluster: for commands, which ask a few questions and leave.

    with Cluster("127.0.0.1:9092") as cluster:
        print(cluster.ask(ListTransactionsRequest()).transaction_states)

Requests and answers are the messages of `klamm.protocol`; the version is the newest that both sides speak.
"""

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from klamm.model.errors import ErrorCode, KlammError, RemoteProtocolError
from klamm.protocol.apis import BY_NAME, Api
from klamm.protocol.codec import decode, encode
from klamm.protocol.header import RequestHeader, decode_response_header, encode_request_header
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.metadata import MetadataRequest

if TYPE_CHECKING:
    import ssl

GROUP, TRANSACTION = 0, 1
"""Kinds of coordinator."""

RESPONSE_BYTES_MAX = 100 << 20
_LENGTH = struct.Struct(">i")
_RETRY_S = 0.05
_RETRY = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)


class Unreachable(OSError):
    """Nobody answers at an address."""


class Connection:
    """One broker; one question at a time."""

    def __init__(
        self,
        host: str,
        port: int,
        timeout_s: float = 10.0,
        *,
        client_id: str = "klamm",
        tls: "ssl.SSLContext | None" = None,
    ) -> None:
        self.address = f"{host}:{port}"
        self.broken = False
        """Whether an answer did not come: what comes next would belong to an older question."""
        self._client_id = client_id
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise Unreachable(f"nobody answers at {self.address}: {error.strerror or error}") from error
        if tls is not None:
            self._secure(tls, host)
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}

    def _secure(self, tls: "ssl.SSLContext", host: str) -> None:
        try:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host if tls.check_hostname else None)
        except OSError as error:
            self._socket.close()
            reason = getattr(error, "verify_message", "") or error.strerror or error
            raise Unreachable(f"{self.address} and this client do not agree on TLS: {reason}") from error

    def ask(self, request: Any, version: int | None = None) -> Any:
        """The answer to a request; KlammError when this broker does not speak its API."""
        api = BY_NAME[type(request).__name__.removesuffix("Request")]
        return self._exchange(api, self._version(api) if version is None else version, request)

    def _version(self, api: Api) -> int:
        if not self._versions:
            answer = self._exchange(BY_NAME["ApiVersions"], 0, ApiVersionsRequest())
            self._versions = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
        first, last = self._versions.get(api.key, (0, -1))
        version = min(last, api.versions[1])
        if version < max(first, api.versions[0]):
            raise KlammError(ErrorCode.UNSUPPORTED_VERSION, f"{self.address} does not speak {api.name}")
        return version

    def _exchange(self, api: Api, version: int, request: Any) -> Any:
        self._correlation_id += 1
        header = RequestHeader(api.key, version, self._correlation_id, self._client_id)
        body = encode_request_header(header) + encode(request, version)
        if self.broken:
            raise Unreachable(f"{self.address} closed the connection")
        self.broken = True  # until the answer is here
        try:
            self._socket.sendall(_LENGTH.pack(len(body)) + body)
            size = _LENGTH.unpack(self._exactly(4))[0]
            if not 4 <= size <= RESPONSE_BYTES_MAX:
                raise RemoteProtocolError(f"{self.address} answers with {size} bytes")
            frame = self._exactly(size)
        except OSError as error:
            raise Unreachable(f"{self.address} does not answer: {error.strerror or error}") from error
        correlation_id, start = decode_response_header(frame, api.key, version)
        if correlation_id != self._correlation_id:
            raise RemoteProtocolError(f"{self.address} answers another question")
        self.broken = False
        return decode(api.response, version, frame, start)[0]

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self._socket.recv(min(size - len(data), 1 << 20))
            if not more:
                raise Unreachable(f"{self.address} closed the connection")
            data += more
        return bytes(data)

    def close(self) -> None:
        """Leave."""
        self._socket.close()


def _options(bootstrap: str, timeout_s: float, settings: Mapping[str, Any]) -> dict[str, Any]:
    from klamm.client.config import admin_settings  # noqa: PLC0415 - most commands have no settings to read

    known = admin_settings({**settings, "bootstrap.servers": bootstrap}, {})
    wait_s = known.seconds("request.timeout.ms") if "request.timeout.ms" in known.given else timeout_s
    options: dict[str, Any] = {"timeout_s": wait_s, "client_id": known.text("client.id")}
    from klamm.client.tls import tls_context  # noqa: PLC0415

    options["tls"] = tls_context(known)
    return options


class Cluster:
    """All brokers of a cluster, found through any of them; each is connected when it is first asked.

    A question to a broker that is gone fails; the next one goes to a new connection, or to another broker.
    """

    def __init__(self, bootstrap: str, timeout_s: float = 10.0, settings: Mapping[str, Any] | None = None) -> None:
        """`settings` are those of an admin by Kafka's names: how long to wait, how to get in, what to be called."""
        self._options = _options(bootstrap, timeout_s, settings) if settings else {"timeout_s": timeout_s}
        self._connections: dict[tuple[str, int], Connection] = {}
        self._addresses = [address.strip() for address in bootstrap.split(",")]
        self._brokers: dict[int, tuple[str, int]] = {}
        self._first = self._reach(self._addresses)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave all brokers."""
        for connection in self._connections.values():
            connection.close()

    def _reach(self, addresses: Sequence[str]) -> Connection:
        refused: Unreachable | None = None
        for address in addresses:
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal():
                raise Unreachable(f"{address!r} is not an address; write HOST:PORT")
            try:
                return self._connect(host.strip("[]"), int(port))
            except Unreachable as error:
                refused = error
        raise refused or Unreachable("no address was given")

    def _connect(self, host: str, port: int) -> Connection:
        known = self._connections.get((host, port))
        if known is not None and known.broken:
            known.close()
            known = None
        if known is None:
            known = self._connections[host, port] = Connection(host, port, **self._options)
        return known

    def _any(self) -> Connection:
        """Whoever was reached first; where that one is gone, the next that answers, known by then or given."""
        if self._first.broken:
            known = [f"{host}:{port}" for host, port in self._brokers.values()]
            self._first = self._reach([*self._addresses, *known])
        return self._first

    def refresh_brokers(self) -> None:
        """Ask anew which brokers there are."""
        answer = self._any().ask(MetadataRequest(topics=[]))
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}

    @property
    def broker_ids(self) -> list[int]:
        """Every broker of the cluster."""
        if not self._brokers:
            self.refresh_brokers()
        return sorted(self._brokers)

    def broker(self, broker_id: int) -> Connection:
        """The connection to one broker."""
        if broker_id not in self.broker_ids:
            raise KlammError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not alive")
        return self._connect(*self._brokers[broker_id])

    def ask(self, request: Any) -> Any:
        """Ask any broker: the same one while it is there."""
        return self._any().ask(request)

    def leader(self, topic: str, partition: int) -> Connection:
        """The broker that leads a partition."""
        from klamm.protocol.messages.metadata import MetadataRequestTopic  # noqa: PLC0415 - rarely needed

        answer = self._any().ask(
            MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        )
        for found in answer.topics[0].partitions:
            if found.partition_index == partition and found.leader_id >= 0:
                return self.broker(found.leader_id)
        code = ErrorCode(answer.topics[0].error_code) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise KlammError(code, f"nobody leads {topic}-{partition}")

    def coordinator(self, kind: int, key: str) -> Connection:
        """The broker that looks after a group or a transactional id, once it does.

        The first question of that kind makes a cluster create the topic it answers from, and a coordinator that has
        just moved still loads: both are waited for, no longer than for an answer.
        """
        deadline = time.monotonic() + self._options["timeout_s"]
        while True:
            answer = self._any().ask(FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key]))
            found = answer.coordinators[0] if answer.coordinators else answer
            code, said = found.error_code, found.error_message
            if not code:
                connection = self._connect(found.host, found.port)
                code, said = _readiness(connection, kind, key), None
            if code not in _RETRY:
                break
            if time.monotonic() > deadline:
                raise KlammError(ErrorCode(code), said or f"nobody looks after {key} yet")
            time.sleep(_RETRY_S)
        if found.error_code:
            raise KlammError(ErrorCode(found.error_code), found.error_message or f"nobody looks after {key}")
        return connection


def _readiness(connection: Connection, kind: int, key: str) -> int:
    """What the coordinator says of a key: an error that will pass while it does not serve yet."""
    from klamm.protocol.messages.describe_groups import DescribeGroupsRequest  # noqa: PLC0415 - few commands need it
    from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest  # noqa: PLC0415

    try:
        if kind == GROUP:
            return int(connection.ask(DescribeGroupsRequest(groups=[key])).groups[0].error_code)
        states = connection.ask(DescribeTransactionsRequest(transactional_ids=[key])).transaction_states
        return int(states[0].error_code)
    except KlammError:
        return 0  # a broker too old to be asked: whoever wants something of it will be told
