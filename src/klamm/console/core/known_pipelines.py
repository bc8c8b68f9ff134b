"""What the topics of a cluster say about its pipelines: identities, statuses, leases. Pure, and of bounded size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from klamm.console.core.pipeline_rows import PipelineRow, make_pipeline_row, make_remote_row
from klamm.model.errors import ConfigError
from klamm.pipeline.sql.core.pipeline_record import PipelineLease, PipelineRecord
from klamm.pipeline.sql.core.published_status import STATUS_TOPIC, PublishedStatus

PIPELINES_MAX: Final = 1000
BYTES_MAX: Final = 8 << 20
"""Of all statuses, and of all identities; those that were not written for the longest time are dropped first."""
_VALUE_BYTES_MAX: Final = 1 << 20
"""One that is larger is no record of a pipeline; it must not push all others out."""
_FRESH_MS: Final = 20_000
"""Four heartbeats of a lease."""
_REPEATED_MS: Final = 90_000
"""A run repeats its status after a minute: without the right to read its lease, an older one is that of a dead run."""


@dataclass(frozen=True, slots=True)
class RemotePipeline:
    """A pipeline by the cluster; `published` is None for one that has not written a status."""

    row: PipelineRow
    published: PublishedStatus | None = None


class NewestValues:
    """The newest value of each key, and its time; the oldest are dropped where they are too many."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[bytes, int]] = {}
        """The one that was written last at the end."""
        self._size = 0

    def take(self, name: str, value: bytes | None, time_ms: int) -> None:
        """Take a record; without a value, or with one that is too large, the key is removed."""
        # Taken out first: what changed last is at the end.
        self._remove(name)
        if value is not None and len(value) <= _VALUE_BYTES_MAX:
            self._values[name] = (value, time_ms)
            self._size += len(value)
        while self._size > BYTES_MAX or len(self._values) > PIPELINES_MAX:
            self._remove(next(iter(self._values)))

    def _remove(self, name: str) -> None:
        value, _ = self._values.pop(name, (b"", 0))
        self._size -= len(value)

    def copy(self) -> dict[str, tuple[bytes, int]]:
        """Return all of them; at once, as another thread may be changing them."""
        return dict(self._values)


class KnownPipelines:
    """The newest record of each pipeline; written by one thread, read by others."""

    def __init__(self) -> None:
        self._statuses = NewestValues()
        self._records = NewestValues()
        self.leases: Mapping[str, PipelineLease | None] = {}
        """By the id of the pipeline, those that could be read; None without a run."""

    def take(self, topic: str, key: bytes | None, value: bytes | None, time_ms: int) -> None:
        """Take a record of one of the topics."""
        values = self._statuses if topic == STATUS_TOPIC else self._records
        values.take((key or b"").decode(errors="replace"), value, time_ms)

    def status(self, name: str) -> PublishedStatus | None:
        """Return the newest status of a pipeline."""
        stored = self._statuses.copy().get(name)
        return None if stored is None else _decode_status(stored[0])

    def ids(self) -> set[str]:
        """Return the ids of all pipelines."""
        statuses = [_decode_status(data) for data, _ in self._statuses.copy().values()]
        ids = {status.pipeline for status in statuses if status is not None}
        return ids | {record.identity.id for record in self._decode_records().values()}

    def leased_ids(self) -> set[str]:
        """Return the ids of pipelines that may have a run; a status of a run that has ended says enough."""
        statuses = {name: _decode_status(data) for name, (data, _) in self._statuses.copy().items()}
        ids = {status.pipeline for status in statuses.values() if status is not None and status.is_alive}
        return ids | {record.identity.id for name, record in self._decode_records().items() if not statuses.get(name)}

    def list_pipelines(self, now_ms: int) -> dict[str, RemotePipeline]:
        """Return all pipelines by name; a renamed one only by its newest name."""
        records = self._decode_records()
        pipelines = {record.name: self._describe_record(record, now_ms) for record in records.values()}
        names = {record.identity.id: name for name, record in records.items()}
        for name, (data, time_ms) in self._statuses.copy().items():
            published = _decode_status(data)
            if published is None or names.get(published.pipeline, name) != name:
                continue
            pipelines[name] = self._describe_status(name, published, time_ms, now_ms)
        return pipelines

    def _decode_records(self) -> dict[str, PipelineRecord]:
        records = {}
        for name, (data, _) in self._records.copy().items():
            try:
                records[name] = PipelineRecord.decode(data, name)
            except ConfigError:  # a newer version may have written it
                continue
        return records

    def _describe_record(self, record: PipelineRecord, now_ms: int) -> RemotePipeline:
        lease = self.leases.get(record.identity.id)
        return RemotePipeline(_make_lease_row(record.name, record.place, lease, now_ms))

    def _describe_status(self, name: str, published: PublishedStatus, time_ms: int, now_ms: int) -> RemotePipeline:
        lease = self.leases.get(published.pipeline)
        if lease is not None and lease.run != published.run and _is_fresh(lease, now_ms):
            # A newer run that has published nothing, perhaps for want of the right.
            return RemotePipeline(_make_lease_row(name, published.place, lease, now_ms))
        row = make_pipeline_row(name, published.place, published.status)
        is_alive = published.is_alive and (
            now_ms - time_ms < _REPEATED_MS
            if published.pipeline not in self.leases
            else lease is not None and lease.run == published.run and _is_fresh(lease, now_ms)
        )
        row = replace(
            row,
            is_here=False,
            takes_requests=published.takes_requests,
            state=row.state if is_alive or not published.is_alive else "gone",
            updated_ms=lease.heartbeat_ms if is_alive and lease is not None else row.updated_ms,
        )
        return RemotePipeline(row, published)


def _make_lease_row(name: str, place: str, lease: PipelineLease | None, now_ms: int) -> PipelineRow:
    alive = lease is not None and _is_fresh(lease, now_ms)
    return make_remote_row(
        name,
        place if lease is None else f"{lease.host}:{lease.folder}",
        alive=alive,
        pid=lease.pid if lease is not None and alive else None,
        heartbeat_ms=lease.heartbeat_ms if lease is not None and lease.heartbeat_ms else None,
    )


def _is_fresh(lease: PipelineLease, now_ms: int) -> bool:
    return now_ms - lease.heartbeat_ms < _FRESH_MS


def _decode_status(data: bytes) -> PublishedStatus | None:
    try:
        return PublishedStatus.decode(data)
    except ConfigError:  # others can write to the topic
        return None
