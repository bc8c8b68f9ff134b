"""What every family of admin requests shares: routing, retries, and the outcome of each item of a request.

`AdminBase` only awaits its `AdminTransport`. `AsyncAdmin` gives it a `ClusterClient`, which awaits an event loop; the
command line gives it a `BlockingCluster`, whose coroutines never suspend, so that a command need not import asyncio.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from klamm.client.core.routing import ADMIN, GROUP_COORDINATOR
from klamm.client.errors import KafkaError, UnknownTopicOrPartitionError, error_for, raise_failures, raise_for
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition

if TYPE_CHECKING:
    from klamm.client.admin.transport import AdminTransport

T = TypeVar("T")

_UNKNOWN_TOPIC_S = 1.5
"""How long a topic may be unknown: brokers apply its creation a moment after the controller."""

_PASSING = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""Errors of single items that a retry may resolve."""


class AdminBase:
    """What the families of admin requests share."""

    def __init__(self, cluster: AdminTransport, timeout_s: float = 30.0, request_timeout_ms: int = 30_000) -> None:
        self._transport: AdminTransport = cluster
        self._timeout_s = timeout_s
        self._request_timeout_ms = request_timeout_ms

    @property
    def cluster(self) -> AdminTransport:
        """The connections to the cluster."""
        return self._transport

    async def request(self, request: Any, *, broker: int | None = None, version: int | None = None) -> Any:
        """Send any message of `klamm.protocol` to one broker, or to any; its error codes are not checked."""
        cluster = self.cluster
        connection = await (cluster.any_connection() if broker is None else cluster.connection(broker, ADMIN))
        return await connection.request(request, version)

    async def _retrying(self, attempt: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Repeat `attempt` while it fails with a retriable error."""
        cluster = self.cluster
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        began = time.monotonic()

        def on_failure(error: KafkaError) -> None:
            waited_s = time.monotonic() - began
            # Retriable in Kafka, but a misspelt topic should not take the whole timeout to fail.
            if isinstance(error, UnknownTopicOrPartitionError) and waited_s > _UNKNOWN_TOPIC_S:
                raise error
            cluster.request_update()

        return await cluster.retrying(attempt, limit_s, on_failure)

    async def _send(self, request: Any, *, broker: int | None = None, version: int | None = None) -> Any:
        """The response to a request; broken connections are retried, its top-level `error_code` is raised."""

        async def once() -> Any:
            response = await self.request(request, broker=broker, version=version)
            raise_for(getattr(response, "error_code", 0), getattr(response, "error_message", None))
            return response

        return await self._retrying(once)

    async def _send_for_items(
        self,
        request: Any,
        read: Callable[[Any, Outcomes], None],
        timeout_s: float | None = None,
        *,
        broker: int | None = None,
    ) -> dict[Any, Any]:
        """The outcome of each item of a request, as `read` takes it from the response."""

        async def once() -> Outcomes:
            outcomes = Outcomes()
            read(await self.request(request, broker=broker), outcomes)
            return outcomes

        return (await self._retrying(once, timeout_s)).results_or_raise()

    async def _send_to_leaders(
        self,
        places: Iterable[TopicPartition],
        request: Callable[[dict[str, list[int]]], Any],
        read: Callable[[Any, Outcomes], None],
    ) -> dict[Any, Any]:
        """The outcome of each partition, from its leader; `request` builds the request from partitions by topic."""
        wanted = list(places)

        async def once() -> Outcomes:
            outcomes = Outcomes()
            for leader, mine in (await self._by_leader(wanted)).items():
                read(await self.request(request(by_topic(mine)), broker=leader), outcomes)
            return outcomes

        return (await self._retrying(once)).results_or_raise()

    async def _send_to_coordinator(
        self, kind: int, key: str, request: Any, check: Callable[[Any], None], version: int | None = None
    ) -> Any:
        """The response of the coordinator of `key`, wherever it moves; `check` raises the errors of the response."""

        async def once() -> Any:
            coordinator = await self.cluster.find_coordinator(kind, key)
            connection = await self.cluster.connect(coordinator.host, coordinator.port, ADMIN)
            used = None
            if version is not None:
                # Capped, not fixed: an older coordinator may not have that version.
                used = min(version, connection.version_of(type(request).__name__.removesuffix("Request")))
            response = await connection.request(request, used)
            check(response)
            return response

        return await self._retrying(once)

    async def _send_to_group_coordinator(
        self, group_id: str, request: Any, check: Callable[[Any], None], version: int | None = None
    ) -> Any:
        return await self._send_to_coordinator(GROUP_COORDINATOR, group_id, request, check, version)

    async def _for_each(self, wanted: list[str], act: Callable[[str], Awaitable[Any]]) -> dict[str, Any]:
        """The outcome of one request for each name, all at once."""
        responses = await self.cluster.gather(map(act, wanted))
        failures: dict[Any, KafkaError] = {}
        results: dict[str, Any] = {}
        for name, response in zip(wanted, responses, strict=True):
            if isinstance(response, KafkaError):
                response.item = name
                failures[name] = response
            elif isinstance(response, BaseException):
                raise response
            else:
                results[name] = response
        raise_failures(failures, results)
        return results

    async def _by_leader(self, places: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Partitions by leader; an unknown partition is an error."""
        wanted = list(places)
        cluster = self.cluster
        # On every attempt: the error that caused the retry may be a stale leader.
        await cluster.refresh({partition.topic for partition in wanted})
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in wanted:
            topic = cluster.table.topics.get(partition.topic)
            code = topic.error_code if topic else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise error_for(code, f"there is no topic {partition.topic}")
            raise_for(code, f"topic {partition.topic}")
            metadata = cluster.table.partition(partition)
            if metadata is None:
                words = f"topic {partition.topic} has no partition {partition.partition}"
                raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, words)
            if metadata.leader < 0:
                raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader")
            by_leader.setdefault(metadata.leader, []).append(partition)
        return by_leader

    async def _broker_ids(self) -> list[int]:
        await self._retrying(self.cluster.refresh)
        return sorted(self.cluster.table.brokers)

    async def _send_to_brokers(self, brokers: Iterable[int], request: Any) -> dict[int, Any]:
        """Send a request to several brokers at once."""
        ids = list(brokers)
        responses: dict[int, Any] = {}
        work = [self._send(request, broker=broker_id) for broker_id in ids]
        for broker_id, response in zip(ids, await self.cluster.gather(work), strict=True):
            # All or nothing: a list that lacks one broker would be silently incomplete.
            if isinstance(response, BaseException):
                raise response
            responses[broker_id] = response
        return responses


def by_topic(places: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partitions by topic, as requests list them."""
    indexes: dict[str, list[int]] = {}
    for topic, partition in places:
        indexes.setdefault(topic, []).append(partition)
    return indexes


class Outcomes:
    """Collects the outcome of each item of a request."""

    def __init__(self) -> None:
        self.results: dict[Any, Any] = {}
        self.failures: dict[Any, KafkaError] = {}

    def add(self, key: Any, code: int, message: str | None = None, result: Any = None) -> None:
        """Add one outcome; an error of _PASSING is raised at once, so that the whole request is retried."""
        if not code:
            self.results[key] = result
            return
        error = error_for(code, f"{key}: {message}" if message else str(key))
        error.detail = message or error.code.text
        error.item = key
        if error.code in _PASSING:
            raise error
        self.failures[key] = error

    def results_or_raise(self) -> dict[Any, Any]:
        """The results; raises if an item failed."""
        raise_failures(self.failures, self.results)
        return self.results
