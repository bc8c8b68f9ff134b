"""The pipelines of a cluster: those that publish to it, and those whose state is on this machine.

What is published is in `ClusterLink.pipelines`, which the collector's thread keeps. Of a run on this machine the files
are read, as by `klamm pipeline show` and `stop`; folders are those of the user's data folder or of --state, never one
that a record names: others can write records.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from klamm.console.clusters import ClusterLink
from klamm.console.core.known_pipelines import RemotePipeline
from klamm.console.core.pipeline_rows import PipelineRow, make_pipeline_row
from klamm.model.errors import ConfigError
from klamm.pipeline.sql.core.published_status import REQUESTS_TOPIC, STOP, PipelineRequest, PublishedStatus
from klamm.pipeline.sql.known_homes import LOCAL_ROOT, KnownHome, cluster_folder, homes_below, homes_by_cluster
from klamm.pipeline.sql.status import ControlAction, Home

_READ_S: Final = 3.0
"""How long the first page after the start waits until the topics are read."""
_ANSWER_S: Final = 5.0
"""How long a form waits for the run's answer; the run goes on with the request after that too."""
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class PipelineEntry:
    """A pipeline: its folder if that is on this machine, or what its run has published."""

    row: PipelineRow
    home: Home | None = None
    published: PublishedStatus | None = None


class PipelineDirectory:
    """Finds pipelines; `root` is a folder with one folder for each of them, as of --state."""

    def __init__(self, now_ms: Callable[[], int], root: str | None = None) -> None:
        self._now_ms = now_ms
        self._root = root

    async def list_pipelines(self, link: ClusterLink) -> dict[str, PipelineEntry]:
        """Return all pipelines of a cluster by name."""
        deadline_s = time.monotonic() + _READ_S
        # Polled: another thread reads them, and only pages of the first seconds wait.
        while link.pipelines is None and link.sample is not None and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        return await asyncio.to_thread(self._list_all, link)

    def _list_all(self, link: ClusterLink) -> dict[str, PipelineEntry]:
        known = link.pipelines
        remote = {} if known is None else known.list_pipelines(self._now_ms())
        cluster_id = "" if link.sample is None else link.sample.cluster_id
        entries = self._list_homes(cluster_id, set() if known is None else known.ids())
        for name, pipeline in remote.items():
            if name not in entries or _runs_elsewhere(pipeline, entries[name]):
                entries[name] = PipelineEntry(pipeline.row, published=pipeline.published)
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


async def send_control(entry: PipelineEntry, link: ClusterLink, action: str, query: str | None) -> None:
    """Send a request to the run and wait a little for its answer; ValueError when it is refused."""
    if entry.home is not None:
        await _send_to_folder(entry.home, action, query)
    elif entry.published is None or not entry.row.is_alive:
        raise ValueError("the pipeline does not run")
    else:
        await _send_to_cluster(link, entry.row.name, entry.published, action, query)


async def _send_to_folder(home: Home, action: str, query: str | None) -> None:
    if not await asyncio.to_thread(home.running):
        raise ValueError("the pipeline does not run")
    if action == STOP:
        await asyncio.to_thread(home.request_stop)
        return
    request_id = await asyncio.to_thread(home.send_request, ControlAction(action), query)

    async def read_answers() -> Mapping[str, str]:
        return (await asyncio.to_thread(home.status)).get("requests") or {}

    await _wait_for_answer(request_id, read_answers)


async def _send_to_cluster(
    link: ClusterLink, name: str, published: PublishedStatus, action: str, query: str | None
) -> None:
    """Write a request for the run whose status was shown; one that has started since does not carry it out."""
    request = PipelineRequest(uuid.uuid4().hex, published.run, action, query, time.time_ns() // 1_000_000)
    producer = await link.producer()
    await (await producer.send(REQUESTS_TOPIC, request.encode(), name.encode(), partition=0))

    async def read_answers() -> Mapping[str, str]:
        newest = None if link.pipelines is None else link.pipelines.status(name)
        return {} if newest is None or newest.run != published.run else newest.answers

    await _wait_for_answer(request.id, read_answers)


async def _wait_for_answer(request_id: str, read_answers: Callable[[], Awaitable[Mapping[str, str]]]) -> None:
    deadline_s = time.monotonic() + _ANSWER_S
    while time.monotonic() < deadline_s:
        answer = (await read_answers()).get(request_id)
        if answer:
            raise ValueError(answer)
        if answer is not None:
            return
        # Polled: the answer is in a status that the run writes again.
        await asyncio.sleep(_POLL_S)


def _runs_elsewhere(pipeline: RemotePipeline, entry: PipelineEntry) -> bool:
    """Whether a pipeline that has a folder here is run from another one."""
    if entry.row.is_alive or not pipeline.row.is_alive or entry.home is None:
        return False
    # Of the own folder the lock knows better than a heartbeat of some seconds ago.
    return pipeline.row.place != f"{socket.gethostname()}:{os.path.abspath(entry.home.path)}"


def _identity_of(home: Home) -> str:
    try:
        identity = home.identity()
    except ConfigError:
        return ""
    return "" if identity is None else identity.id
