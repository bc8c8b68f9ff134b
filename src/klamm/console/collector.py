"""Reads every cluster again and again, in a thread with an event loop of its own.

A page is never held up by a collection: decoding the metadata of 100,000 partitions takes longer than a page may.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from operator import attrgetter
from typing import Any, Final

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.errors import KafkaError
from klamm.console.cluster_reader import EARLIEST, LATEST, ClusterReader, LogDirReading, OffsetsByTopic, guard
from klamm.console.clusters import ClusterLink
from klamm.console.core.partition_offsets import PartitionOffsets
from klamm.console.core.samples import (
    BrokerSample,
    ClusterSample,
    GroupSample,
    TopicSample,
    add_rates,
)
from klamm.console.group_positions import read_positions
from klamm.console.pipeline_watch import watch_pipelines
from klamm.console.sign_reader import SignReader
from klamm.console.unread_times import UnreadTimes
from klamm.model.ids import TopicPartition
from klamm.telemetry import get_logger

_log = get_logger("console")

INTERVAL_S: Final = 5.0
_SHARE_MAX: Final = 0.1
"""A collection that takes long is repeated less often: the thread works at most this share of the time."""
_STARTS_EVERY: Final = 10
"""Log starts move by retention only: of large clusters they are read in every tenth collection."""
_LARGE_PARTITIONS: Final = 5000
_GROUPS_PER_COLLECTION: Final = 500
"""Groups whose offsets are read in one collection, those first that were read longest ago."""
_GROUP_REQUESTS_MAX: Final = 16

OnSample = Callable[[ClusterLink, ClusterSample], None]


class SampleCollector:
    """Collects one cluster."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._collections = 0
        self._unread_times = UnreadTimes()
        self.copied: dict[TopicPartition, int] = {}
        """The bytes that the new replicas of each reassignment have."""

    async def collect(self, admin: AsyncAdmin, before: ClusterSample | None) -> ClusterSample:
        """Return a sample; KafkaError when the cluster cannot be reached at all."""
        began = time.perf_counter()
        partial: list[str] = []
        cluster = await admin.describe_cluster(include_fenced=True)
        time_ms = self._now_ms()
        reader = ClusterReader(admin, partial)
        await reader.read_topics()
        online = [broker.id for broker in cluster.brokers if not broker.fenced]
        ends = await reader.list_offsets(LATEST)
        starts = await self._read_starts(reader, before)
        moves = await guard("reassignments", admin.list_partition_reassignments(), partial) or {}
        adding = {where: move.adding for where, move in moves.items()}
        log_dirs = await reader.read_log_dirs(online, adding)
        self.copied = log_dirs.copied
        # Before the groups are read: it makes room for them.
        samples = reader.make_samples(starts, ends, log_dirs, before)
        groups = await self._list_groups(admin, before, partial)
        groups = await self._unread_times.add_to_groups(admin, groups, samples, self._now_ms())
        self._collections += 1
        sample = ClusterSample(
            time_ms,
            cluster.cluster_id,
            cluster.controller_id,
            _describe_brokers(cluster.brokers, samples.values(), log_dirs),
            samples,
            groups,
            reassigning=len(moves),
            collected_s=time.perf_counter() - began,
            partial=tuple(partial),
        )
        rates, byte_rates = add_rates(sample, before)
        return dataclasses.replace(sample, rates=rates, byte_rates=byte_rates)

    async def _read_starts(self, reader: ClusterReader, before: ClusterSample | None) -> OffsetsByTopic | ClusterSample:
        """Return log starts; of large clusters mostly those of the sample before."""
        is_large = reader.partition_count > _LARGE_PARTITIONS
        if before is not None and is_large and self._collections % _STARTS_EVERY:
            return before
        return await reader.list_offsets(EARLIEST)

    async def _list_groups(
        self, admin: AsyncAdmin, before: ClusterSample | None, partial: list[str]
    ) -> dict[str, GroupSample]:
        listings = await guard("groups", admin.list_groups(), partial)
        if listings is None:
            return {} if before is None else dict(before.groups)
        groups = {}
        for listing in listings:
            old = None if before is None else before.groups.get(listing.group_id)
            groups[listing.group_id] = GroupSample(
                listing.group_id,
                # The same few words in every response: one string of each for 15,000 groups.
                sys.intern(listing.type),
                sys.intern(listing.protocol_type),
                sys.intern(listing.state),
                listing.coordinator,
                None if old is None else old.committed,
                0 if old is None else old.committed_ms,
                # Until it is read anew, the age stays what it was.
                None
                if old is None or old.oldest_unread_ms is None or before is None
                else old.oldest_unread_ms + self._now_ms() - before.time_ms,
                0 if old is None else old.timed_ms,
            )
        oldest = sorted(groups.values(), key=attrgetter("committed_ms"))[:_GROUPS_PER_COLLECTION]
        waiting = iter(oldest)

        async def read_next() -> None:
            # A task for each request at a time, not for each group.
            for group in waiting:
                groups[group.name] = await self._read_committed(admin, group)

        await asyncio.gather(*(read_next() for _ in range(_GROUP_REQUESTS_MAX)))
        return groups

    async def _read_committed(self, admin: AsyncAdmin, group: GroupSample) -> GroupSample:
        try:
            offsets = await read_positions(admin, group.name, group.type)
        except KafkaError:
            # Deleted meanwhile, or of a type that this cluster does not describe; tried again in its turn.
            return dataclasses.replace(group, committed_ms=self._now_ms())
        return dataclasses.replace(group, committed=PartitionOffsets(offsets), committed_ms=self._now_ms())


