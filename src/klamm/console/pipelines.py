"""The pipelines of a cluster: those whose state is on this machine, and those that the cluster has a record of.

Status and requests are files in a pipeline's folder, as for `klamm pipeline show` and `stop`; Spark is not needed.
Folders are those of the user's data folder or of --state, never one that a record names: others can write records.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from klamm.client.errors import KafkaError
from klamm.console.clusters import ClusterLink
from klamm.console.core.pipeline_rows import PipelineRow, make_pipeline_row, make_remote_row
from klamm.console.message_reader import RECORDS_MAX, ReadRequest, read_records
from klamm.model.errors import ConfigError
from klamm.model.ids import TopicPartition
from klamm.pipeline.sql.core.pipeline_record import PipelineLease, PipelineRecord
from klamm.pipeline.sql.known_homes import LOCAL_ROOT, KnownHome, cluster_folder, homes_below, homes_by_cluster
from klamm.pipeline.sql.pipeline_registry import TOPIC, lease_group
from klamm.pipeline.sql.status import ControlAction, Home

_REMOTE_MAX: Final = 100
_FRESH_MS: Final = 20_000
_ANSWER_S: Final = 5.0
"""How long a form waits for the run's answer; the run goes on with the request after that too."""
_POLL_S: Final = 0.1
STOP: Final = "stop"


@dataclass(frozen=True, slots=True)
class PipelineEntry:
    """A pipeline, and its folder if that is on this machine."""

    row: PipelineRow
    home: Home | None = None


class PipelineDirectory:
    """Finds pipelines; `root` is a folder with one folder for each of them, as of --state."""

    def __init__(self, now_ms: Callable[[], int], root: str | None = None) -> None:
        self._now_ms = now_ms
        self._root = root

    async def list_pipelines(self, link: ClusterLink) -> dict[str, PipelineEntry]:
        """Return all pipelines of a cluster by name."""
        records = await self._read_records(link)
        cluster_id = "" if link.sample is None else link.sample.cluster_id
        ids = {record.identity.id for record in records.values()}
        entries = await asyncio.to_thread(self._list_homes, cluster_id, ids)
        remote = [record for name, record in records.items() if name not in entries][:_REMOTE_MAX]
        for entry in await asyncio.gather(*(self._describe_remote(link, record) for record in remote)):
            entries[entry.row.name] = entry
        return dict(sorted(entries.items()))

    def _list_homes(self, cluster_id: str, ids: set[str]) -> dict[str, PipelineEntry]:
        entries: dict[str, PipelineEntry] = {}
        for known in self._known_homes(cluster_id, ids):
            # The folder of the cluster comes first; another one of the same name needs --state.
            if known.name not in entries:
                row = make_pipeline_row(known.name, known.home.path, known.home.status())
                entries[known.name] = PipelineEntry(row, known.home)
        return entries

    def _known_homes(self, cluster_id: str, ids: set[str]) -> Sequence[KnownHome]:
        folder = cluster_folder(cluster_id)
        of_cluster = [known for known in homes_by_cluster() if cluster_id and known.cluster == folder]
        # These folders do not say which cluster they belong to: the cluster's own records decide.
        unplaced = [known for known in homes_below(self._root or LOCAL_ROOT) if _identity_of(known.home) in ids]
        return [*unplaced, *of_cluster] if self._root else [*of_cluster, *unplaced]

    async def _read_records(self, link: ClusterLink) -> dict[str, PipelineRecord]:
        if link.sample is None or TOPIC not in link.sample.topics:
            return {}
        try:
            result = await read_records(link, ReadRequest(TOPIC, limit=RECORDS_MAX))
        except KafkaError:
            # Without the right to read the topic, pipelines of this machine are still shown.
            return {}
        records: dict[str, PipelineRecord] = {}
        seen: set[str] = set()
        for record in result.records:  # the newest first
            name = (record.key or b"").decode(errors="replace")
            if name in seen:
                continue
            seen.add(name)
            if record.value is not None:
                try:
                    records[name] = PipelineRecord.decode(record.value, TOPIC)
                except ConfigError:
                    continue
        return records

    async def _describe_remote(self, link: ClusterLink, record: PipelineRecord) -> PipelineEntry:
        lease: PipelineLease | None = None
        where = TopicPartition(TOPIC, 0)
        try:
            admin = await link.admin()
            committed = (await admin.list_group_offsets(lease_group(record.identity), [where])).get(where)
            lease = None if committed is None else PipelineLease.decode(committed.metadata)
        except KafkaError:
            lease = None
        alive = lease is not None and self._now_ms() - lease.heartbeat_ms < _FRESH_MS
        row = make_remote_row(
            record.identity.name,
            f"{lease.host}:{lease.folder}" if lease is not None else record.place,
            alive=alive,
            pid=lease.pid if lease is not None and alive else None,
            heartbeat_ms=lease.heartbeat_ms if lease is not None and lease.heartbeat_ms else None,
        )
        return PipelineEntry(row)


async def send_control(home: Home, action: str, query: str | None) -> None:
    """Send a request to the run and wait a little for its answer; ValueError when it is refused."""
    if not await asyncio.to_thread(home.running):
        raise ValueError("the pipeline does not run")
    if action == STOP:
        await asyncio.to_thread(home.request_stop)
        return
    request_id = await asyncio.to_thread(home.send_request, ControlAction(action), query)
    deadline = time.monotonic() + _ANSWER_S
    while time.monotonic() < deadline:
        answers: Mapping[str, str] = (await asyncio.to_thread(home.status)).get("requests") or {}
        answer = answers.get(request_id)
        if answer:
            raise ValueError(answer)
        if answer is not None:
            return
        # Polled: the answer is in a file that the process rewrites.
        await asyncio.sleep(_POLL_S)


def _identity_of(home: Home) -> str:
    try:
        identity = home.identity()
    except ConfigError:
        return ""
    return "" if identity is None else identity.id
