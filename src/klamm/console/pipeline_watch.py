"""Follows the topics in which a cluster's pipelines publish, with one consumer, in the collector's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.consumer import AsyncConsumer
from klamm.client.errors import KafkaError
from klamm.console.clusters import ClusterLink
from klamm.console.core.known_pipelines import KnownPipelines
from klamm.model.errors import KlammError
from klamm.model.ids import TopicPartition
from klamm.pipeline.sql.core.pipeline_record import PipelineLease
from klamm.pipeline.sql.core.published_status import STATUS_TOPIC
from klamm.pipeline.sql.pipeline_registry import TOPIC, lease_group
from klamm.telemetry import get_logger

_log = get_logger("console")
_TOPICS: Final = (TOPIC, STATUS_TOPIC)
_SAMPLE_POLL_S: Final = 0.25
_POLL_S: Final = 0.5
_RETRY_S: Final = 10.0
_LEASES_S: Final = 5.0
_LEASE_REQUESTS_MAX: Final = 16
_FETCH: Final = {"max.poll.records": 500, "max.partition.fetch.bytes": 1 << 20, "fetch.max.wait.ms": 400}
_READ: Final = {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}


async def watch_pipelines(link: ClusterLink) -> None:
    """Keep `link.pipelines` up to date until it is cancelled."""
    is_logged = False
    while True:
        try:
            await _follow(link, _find_topics(link))
            is_logged = False
        except (KlammError, OSError) as error:
            if link.pipelines is None:
                # Without the right to read the topics, pipelines of this machine are still shown.
                link.pipelines = KnownPipelines()
            if not is_logged:
                _log.warning("pipelines not read", cluster=link.name, error=str(error))
                is_logged = True
            await asyncio.sleep(_RETRY_S)


def _find_topics(link: ClusterLink) -> tuple[str, ...]:
    sample = link.sample
    return () if sample is None else tuple(topic for topic in _TOPICS if topic in sample.topics)


async def _follow(link: ClusterLink, topics: tuple[str, ...]) -> None:
    """Follow topics until others exist."""
    if not topics:
        if link.sample is not None:
            link.pipelines = KnownPipelines()
        # Polled: a sample is published without a signal, and nothing is read until the first one.
        await asyncio.sleep(_SAMPLE_POLL_S)
        return
    known = KnownPipelines()
    loop = asyncio.get_running_loop()
    leases_due = 0.0
    async with link.consumer(**_FETCH, **_READ) as consumer, AsyncAdmin(link.client_settings("admin")) as admin:
        partitions = [TopicPartition(topic, 0) for topic in topics]
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        for where, start in (await consumer.beginning_offsets(partitions)).items():
            consumer.seek(where, start)
        while _find_topics(link) == topics:
            for record in await consumer.poll(_POLL_S):
                known.take(record.topic, record.key, record.value, record.timestamp)
            if link.pipelines is not known and not await _is_read(consumer, ends):
                continue
            if loop.time() >= leases_due:
                known.leases = await _read_leases(admin, known.leased_ids())
                leases_due = loop.time() + _LEASES_S
            # Only now: until it is read to the end, it has statuses of long ago.
            link.pipelines = known


async def _is_read(consumer: AsyncConsumer[bytes | None, bytes | None], ends: dict[TopicPartition, int]) -> bool:
    positions = [await consumer.position(where) for where in ends]
    return all(position >= end for position, end in zip(positions, ends.values(), strict=True))


async def _read_leases(admin: AsyncAdmin, ids: Iterable[str]) -> dict[str, PipelineLease | None]:
    """Return the newest runs of pipelines, without those that may not be read."""
    waiting = iter(sorted(ids))
    where = TopicPartition(TOPIC, 0)
    leases: dict[str, PipelineLease | None] = {}

    async def read_next() -> None:
        for pipeline in waiting:
            try:
                committed = (await admin.list_group_offsets(lease_group(pipeline), [where])).get(where)
            except KafkaError:
                continue
            leases[pipeline] = None if committed is None else PipelineLease.decode(committed.metadata)

    await asyncio.gather(*(read_next() for _ in range(_LEASE_REQUESTS_MAX)))
    return leases
