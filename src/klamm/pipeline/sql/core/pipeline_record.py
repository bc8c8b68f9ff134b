"""What a cluster stores about a pipeline: its identity and folder, and the run that has it now. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.sql.core.graph import Pipeline
from klamm.pipeline.sql.core.identity import QueryIdentity, describe

HEARTBEAT_S: Final = 5.0
_FRESH_MS: Final = 20_000
"""Four heartbeats: a run that has not written one for so long is gone, or so slow that fencing it is right."""


@dataclass(frozen=True, slots=True)
class PipelineRecord:
    """The identity of a pipeline, and the machine and folder of its checkpoints."""

    identity: QueryIdentity
    host: str
    folder: str

    @property
    def place(self) -> str:
        """The machine and the folder."""
        return f"{self.host}:{self.folder}"

    def encode(self) -> bytes:
        """Return the value of the record in the cluster's topic."""
        return json.dumps({"host": self.host, "folder": self.folder, "identity": self.identity.encode()}).encode()

    @classmethod
    def decode(cls, data: bytes, topic: str) -> PipelineRecord:
        """Parse the value of a record."""
        try:
            document = json.loads(data)
            return cls(QueryIdentity.decode(document["identity"], topic), document["host"], document["folder"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{topic} has a record that is no pipeline: {error!r}") from None


@dataclass(frozen=True, slots=True)
class PipelineLease:
    """A run of a pipeline, and when it last wrote that it runs; 0 when it has ended."""

    run: str
    host: str
    pid: int
    folder: str
    heartbeat_ms: int

    def encode(self) -> str:
        """Return the metadata of the group's offset."""
        return json.dumps([self.run, self.host, self.pid, self.folder, self.heartbeat_ms])

    @classmethod
    def decode(cls, text: str) -> PipelineLease | None:
        """Parse the metadata of the group's offset; None when it is something else."""
        try:
            run, host, pid, folder, heartbeat_ms = json.loads(text)
            return cls(str(run), str(host), int(pid), str(folder), int(heartbeat_ms))
        except (TypeError, ValueError):
            return None

    def blocks(self, host: str, folder: str, now_ms: int) -> bool:
        """Whether a run elsewhere is alive; the lock of a folder decides between runs of the same folder."""
        return (self.host, self.folder) != (host, folder) and now_ms - self.heartbeat_ms < _FRESH_MS


def shared_queries(record: PipelineRecord, pipeline: Pipeline) -> list[str]:
    """Return the queries that a recorded pipeline has too, with the same output."""
    recorded = record.identity.queries
    return [
        name
        for name, description in describe(pipeline).items()
        if name in recorded and _output(recorded[name]) == _output(description)
    ]


def _output(description: Any) -> tuple[Any, ...]:
    options = description["options"]
    return description["topic"], options.get("path"), options.get("table")


def choose_identity(
    pipeline: Pipeline,
    name: str,
    place: str,
    stored: QueryIdentity | None,
    record: PipelineRecord | None,
    repaired: frozenset[str],
) -> QueryIdentity | None:
    """Return the identity that a run continues, None for a new pipeline; ConfigError when another folder has it.

    `repaired` are the queries that the run rebuilds or adopts: they get new checkpoints, so the old ones may be gone.
    """
    shared = [] if record is None else shared_queries(record, pipeline)
    if record is None or not shared:
        return stored
    if stored is not None and stored.id != record.identity.id:
        raise ConfigError(
            f"the name {name} is used by the pipeline in {record.place}, which writes to the same topics or tables; "
            f"this one is in {place}: run that one, or SET name = '...' and write to other topics"
        )
    if stored is None:
        behind, reason = shared, f"it has run in {record.place}, and {place} has no checkpoints: they were removed"
    else:
        reason = f"{place} was restored from a copy that is older than its last rebuild"
        behind = [
            query for query in shared if stored.generations.get(query, 0) < record.identity.generations.get(query, 0)
        ]
    lacking = [query for query in behind if query not in repaired]
    if lacking:
        commands = "\n".join(
            f"{query}: --adopt {query} continues where its output ends, --rebuild {query} reads from the beginning"
            for query in lacking
        )
        raise ConfigError(f"{name}: {reason}; run it there, or start with\n{commands}")
    if stored is None:
        return record.identity
    newest = {
        query: max(generation, record.identity.generations.get(query, 0))
        for query, generation in {**record.identity.generations, **stored.generations}.items()
    }
    return replace(stored, generations=newest)