def _describe_brokers(
    nodes: Iterable[Any], topics: Iterable[TopicSample], log_dirs: LogDirReading
) -> tuple[BrokerSample, ...]:
    leaders: dict[int, int] = {}
    replicas: dict[int, int] = {}
    for topic in topics:
        for _, leader, assigned, _ in topic.layouts():
            leaders[leader] = leaders.get(leader, 0) + 1
            for replica in assigned:
                replicas[replica] = replicas.get(replica, 0) + 1
    return tuple(
        BrokerSample(
            node.id,
            node.host,
            node.port,
            node.rack,
            node.fenced,
            leaders.get(node.id, 0),
            replicas.get(node.id, 0),
            log_dirs.broker_bytes.get(node.id, 0),
            log_dirs.folders.get(node.id, ()),
        )
        for node in nodes
    )


class CollectorThread:
    """Collects all clusters until it is stopped."""

    def __init__(
        self,
        links: Iterable[ClusterLink],
        on_sample: OnSample,
        now_ms: Callable[[], int],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._links = list(links)
        self._on_sample = on_sample
        self._now_ms = now_ms
        self._interval_s = interval_s
        self._thread = threading.Thread(target=self._run, name="klamm-collector", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._wakeups: dict[str, asyncio.Event] = {}
        self._waiting: dict[str, list[Future[None]]] = {link.name: [] for link in self._links}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """End the thread; waits for it."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._cancel)
        self._thread.join(10)

    def refresh(self, name: str) -> Future[None]:
        """Collect a cluster at once; the future is done when the sample is there, or could not be taken."""
        future: Future[None] = Future()
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._wake, name, future)
        return future

    def _wake(self, name: str, future: Future[None]) -> None:
        self._waiting[name].append(future)
        self._wakeups[name].set()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _run(self) -> None:
        asyncio.run(self._collect_all())

    async def _collect_all(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wakeups = {link.name: asyncio.Event() for link in self._links}
        self._tasks = [
            asyncio.create_task(work) for link in self._links for work in (self._follow(link), watch_pipelines(link))
        ]
        self._ready.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, link: ClusterLink) -> None:
        collector, signs = SampleCollector(self._now_ms), SignReader(self._now_ms, link.schemas)
        admin: AsyncAdmin | None = None
        try:
            while True:
                # Taken before the collection: a change that is made during it needs another one.
                answered, self._waiting[link.name] = self._waiting[link.name], []
                began = time.thread_time()
                try:
                    if admin is None:
                        admin = await _connect(link)
                    sample = await collector.collect(admin, link.sample)
                    link.publish(sample, await signs.read(admin, sample, collector.copied))
                    self._on_sample(link, sample)
                    link.expect_sample(self._choose_pause(time.thread_time() - began) + 2 * self._interval_s)
                except (KafkaError, OSError) as error:
                    if not link.error:
                        _log.warning("collection failed", cluster=link.name, error=str(error))
                    link.error = str(error) or type(error).__name__
                except Exception as error:  # noqa: BLE001 - a bug must not end the collections of this cluster for good
                    _log.failure("collection failed", error, cluster=link.name)
                    link.error = f"{type(error).__name__}; the log of the console has the reason"
                for future in answered:
                    # A page that did not wait any longer has cancelled its future.
                    if future.set_running_or_notify_cancel():
                        future.set_result(None)
                # Not the elapsed time: that of a cluster with a dead broker is waiting for timeouts.
                await self._pause(link.name, self._choose_pause(time.thread_time() - began))
        finally:
            await signs.close()
            if admin is not None:
                await admin.close()

    def _choose_pause(self, cpu_s: float) -> float:
        return max(self._interval_s, cpu_s / _SHARE_MAX)

    async def _pause(self, name: str, seconds: float) -> None:
        wakeup = self._wakeups[name]
        try:
            async with asyncio.timeout(seconds):
                await wakeup.wait()
        except TimeoutError:
            return
        wakeup.clear()


async def _connect(link: ClusterLink) -> AsyncAdmin:
    admin = AsyncAdmin(link.client_settings("admin"))
    await admin.start()
    return admin
