"""Every change that the console makes: one log line, and one record in a topic where one is configured.

The record is written after the change and before its answer. One that cannot be written is an error in the log.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import Any, Final

from klamm.client.errors import KafkaError
from klamm.console.clusters import ClusterLink
from klamm.console.message_reader import RECORDS_MAX, ReadRequest, read_records
from klamm.telemetry import get_logger

_log = get_logger("console")

KEPT: Final = 1000
"""Entries that the audit page shows, the newest: since the start of the console, and before it those of the topic."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A change, or an attempt that was refused."""

    time_ms: int
    person: str
    peer: str
    cluster: str
    action: str
    resource: str
    outcome: str
    """done, refused or failed."""
    detail: dict[str, Any] = field(default_factory=dict)


class AuditTrail:
    """Writes entries."""

    def __init__(self, topic: str | None, now_ms: Callable[[], int]) -> None:
        self._topic = topic
        self._now_ms = now_ms
        self.entries: deque[AuditEntry] = deque(maxlen=KEPT)
        self._created: set[str] = set()
        self._creating = asyncio.Lock()
        self._loaded: set[str] = set()
        self._loading = asyncio.Lock()

    async def write(
        self,
        link: ClusterLink,
        person: str,
        peer: str,
        action: str,
        resource: str,
        outcome: str,
        detail: dict[str, Any] | None = None,
    ) -> None:
        """Keep one entry, in the log, for the page and in the topic of its cluster."""
        entry = AuditEntry(self._now_ms(), person, peer, link.name, action, resource, outcome, detail or {})
        self.entries.appendleft(entry)
        _log.info(f"audit {action}", cluster=link.name, resource=resource, outcome=outcome, person=person, peer=peer)
        if self._topic is None:
            return
        try:
            await self._ensure_topic(link)
            producer = await link.producer()
            await producer.send_and_wait(self._topic, json.dumps(asdict(entry)).encode(), person.encode())
        except KafkaError as error:
            _log.failure("audit record not written", error, cluster=link.name, action=action, resource=resource)

    async def load(self, link: ClusterLink) -> None:
        """Read what earlier runs of a console wrote to the topic, once; without the right to read it, nothing."""
        async with self._loading:
            if self._topic is None or link.name in self._loaded or link.sample is None:
                return
            if self._topic in link.sample.topics:
                try:
                    result = await read_records(link, ReadRequest(self._topic, limit=RECORDS_MAX))
                except KafkaError as error:
                    _log.warning("audit topic not read", cluster=link.name, topic=self._topic, error=str(error))
                    return
                self._merge(filter(None, (parse_entry(record.value, link.name) for record in result.records)))
            self._loaded.add(link.name)

    def _merge(self, earlier: Iterable[AuditEntry]) -> None:
        """Add entries of the topic; those of this run are there already."""
        present = {(entry.time_ms, entry.person, entry.action, entry.resource) for entry in self.entries}
        missing = [
            entry for entry in earlier if (entry.time_ms, entry.person, entry.action, entry.resource) not in present
        ]
        newest_first = sorted([*self.entries, *missing], key=attrgetter("time_ms"), reverse=True)
        self.entries.clear()
        self.entries.extend(newest_first[:KEPT])

    async def _ensure_topic(self, link: ClusterLink) -> None:
        assert self._topic is not None
        async with self._creating:
            if link.name in self._created:
                return
            admin = await link.admin()
            if self._topic not in {topic.name for topic in await admin.list_topics()}:
                await admin.create_topic(self._topic, configs={"retention.ms": -1})
            self._created.add(link.name)


def parse_entry(data: bytes | None, cluster: str) -> AuditEntry | None:
    """Parse a record of the audit topic; None for anything else that was written there."""
    try:
        fields = json.loads(data or b"")
        detail = fields["detail"]
        outcome = str(fields["outcome"])
        if not isinstance(detail, dict) or outcome not in ("done", "refused", "failed"):
            return None
        # By the name that the cluster has now: a console may have had another one for it.
        return AuditEntry(
            int(fields["time_ms"]),
            str(fields["person"]),
            str(fields["peer"]),
            cluster,
            str(fields["action"]),
            str(fields["resource"]),
            outcome,
            detail,
        )
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
