"""A cluster from outside: finds it by any bootstrap server, keeps connections and metadata, routes requests.

Connections to a broker are kept by purpose, so that a fetch that waits half a second holds up no heartbeat. When no
known broker answers, it begins again with bootstrap.servers (metadata.recovery.strategy=rebootstrap).
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
from klamm.client.config import ClientSettings
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
from klamm.client.metrics import Metrics, RateSampler, Reporter, Traffic
from klamm.client.tls import tls_context
from klamm.model.errors import ErrorCode, ProtocolError
from klamm.model.ids import TopicPartition
from klamm.model.topic_names import name_complaint
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

_log = logging.getLogger(__name__)

T = TypeVar("T")

_TELL_S = 1.0
"""After so long without an answer, a new client says what it is waiting for."""


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
        """Why metadata cannot be had now; None after every success."""
        self.traffic = Traffic()
        self._reporter: Reporter | None = None
        self._rates: RateSampler | None = None
        self._tls = tls_context(settings)
        self._bootstrap = [_address(server) for server in settings["bootstrap.servers"]]
        self._connections: dict[tuple[str, int, str], Connection] = {}
        self._opening: dict[tuple[str, int, str], asyncio.Task[Connection]] = {}
        self._backoffs: dict[tuple[str, int], tuple[Backoff, float]] = {}
        self._random = random.Random()  # noqa: S311 - no secret
        self._refreshing: asyncio.Task[None] | None = None
        self._refresh_again = False
        self._refreshed = float("-inf")
        self._unreachable_since: float | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()

    # Life

    async def start(self) -> None:
        """Reach the cluster; BrokersUnreachableError, and it is closed, when bootstrap.timeout.ms pass without it."""
        try:
            await self._reach()
        except BaseException:
            await self.close()
            raise
        self._keeper = asyncio.create_task(self._keep(), name="klamm metadata")

    async def _reach(self) -> None:
        """Ask for metadata until a broker answers; one that is just being started is worth waiting for."""
        limit_s = self.settings.seconds("bootstrap.timeout.ms")
        began = self._loop.time()
        told = False
        backoff = self.backoff()
        while True:
            try:
                await self.refresh()
            except KafkaError as error:
                if not error.retriable or (isinstance(error, BrokersUnreachableError) and error.hopeless):
                    raise
                waited_s = self._loop.time() - began
                if waited_s >= limit_s:
                    raise _unreached(error, limit_s) from error
                pause = min(backoff.next(), limit_s - waited_s)
                if not told and waited_s + pause >= _TELL_S:
                    told = True
                    _log.warning("waiting for a broker, at most %g s (bootstrap.timeout.ms): %s", limit_s, error)
                await asyncio.sleep(pause)
            else:
                return

    async def close(self) -> None:
        """Leave every broker."""
        self._closed = True
        if self._reporter is not None:
            self._reporter.stop()
        if self._rates is not None:
            self._rates.stop()
        tasks = [task for task in (self._keeper, self._refreshing, *self._opening.values()) if task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()

    def report(self, role: str, collect: Callable[[], Metrics]) -> None:
        """Sample what a client counts and have statistics.callback called with it, until this is closed."""
        self._rates = RateSampler(collect)
        self._rates.start()
        self._reporter = Reporter(self.settings, role, self.metrics)

    def metrics(self) -> Metrics:
        """What the client counts, with rates."""
        assert self._rates is not None, "metrics are asked for before report()"
        return self._rates.snapshot()

    def count_traffic(self) -> Metrics:
        """What all clients count."""
        open_now = sum(connection.closed is None for connection in self._connections.values())
        return {"connection-count": open_now, **self.traffic.metrics()}

    async def _keep(self) -> None:
        """Refresh metadata when it is old, and close idle connections."""
        age_s = max(self.settings.seconds("metadata.max.age.ms"), 0.05)
        idle_s = self.settings.seconds("connections.max.idle.ms")
        while True:
            due = self._refreshed + age_s
            await asyncio.sleep(max(min(due - self._loop.time(), 10.0), 0.05))
            if self._loop.time() >= due:
                self.request_update()
            now = self._loop.time()
            for key, connection in list(self._connections.items()):
                idle = not connection.in_flight and idle_s >= 0 and now - connection.last_used > idle_s
                if idle or connection.closed is not None:
                    connection.close()
                    del self._connections[key]

    # Connections

    async def connection(self, node_id: int, purpose: str = DATA) -> Connection:
        """The connection to a broker, opened when there is none; DisconnectedError when that fails."""
        broker = self.table.brokers.get(node_id)
        if broker is None:
            raise DisconnectedError(f"broker {node_id} is not known to be alive")
        return await self.connect(broker.host, broker.port, purpose)

    def ready(self, node_id: int, purpose: str = DATA) -> Connection | None:
        """The connection to a broker if it is open."""
        broker = self.table.brokers.get(node_id)
        if broker is None:
            return None
        connection = self._connections.get((broker.host, broker.port, purpose))
        return connection if connection is not None and connection.closed is None else None

    async def connect(self, host: str, port: int, purpose: str = DATA) -> Connection:
        """The connection to an address; at most one is being opened at a time, and not too often."""
        if self._closed:
            raise IllegalStateError("the client is closed")
        key = (host, port, purpose)
        connection = self._connections.get(key)
        if connection is not None and connection.closed is None:
            return connection
        task = self._opening.get(key)
        if task is None:
            task = self._opening[key] = asyncio.create_task(self._open(key), name=f"klamm connect {host}:{port}")
            task.add_done_callback(functools.partial(self._opened, key))
        return await asyncio.shield(task)

    def _opened(self, key: tuple[str, int, str], task: asyncio.Task[Connection]) -> None:
        self._opening.pop(key, None)
        if not task.cancelled():
            task.exception()

    async def _open(self, key: tuple[str, int, str]) -> Connection:
        host, port, _ = key
        settings = self.settings
        backoff, not_before = self._backoffs.get((host, port)) or (
            Backoff(
                settings.seconds("reconnect.backoff.ms"), settings.seconds("reconnect.backoff.max.ms"), self._random
            ),
            0.0,
        )
        await asyncio.sleep(max(not_before - self._loop.time(), 0))
        connection = Connection(host, port, settings, self._tls, self.traffic)
        try:
            await connection.open()
        except DisconnectedError:
            self._backoffs[host, port] = (backoff, self._loop.time() + backoff.next())
            raise
        self._backoffs.pop((host, port), None)
        self.traffic.connections += 1
        if self._closed:
            connection.close()
            raise IllegalStateError("the client is closed")
        self._connections[key] = connection
        return connection

    async def any_connection(self, purpose: str = ADMIN) -> Connection:
        """Some broker that answers: an open connection, a known broker, a bootstrap server, in this order."""
        ready = [(key[2], connection) for key, connection in self._connections.items() if connection.closed is None]
        free = [connection for used_for, connection in ready if used_for == purpose or not connection.in_flight]
        if free:  # never one that is waiting for a fetch or a rebalance
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
        """Have metadata asked for soon; many requests at once are one."""
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
                self._tell()
                await asyncio.sleep(backoff.next())
                if backoff.failures > 3:
                    return
                continue
            if not self._refresh_again:
                return
            await asyncio.sleep(backoff.next())

    async def refresh(self, topics: Iterable[str] = ()) -> None:
        """Ask now, for topics to keep knowing of as well."""
        self.wanted.update(topics)
        await self._refresh_now()

    async def _refresh_now(self) -> None:
        asked = None if self.all_topics else sorted(self.wanted)
        connection = await self.any_connection()
        version = connection.version_of("Metadata")
        wanted = None if asked is None else [MetadataRequestTopic(name=name) for name in asked]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=self.auto_create and bool(asked))
        answer = await connection.request(request, version)
        if answer.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            self.rebootstrap()
            raise DisconnectedError("the cluster asks to be found again")
        if answer.error_code:
            raise error_for(answer.error_code, "metadata was refused")
        if not answer.brokers:
            raise DisconnectedError(f"{connection.address} knows no broker yet")
        self.table.update(answer, asked)
        self._refreshed = self._loop.time()
        self.failure = None
        self._tell()

    def _tell(self) -> None:
        for listener in self.listeners:
            listener()

    def rebootstrap(self) -> None:
        """Forget the brokers: those left behind in old metadata may be another cluster's by now."""
        self.table.brokers = {}
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()

    async def topic(self, name: str, timeout_s: float) -> int:
        """How many partitions a topic has, waiting until it is there; the broker's refusal or KafkaTimeoutError."""
        count = self.table.partition_count(name)
        if count:
            return count
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
        """Waits between attempts, as retry.backoff.ms says."""
        settings = self.settings
        return Backoff(settings.seconds("retry.backoff.ms"), settings.seconds("retry.backoff.max.ms"), self._random)

    def hint(self, where: TopicPartition, current: Any, endpoints: Iterable[Any]) -> bool:
        """Take a refusal's word for who leads (KIP-951); False asks for metadata instead."""
        if current is not None and self.table.hint(where, current.leader_id, current.leader_epoch, endpoints):
            self._tell()
            return True
        self.request_update()
        return False

    # Coordinators

    async def find_coordinator(self, kind: int, key: str) -> BrokerAddress:
        """The broker that looks after a group or transactional id; retriable errors are the caller's to wait on."""
        connection = await self.any_connection()
        version = connection.version_of("FindCoordinator")
        request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
        answer = await connection.request(request, version)
        coordinator = answer.coordinators[0] if version >= 4 and answer.coordinators else answer
        if coordinator.error_code:
            raise error_for(coordinator.error_code, coordinator.error_message or f"{key} has no coordinator")
        return BrokerAddress(coordinator.node_id, coordinator.host, coordinator.port)

    async def retrying(
        self,
        attempt: Callable[[], Awaitable[T]],
        timeout_s: float,
        on_failure: Callable[[KafkaError], None] | None = None,
    ) -> T:
        """Do something again and again while it fails with what may pass, for at most `timeout_s`."""
        deadline = self._loop.time() + timeout_s
        backoff = self.backoff()
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await attempt()
            except TimeoutError as error:
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
    """Whether an address answered in a way that waiting does not change: not Kafka's protocol, or the wrong TLS."""
    while error is not None:
        if isinstance(error, ssl.SSLError | ProtocolError | UnsupportedVersionError):
            return True
        error = error.__cause__
    return False


def _unreached(error: KafkaError, limit_s: float) -> KafkaError:
    """The last failure before a client gave up, with how long it tried."""
    return BrokersUnreachableError(f"{error}; gave up after {limit_s:g} s (bootstrap.timeout.ms)") if limit_s else error


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
