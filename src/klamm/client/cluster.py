"""A client of a whole cluster: found by any bootstrap server, with connections, metadata and routing of requests.

Connections to a broker are kept by purpose, so that a fetch that waits for fetch.max.wait.ms delays no heartbeat. When
no known broker answers, bootstrap.servers are tried again (metadata.recovery.strategy=rebootstrap, KIP-899).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Iterable
from operator import attrgetter
from typing import Any, TypeVar

from klamm.client.backoff import Backoff
from klamm.client.client_settings import ClientSettings
from klamm.client.connection import Connection
from klamm.client.core.metadata import BrokerAddress, ClusterTable
from klamm.client.core.routing import ADMIN, DATA
from klamm.client.errors import (
    BrokersUnreachableError,
    DisconnectedError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    UnsupportedVersionError,
    error_for,
)
from klamm.client.login import client_credentials
from klamm.client.metrics import Metrics, RateSampler, Reporter, Traffic
from klamm.client.tls import tls_context
from klamm.model.errors import ErrorCode, ProtocolError
from klamm.model.ids import TopicPartition
from klamm.model.topic_names import name_complaint
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

_log = logging.getLogger(__name__)

T = TypeVar("T")

_LOG_WAIT_S = 1.0
"""After so long without a response, a new client logs what it waits for."""
_REFRESH_FAILURES_MAX = 3
"""Failures in a row after which a background refresh ends; the next `request_update` starts another."""
_MAINTENANCE_S_MAX = 10.0
_MAINTENANCE_S_MIN = 0.05


class ClusterClient:
    """The shell around `ClusterTable`: everything here runs on one event loop."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.table = ClusterTable()
        self.wanted: set[str] = set()
        """Topics to keep metadata of."""
        self.all_topics = False
        """Whether metadata of every topic is kept, for subscriptions by pattern."""
        self.auto_create = False
        self.listeners: list[Callable[[], None]] = []
        """Called after every update and every failure to get one."""
        self.failure: KafkaError | None = None
        """Why the last metadata request failed; None after a success."""
        self.traffic = Traffic()
        self._reporter: Reporter | None = None
        self._rates: RateSampler | None = None
        self._tls = tls_context(settings)
        self._credentials = client_credentials(settings)
        self._bootstrap = [_address(server) for server in settings["bootstrap.servers"]]
        self._connections: dict[tuple[str, int, str], Connection] = {}
        self._opening: dict[tuple[str, int, str], asyncio.Task[Connection]] = {}
        self._backoffs: dict[tuple[str, int], tuple[Backoff, float]] = {}
        self._random = random.Random()  # noqa: S311 - no secret
        self._refreshing: asyncio.Task[None] | None = None
        self._refresh_again = False
        self._refreshed = float("-inf")
        self._unreachable_since: float | None = None
        self._maintenance: asyncio.Task[None] | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()

    # Start and close

    async def start(self) -> None:
        """Fetch the first metadata; after bootstrap.timeout.ms without, close and raise BrokersUnreachableError."""
        try:
            await self._find_cluster()
        except BaseException:
            await self.close()
            raise
        self._maintenance = asyncio.create_task(self._maintain(), name="klamm metadata")

    async def _find_cluster(self) -> None:
        """Request metadata until a broker answers; it may still be starting."""
        limit_s = self.settings.seconds("bootstrap.timeout.ms")
        began = self._loop.time()
        logged = False
        backoff = self.backoff()
        while True:
            try:
                await self.refresh()
            except KafkaError as error:
                # Waiting does not help against a wrong port or certificate: fail at once, with the reason.
                if not error.retriable or (isinstance(error, BrokersUnreachableError) and error.hopeless):
                    raise
                waited_s = self._loop.time() - began
                if waited_s >= limit_s:
                    raise _timeout_error(error, limit_s) from error
                pause = min(backoff.next(), limit_s - waited_s)
                if not logged and waited_s + pause >= _LOG_WAIT_S:
                    logged = True
                    _log.warning("waiting for a broker, at most %g s (bootstrap.timeout.ms): %s", limit_s, error)
                await asyncio.sleep(pause)
            else:
                return

    async def close(self) -> None:
        """Close all connections and end all tasks."""
        self._closed = True
        if self._reporter is not None:
            self._reporter.stop()
        if self._rates is not None:
            self._rates.stop()
        tasks = [task for task in (self._maintenance, self._refreshing, *self._opening.values()) if task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()

    def report(self, role: str, collect: Callable[[], Metrics]) -> None:
        """Sample the totals of a client, and call statistics.callback with them, until `close`."""
        self._rates = RateSampler(collect)
        self._rates.start()
        self._reporter = Reporter(self.settings, role, self.metrics)

    def metrics(self) -> Metrics:
        """Totals and rates of the client."""
        assert self._rates is not None, "metrics() before report()"
        return self._rates.snapshot()

    def count_traffic(self) -> Metrics:
        """The metrics that all kinds of clients have."""
        open_now = sum(connection.closed is None for connection in self._connections.values())
        return {"connection-count": open_now, **self.traffic.metrics()}

    async def _maintain(self) -> None:
        """Refresh metadata when it is old, and close idle connections."""
        age_s = max(self.settings.seconds("metadata.max.age.ms"), _MAINTENANCE_S_MIN)
        idle_s = self.settings.seconds("connections.max.idle.ms")
        while True:
            due = self._refreshed + age_s
            await asyncio.sleep(max(min(due - self._loop.time(), _MAINTENANCE_S_MAX), _MAINTENANCE_S_MIN))
            if self._loop.time() >= due:
                self.request_update()
            now = self._loop.time()
            for key, connection in list(self._connections.items()):
                # Before the broker does (connections.max.idle.ms is 10 minutes there): its close could meet a request.
                idle = not connection.in_flight and idle_s >= 0 and now - connection.last_used > idle_s
                if idle or connection.closed is not None:
                    connection.close()
                    del self._connections[key]

    # Connections

    async def connection(self, node_id: int, purpose: str = DATA) -> Connection:
        """The connection to a broker, opened when there is none; DisconnectedError when that fails."""
        broker = self.table.brokers.get(node_id)
        if broker is None:
            raise DisconnectedError(f"broker {node_id} is not in the cluster's metadata")
        return await self.connect(broker.host, broker.port, purpose)

    def ready(self, node_id: int, purpose: str = DATA) -> Connection | None:
        """The connection to a broker if it is open."""
        broker = self.table.brokers.get(node_id)
        if broker is None:
            return None
        connection = self._connections.get((broker.host, broker.port, purpose))
        return connection if connection is not None and connection.closed is None else None

    async def connect(self, host: str, port: int, purpose: str = DATA) -> Connection:
        """The connection to an address; one attempt at a time, at intervals of reconnect.backoff.ms."""
        if self._closed:
            raise IllegalStateError("the client is closed")
        key = (host, port, purpose)
        connection = self._connections.get(key)
        if connection is not None and connection.closed is None:
            return connection
        task = self._opening.get(key)
        if task is None:
            task = self._opening[key] = asyncio.create_task(self._open(key), name=f"klamm connect {host}:{port}")
            task.add_done_callback(functools.partial(self._on_opened, key))
        # Callers share the attempt: one that is cancelled must not end it for the others.
        return await asyncio.shield(task)

    def _on_opened(self, key: tuple[str, int, str], task: asyncio.Task[Connection]) -> None:
        self._opening.pop(key, None)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: all callers may have been cancelled

    async def _open(self, key: tuple[str, int, str]) -> Connection:
        host, port, _ = key
        settings = self.settings
        backoff, not_before = self._backoffs.get((host, port)) or (
            Backoff(
                settings.seconds("reconnect.backoff.ms"), settings.seconds("reconnect.backoff.max.ms"), self._random
            ),
            0.0,
        )
        # By address, over all purposes: three connections to a dead broker share one backoff.
        await asyncio.sleep(max(not_before - self._loop.time(), 0))
        connection = Connection(host, port, settings, self._tls, self.traffic, self._credentials)
        try:
            await connection.open()
        except DisconnectedError:
            self._backoffs[host, port] = (backoff, self._loop.time() + backoff.next())
            raise
        self._backoffs.pop((host, port), None)
        self.traffic.connections += 1
        if self._closed:  # while it was being opened: `close` did not see this connection
            connection.close()
            raise IllegalStateError("the client is closed")
        self._connections[key] = connection
        return connection

    async def any_connection(self, purpose: str = ADMIN) -> Connection:
        """A connection to any broker: an open one, to a known broker, to a bootstrap server, in this order."""
        ready = [(key[2], connection) for key, connection in self._connections.items() if connection.closed is None]
        free = [connection for used_for, connection in ready if used_for == purpose or not connection.in_flight]
        # Never one with a Fetch or a JoinGroup in flight: a request behind it waits as long.
        if free:
            return min(free, key=attrgetter("in_flight"))
        brokers = list(self.table.brokers.values())
        self._random.shuffle(brokers)
        tried: list[KafkaError] = []
        addresses = [(broker.host, broker.port) for broker in brokers]
        if not addresses or self._may_rebootstrap():
            addresses += [address for address in self._bootstrap if address not in addresses]
        for host, port in addresses:
            try:
                connection = await self.connect(host, port, purpose)
            except (DisconnectedError, UnsupportedVersionError) as error:
                tried.append(error)
            else:
                self._unreachable_since = None
                return connection
        now = self._loop.time()
        if self._unreachable_since is None:
            self._unreachable_since = now
        # KIP-1102: after so long without any broker, the known addresses are dropped, not only extended.
        too_long_s = self.settings.seconds("metadata.recovery.rebootstrap.trigger.ms")
        if self._may_rebootstrap() and now - self._unreachable_since > too_long_s:
            self.rebootstrap()
        unreachable = BrokersUnreachableError("; ".join(map(str, tried)) or "there is no address to try")
        unreachable.hopeless = all(map(_is_hopeless, tried))
        raise unreachable

    def _may_rebootstrap(self) -> bool:
        return bool(self.settings["metadata.recovery.strategy"] == "rebootstrap")

    # Metadata

    def request_update(self) -> None:
        """Request metadata in the background; calls during a refresh lead to one more."""
        if self._closed:
            return
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh_in_background(), name="klamm metadata refresh")
        else:
            self._refresh_again = True

    async def _refresh_in_background(self) -> None:
        backoff = self.backoff()
        while True:
            self._refresh_again = False
            try:
                await self._refresh_now()
            except KafkaError as error:
                self.failure = error
                self._notify_listeners()
                await asyncio.sleep(backoff.next())
                # Ends after some failures: the clients call request_update again as long as they need it.
                if backoff.failures > _REFRESH_FAILURES_MAX:
                    return
                continue
            if not self._refresh_again:
                return
            # An election takes a moment: without the pause, clients would load the broker until it is over.
            await asyncio.sleep(backoff.next())

    async def refresh(self, topics: Iterable[str] = ()) -> None:
        """Request metadata now; `topics` are added to those of all later refreshes."""
        self.wanted.update(topics)
        await self._refresh_now()

    async def _refresh_now(self) -> None:
        names = None if self.all_topics else sorted(self.wanted)
        connection = await self.any_connection()
        version = connection.version_of("Metadata")
        # None is all topics, an empty list none: the first refresh needs only the brokers.
        wanted = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=self.auto_create and bool(names))
        response = await connection.request(request, version)
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            self.rebootstrap()
            raise DisconnectedError("the cluster requires a new bootstrap (REBOOTSTRAP_REQUIRED)")
        if response.error_code:
            raise error_for(response.error_code, "the Metadata request failed")
        # A broker that is starting has not replayed the metadata log yet; its empty list must not replace ours.
        if not response.brokers:
            raise DisconnectedError(f"{connection.address} has no broker in its metadata yet")
        self.table.update(response, names)
        self._refreshed = self._loop.time()
        self.failure = None
        self._notify_listeners()

    def _notify_listeners(self) -> None:
        for listener in self.listeners:
            listener()

    def rebootstrap(self) -> None:
        """Drop all known brokers: their addresses may belong to another cluster by now (KIP-899, KIP-1102)."""
        self.table.brokers = {}
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()

    async def topic(self, name: str, timeout_s: float) -> int:
        """The partition count of a topic, waiting until it exists; the broker's error or KafkaTimeoutError."""
        count = self.table.partition_count(name)
        if count:
            return count
        # Checked here: it would be added to `wanted`, and every later refresh would name it.
        if complaint := name_complaint(name):
            raise error_for(ErrorCode.INVALID_TOPIC_EXCEPTION, complaint)
        deadline = self._loop.time() + timeout_s
        backoff = self.backoff()
        while True:
            reason = f"topic {name} is not in the cluster's metadata"
            try:
                async with asyncio.timeout_at(deadline):
                    await self.refresh([name])
            except TimeoutError:
                raise KafkaTimeoutError(f"{reason} after {timeout_s:g} s") from None
            except KafkaError as error:
                if not error.retriable:
                    raise
                reason = str(error)
            metadata = self.table.topics.get(name)
            if metadata is not None:
                if metadata.partitions and not metadata.error_code:
                    return len(metadata.partitions)
                refusal = error_for(metadata.error_code, f"topic {name}") if metadata.error_code else None
                if refusal is not None and not refusal.retriable:
                    raise refusal
                reason = str(refusal or reason)
            pause = backoff.next()
            if self._loop.time() + pause >= deadline:
                raise KafkaTimeoutError(f"{reason}; gave up after {timeout_s:g} s")
            await asyncio.sleep(pause)

    def backoff(self) -> Backoff:
        """Waits between attempts, by retry.backoff.ms and retry.backoff.max.ms."""
        settings = self.settings
        return Backoff(settings.seconds("retry.backoff.ms"), settings.seconds("retry.backoff.max.ms"), self._random)

    def hint(self, where: TopicPartition, current: Any, endpoints: Iterable[Any]) -> bool:
        """Use the leader that an error response names (KIP-951); without one, request metadata and return False."""
        if current is not None and self.table.hint(where, current.leader_id, current.leader_epoch, endpoints):
            self._notify_listeners()
            return True
        self.request_update()
        return False

    # Coordinators

    async def find_coordinator(self, kind: int, key: str) -> BrokerAddress:
        """The coordinator of a group or transactional id; the caller retries retriable errors."""
        connection = await self.any_connection()
        version = connection.version_of("FindCoordinator")
        request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
        response = await connection.request(request, version)
        # From v4 on the response is a list (KIP-699); before, the fields of the response itself.
        coordinator = response.coordinators[0] if version >= 4 and response.coordinators else response
        if coordinator.error_code:
            raise error_for(coordinator.error_code, coordinator.error_message or f"{key} has no coordinator")
        return BrokerAddress(coordinator.node_id, coordinator.host, coordinator.port)

    async def retrying(
        self,
        attempt: Callable[[], Awaitable[T]],
        timeout_s: float,
        on_failure: Callable[[KafkaError], None] | None = None,
    ) -> T:
        """Call `attempt` until it succeeds or fails with an error that is not retriable, for at most `timeout_s`."""
        deadline = self._loop.time() + timeout_s
        backoff = self.backoff()
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await attempt()
            except TimeoutError as error:
                # KafkaTimeoutError is a TimeoutError too: one request timed out, not the whole.
                if isinstance(error, KafkaError) and self._loop.time() < deadline:
                    failure: KafkaError = error
                else:
                    raise KafkaTimeoutError(f"no success within {timeout_s:g} s") from error
            except KafkaError as error:
                if not error.retriable:
                    raise
                failure = error
            if on_failure is not None:
                on_failure(failure)
            pause = backoff.next()
            if self._loop.time() + pause >= deadline:
                raise failure
            await asyncio.sleep(pause)

    async def gather(self, work: Iterable[Awaitable[T]]) -> list[T | BaseException]:
        """The result or the exception of each awaitable, all of them run at once."""
        return await asyncio.gather(*work, return_exceptions=True)


def _is_hopeless(error: BaseException | None) -> bool:
    """Whether waiting cannot help: the address does not speak Kafka's protocol, or TLS fails."""
    while error is not None:
        if isinstance(error, ssl.SSLError | ProtocolError | UnsupportedVersionError):
            return True
        error = error.__cause__
    return False


def _timeout_error(error: KafkaError, limit_s: float) -> KafkaError:
    """The last failure, with the time that was spent on attempts."""
    return BrokersUnreachableError(f"{error}; gave up after {limit_s:g} s (bootstrap.timeout.ms)") if limit_s else error


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)  # [::1]:9092
