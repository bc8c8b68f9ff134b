"""min.insync.replicas of all topics: read for the check of restarts, and kept for a while where there are many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.errors import KafkaError, SomeFailed
from klamm.model.config_resources import ConfigResource

SETTING: Final = "min.insync.replicas"
_TOPICS_PER_REQUEST: Final = 500
_FRESH_S: Final = 2.0
_KEPT_S: Final = 300.0
"""Of clusters with more topics than one request has."""


class InsyncMinimums:
    """What is known of one cluster."""

    def __init__(self) -> None:
        self._minimums: dict[str, int] = {}
        self._read_s: dict[str, float] = {}
        self._reading: asyncio.Task[None] | None = None
        self.error = ""
        """Why the last reading failed."""

    async def read(self, admin: AsyncAdmin, topics: Sequence[str], wait_s: float) -> Mapping[str, int]:
        """Return what is known after at most `wait_s`; a reading that takes longer goes on for the next page."""
        if self._reading is None or self._reading.done():
            kept_s = _FRESH_S if len(topics) <= _TOPICS_PER_REQUEST else _KEPT_S
            oldest_s = time.monotonic() - kept_s
            stale = [topic for topic in topics if self._read_s.get(topic, 0.0) <= oldest_s]
            for topic in self._minimums.keys() - set(topics):
                del self._minimums[topic]
                del self._read_s[topic]
            self._reading = asyncio.create_task(self._read(admin, stale))
        await asyncio.wait({self._reading}, timeout=wait_s)
        return self._minimums

    async def _read(self, admin: AsyncAdmin, topics: Sequence[str]) -> None:
        self.error = ""
        for begin in range(0, len(topics), _TOPICS_PER_REQUEST):
            resources = [ConfigResource.topic(topic) for topic in topics[begin : begin + _TOPICS_PER_REQUEST]]
            try:
                described = await admin.describe_configs(resources, keys=[SETTING])
            except SomeFailed as error:
                # Topics that were deleted meanwhile, or may not be described.
                described = error.results
            except (KafkaError, OSError) as error:
                self.error = str(error) or type(error).__name__
                return
            now_s = time.monotonic()
            for resource, entries in described.items():
                value = entries[SETTING].value if SETTING in entries else None
                if value is not None and value.isdecimal():
                    self._minimums[resource.name] = int(value)
                    self._read_s[resource.name] = now_s

    async def close(self) -> None:
        """End a reading that goes on."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
