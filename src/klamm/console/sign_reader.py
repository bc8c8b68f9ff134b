"""Reads what the findings of the overview need beside a sample: a few requests, and nothing of healthy topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.admin.cluster_types import QuorumDescription
from klamm.client.core.reassign_throttle import RATES
from klamm.client.errors import ClusterAuthorizationError, KafkaError, SomeFailed, UnsupportedVersionError
from klamm.console.core.cluster_signs import ClusterSigns
from klamm.console.core.samples import ClusterSample
from klamm.console.insync_minimums import InsyncMinimums
from klamm.console.schema_client import SchemaClient
from klamm.model.config_resources import ConfigResource
from klamm.model.config_sources import ConfigSource
from klamm.model.ids import TopicPartition
from klamm.registry.client import RegistryError, UnknownSchema

STALLED_MS: Final = 5 * 60_000
_STUCK_MS: Final = 15 * 60_000
_NO_LEADER_MS: Final = 10_000
"""An election takes less: a quorum that does not answer for so long has no leader."""
_QUORUM_S: Final = 3.0
_MINIMUMS_S: Final = 1.0
_MINIMUMS_MAX: Final = 500
_REGISTRY_EVERY_MS: Final = 30_000
_THROTTLE_EVERY_MS: Final = 60_000


class SignReader:
    """Reads the signs of one cluster, again and again."""

    def __init__(self, now_ms: Callable[[], int], schemas: SchemaClient | None = None) -> None:
        self._now_ms = now_ms
        self._schemas = schemas
        self._minimums = InsyncMinimums()
        self._quorum_failed_ms: int | None = None
        self._registry_error = ""
        self._registry_ms = 0
        self._registry_check: asyncio.Task[None] | None = None
        self._throttle: int | None = None
        self._throttle_ms = 0
        self._moves: dict[TopicPartition, tuple[int, int]] = {}
        """The bytes of the new replicas of each move, and since when they are that."""

    async def read(
        self, admin: AsyncAdmin, sample: ClusterSample, copied: Mapping[TopicPartition, int]
    ) -> ClusterSigns:
        """Return the signs; `copied` has the bytes that the new replicas of each move have."""
        quorum, quorum_error = await self._describe_quorum(admin)
        self._check_registry()
        return ClusterSigns(
            await _count_stuck(admin),
            await self._read_minimums(admin, sample),
            quorum,
            quorum_error,
            self._registry_error,
            self.find_stalled(copied),
            None if copied or sample.reassigning else await self._read_throttle(admin, sample),
        )

    def find_stalled(self, copied: Mapping[TopicPartition, int]) -> tuple[TopicPartition, ...]:
        """Return the moves whose new replicas have got no bytes for some minutes."""
        now_ms = self._now_ms()
        moves = {}
        for where, size in copied.items():
            before = self._moves.get(where)
            moves[where] = (size, now_ms) if before is None or before[0] != size else before
        self._moves = moves
        return tuple(sorted(where for where, (_, since_ms) in moves.items() if now_ms - since_ms >= STALLED_MS))

    async def close(self) -> None:
        """End what goes on."""
        await self._minimums.close()
        if self._registry_check is not None:
            self._registry_check.cancel()
            await asyncio.gather(self._registry_check, return_exceptions=True)

    async def _read_minimums(self, admin: AsyncAdmin, sample: ClusterSample) -> Mapping[str, int]:
        # Partitions with all their replicas in sync are never below: the minimum counts at most those.
        names = [topic.name for topic in sample.topics.values() if topic.under_replicated][:_MINIMUMS_MAX]
        return dict(await self._minimums.read(admin, names, _MINIMUMS_S)) if names else {}

    async def _describe_quorum(self, admin: AsyncAdmin) -> tuple[QuorumDescription | None, str]:
        try:
            async with asyncio.timeout(_QUORUM_S):
                quorum = await admin.describe_quorum()
        except (UnsupportedVersionError, ClusterAuthorizationError):
            # A cluster with ZooKeeper, or a console without the right: nothing is known, which is no finding.
            return None, ""
        except (KafkaError, TimeoutError) as error:
            if self._quorum_failed_ms is None:
                self._quorum_failed_ms = self._now_ms()
            lasts = self._now_ms() - self._quorum_failed_ms >= _NO_LEADER_MS
            return None, (str(error) or f"no answer within {_QUORUM_S:g} seconds") if lasts else ""
        self._quorum_failed_ms = None
        return quorum, ""

    def _check_registry(self) -> None:
        """Begin a check in the background: a registry that does not answer must not hold up the samples."""
        now_ms = self._now_ms()
        is_under_way = self._registry_check is not None and not self._registry_check.done()
        if self._schemas is not None and not is_under_way and now_ms - self._registry_ms >= _REGISTRY_EVERY_MS:
            self._registry_ms = now_ms
            self._registry_check = asyncio.create_task(self._ask_registry(self._schemas))

    async def _ask_registry(self, schemas: SchemaClient) -> None:
        try:
            await asyncio.to_thread(schemas.registry.call, "GET", "/config")
        except UnknownSchema:
            # It answers, and has no such path.
            self._registry_error = ""
        except RegistryError as error:
            # A refusal is an answer too: the console may lack the right to this path.
            is_refusal = error.status is not None and error.status < HTTPStatus.INTERNAL_SERVER_ERROR
            self._registry_error = "" if is_refusal else str(error)
        else:
            self._registry_error = ""

    async def _read_throttle(self, admin: AsyncAdmin, sample: ClusterSample) -> int | None:
        now_ms = self._now_ms()
        # One that was found is looked at each time, so that the finding ends with it.
        if self._throttle is not None or now_ms - self._throttle_ms >= _THROTTLE_EVERY_MS:
            self._throttle_ms = now_ms
            self._throttle = await read_throttle(admin, sample)
        return self._throttle


async def read_throttle(admin: AsyncAdmin, sample: ClusterSample) -> int | None:
    """Return the lowest rate of a broker; None without a throttle, or where brokers do not tell."""
    brokers = [ConfigResource.broker(broker.id) for broker in sample.brokers if not broker.fenced]
    try:
        described = await admin.describe_configs(brokers, keys=RATES)
    except (KafkaError, SomeFailed):
        return None
    rates = [
        int(entry.value or 0)
        for entries in described.values()
        for entry in entries.values()
        # Without a throttle the rate is not set, or has its default, the largest number.
        if entry.source is ConfigSource.DYNAMIC_BROKER_CONFIG and (entry.value or "").isdecimal()
    ]
    return min(rates, default=None)


async def _count_stuck(admin: AsyncAdmin) -> int:
    try:
        return len(await admin.list_transactions(states=("Ongoing",), duration_ms=_STUCK_MS))
    except (UnsupportedVersionError, ClusterAuthorizationError):
        # Brokers before KIP-994 know no duration; without the right to describe them there is nothing to count.
        return 0
