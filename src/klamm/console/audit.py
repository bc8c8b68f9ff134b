"""Every change that the console makes: one log line, and one record in a topic where one is configured.

The record is written after the change and before its answer. One that cannot be written is an error in the log.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any, Final

from klamm.client.errors import KafkaError
from klamm.console.clusters import ClusterLink
from klamm.console.message_reader import RECORDS_MAX, ReadRequest, read_records
from klamm.telemetry import get_logger

_log = get_logger("console")

KEPT: Final = 1000
"""Entries of each cluster that the audit page shows, the newest: of this run, and before it those of the topic."""
OUTCOMES: Final = ("done", "refused", "failed", "unknown")
LOGIN_ACTIONS: Final = frozenset({"login", "login failed"})
_NO_CLUSTER: Final = ""
_CLUSTER_ACTIONS: Final = LOGIN_ACTIONS | {
    "elect leaders",
    "start reassignment",
    "cancel reassignment",
    "set throttle",
    "remove throttle",
    "change broker setting",
    "abort transaction",
    "add ACL",
    "delete ACL",
    "set password",
    "delete password",
    "set quota",
    "delete quota",
}
"""Actions whose resource is no topic, group or pipeline."""
_WRITING_MAX: Final = 100
"""Records of logins that are being written; while a cluster does not answer, those after them are in the log only."""
_VALUES_MAX: Final = 1000
_TOPIC_FIELDS: Final = ("from", "to")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A change or a login, or an attempt at one."""

    time_ms: int
    person: str
    peer: str
    cluster: str
    """Empty for logins, which are of no cluster."""
    action: str
    resource: str
    outcome: str
    """done, refused, failed, or unknown: the cluster did not answer whether it was done."""
    detail: dict[str, Any] = field(default_factory=dict)


class AuditTrail:
    """Writes entries."""

    def __init__(self, topic: str | None, now_ms: Callable[[], int]) -> None:
        self._topic = topic
        self._now_ms = now_ms
        # By cluster: changes of one do not push out those of another.
        self._entries: dict[str, deque[AuditEntry]] = {}
        self._writing: set[asyncio.Task[None]] = set()
        self._created: set[str] = set()
        # By cluster: one that does not answer must not hold up the records of others.
        self._creating: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._loaded: set[str] = set()
        self._loading = asyncio.Lock()

    def list_entries(self, cluster: str) -> list[AuditEntry]:
        """Return the entries of a cluster and the logins, the newest first."""
        entries = [*self._entries.get(cluster, ()), *self._entries.get(_NO_CLUSTER, ())]
        return sorted(entries, key=attrgetter("time_ms"), reverse=True)

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
        entry = self.note(link.name, person, peer, action, resource, outcome, detail)
        await self._append(link, entry)

    def write_login(self, links: Iterable[ClusterLink], person: str, peer: str, reason: str = "") -> None:
        """Keep a login, or with a reason one that failed; its record is in the topic of the first cluster.

        Written in the background: a cluster that does not answer must not hold up the login.
        """
        action, outcome = ("login failed", "refused") if reason else ("login", "done")
        entry = self.note(_NO_CLUSTER, person, peer, action, "console", outcome, {"reason": reason} if reason else {})
        link = next(iter(links), None)
        if self._topic is None or link is None or len(self._writing) >= _WRITING_MAX:
            return
        task = asyncio.create_task(self._append(link, entry))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def close(self, wait_s: float) -> None:
        """Wait for records that are being written."""
        if self._writing:
            await asyncio.wait(set(self._writing), timeout=wait_s)

    def note(
        self,
        cluster: str,
        person: str,
        peer: str,
        action: str,
        resource: str,
        outcome: str,
        detail: dict[str, Any] | None = None,
    ) -> AuditEntry:
        """Keep one entry in the log and for the page."""
        entry = AuditEntry(self._now_ms(), person, peer, cluster, action, resource, outcome, detail or {})
        self._of_cluster(cluster).appendleft(entry)
        _log.info(f"audit {action}", cluster=cluster, resource=resource, outcome=outcome, person=person, peer=peer)
        return entry

    async def _append(self, link: ClusterLink, entry: AuditEntry) -> None:
        if self._topic is None:
            return
        try:
            await self._ensure_topic(link)
            producer = await link.producer()
            await producer.send_and_wait(self._topic, json.dumps(asdict(entry)).encode(), entry.person.encode())
        except (KafkaError, OSError) as error:
            _log.failure(
                "audit record not written", error, cluster=link.name, action=entry.action, resource=entry.resource
            )

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

    def _of_cluster(self, cluster: str) -> deque[AuditEntry]:
        return self._entries.setdefault(cluster, deque(maxlen=KEPT))

    def _merge(self, earlier: Iterable[AuditEntry]) -> None:
        """Add entries of the topic; those of this run are there already."""
        by_cluster: dict[str, list[AuditEntry]] = {}
        for entry in earlier:
            by_cluster.setdefault(entry.cluster, []).append(entry)
        for cluster, entries in by_cluster.items():
            kept = self._of_cluster(cluster)
            present = {_identify(entry) for entry in kept}
            missing = [entry for entry in entries if _identify(entry) not in present]
            newest_first = sorted([*kept, *missing], key=attrgetter("time_ms"), reverse=True)
            kept.clear()
            kept.extend(newest_first[:KEPT])

    async def _ensure_topic(self, link: ClusterLink) -> None:
        assert self._topic is not None
        async with self._creating[link.name]:
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
        if not isinstance(detail, dict) or outcome not in OUTCOMES:
            return None
        action = str(fields["action"])
        return AuditEntry(
            int(fields["time_ms"]),
            str(fields["person"]),
            str(fields["peer"]),
            # By the name that the cluster has now: a console may have had another one for it.
            _NO_CLUSTER if action in LOGIN_ACTIONS else cluster,
            action,
            str(fields["resource"]),
            outcome,
            detail,
        )
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def shorten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first of many values, and how many more there are: a record of the topic has a limit."""
    short = dict(itertools.islice(values.items(), _VALUES_MAX))
    return short if len(values) <= _VALUES_MAX else {**short, "more": len(values) - _VALUES_MAX}


def choose_entries(entries: Iterable[AuditEntry], is_allowed: Callable[[str], bool]) -> list[AuditEntry]:
    """Return the entries about topics, groups and pipelines that are allowed, without the names of other topics."""
    return [
        replace(entry, detail=_choose_detail(entry.detail, is_allowed))
        for entry in entries
        if entry.action not in _CLUSTER_ACTIONS and is_allowed(_name_resource(entry))
    ]


def _name_resource(entry: AuditEntry) -> str:
    # That of a transaction in a partition is TOPIC-PARTITION.
    return entry.resource.rpartition("-")[0] if entry.action == "abort hanging transaction" else entry.resource


def _choose_detail(detail: Mapping[str, Any], is_allowed: Callable[[str], bool]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for name, value in detail.items():
        if name in ("before", "after") and isinstance(value, Mapping):
            # Offsets by TOPIC-PARTITION.
            chosen[name] = {place: offset for place, offset in value.items() if is_allowed(place.rpartition("-")[0])}
        elif name not in _TOPIC_FIELDS or is_allowed(str(value)):
            chosen[name] = value
    return chosen


def _identify(entry: AuditEntry) -> tuple[int, str, str, str]:
    return entry.time_ms, entry.person, entry.action, entry.resource
