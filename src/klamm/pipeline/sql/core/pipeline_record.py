"""What a cluster stores about a pipeline: its identity and folder, and the run that has it now. Pure.

A pipeline is found by its name and by its outputs. A file that was renamed writes to the same topics and tables, and
continues by the record of the old name; any other pipeline with the same outputs would write the same rows again.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.sql.core.graph import Pipeline
from klamm.pipeline.sql.core.identity import (
    CONTINUES,
    PLACE_OPTIONS,
    REBUILD,
    SAME,
    QueryIdentity,
    compare,
    describe,
)
from klamm.pipeline.sql.core.statements import SINK

HEARTBEAT_S: Final = 5.0
_FRESH_MS: Final = 20_000
"""Four heartbeats: a run that has not written one for so long is gone, or so slow that fencing it is right."""


@dataclass(frozen=True, slots=True)
class PipelineRecord:
    """The identity of a pipeline, and the machine and folder of its checkpoints."""

    identity: QueryIdentity
    host: str
    folder: str
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Where each query writes, as `output_places` has it; records of older versions have none."""

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        return self.identity.name

    @property
    def places(self) -> Mapping[str, str]:
        """Where each query writes; of records of older versions what is clear without the folder of the run."""
        return self.outputs or _places(self.identity.queries, self.host, None)

    @property
    def place(self) -> str:
        """The machine and the folder."""
        return f"{self.host}:{self.folder}"

    def encode(self) -> bytes:
        """Return the value of the record in the cluster's topic."""
        document = {
            "host": self.host,
            "folder": self.folder,
            "identity": self.identity.encode(),
            "outputs": dict(self.outputs),
        }
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, data: bytes, topic: str) -> PipelineRecord:
        """Parse the value of a record."""
        try:
            document = json.loads(data)
            identity = QueryIdentity.decode(document["identity"], topic)
            return cls(identity, document["host"], document["folder"], document.get("outputs", {}))
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


def output_places(pipeline: Pipeline, host: str, working_folder: str) -> dict[str, str]:
    """Return where each query writes: a topic of the cluster, or the table or folder of a lake."""
    return _places(describe(pipeline), host, working_folder)


def _places(queries: Mapping[str, Mapping[str, Any]], host: str, working_folder: str | None) -> dict[str, str]:
    places = {}
    for name, query in queries.items():
        place = _lake_place(query, host, working_folder) if query["kind"] == SINK else query["topic"]
        if place:
            places[name] = place if query["kind"] == SINK else f"topic {place}"
    return places


def _lake_place(query: Mapping[str, Any], host: str, working_folder: str | None) -> str:
    options = query["options"]
    path = options.get("path")
    if not path:
        return ", ".join(options[option] for option in PLACE_OPTIONS if options.get(option))
    if "://" in path and not path.startswith("file:"):
        return str(path)
    path = path.removeprefix("file://").removeprefix("file:")
    if not posixpath.isabs(path):
        # An older record does not say where it ran.
        if working_folder is None:
            return ""
        path = posixpath.join(working_folder, path)
    # A folder of a machine: another machine may have one of the same name.
    return f"{host}:{posixpath.normpath(path)}"


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


def writes_again(record: PipelineRecord, pipeline: Pipeline, outputs: Mapping[str, str]) -> list[str]:
    """Return the queries whose rows a recorded pipeline writes too: the same name or statement, and the same output.

    Another statement may add its rows to the same topic.
    """
    writers: dict[str, set[tuple[str, str]]] = {}
    for query, place in record.places.items():
        writers.setdefault(place, set()).add((query, str(record.identity.queries[query]["select"])))
    described = describe(pipeline)
    return [
        query
        for query, place in outputs.items()
        if any(
            query == writer or (select and select == described[query]["select"])
            for writer, select in writers.get(place, ())
        )
    ]


def is_renamed(record: PipelineRecord, pipeline: Pipeline, outputs: Mapping[str, str]) -> bool:
    """Whether a recorded pipeline is this one under an older name: all of its queries are here, with their outputs."""
    if not record.places or any(outputs.get(query) != place for query, place in record.places.items()):
        return False
    verdicts = {change.name: change.verdict for change in compare(record.identity, pipeline)}
    return all(verdicts[query] in (SAME, CONTINUES, REBUILD) for query in record.identity.queries)


def find_renamed(
    records: Mapping[str, PipelineRecord], name: str, pipeline: Pipeline, outputs: Mapping[str, str]
) -> PipelineRecord | None:
    """Return the record under which a pipeline has run before its file was renamed; None when there is none."""
    own = records.get(name)
    if own is not None and shared_queries(own, pipeline):
        return None
    for record in records.values():
        if record.name != name and is_renamed(record, pipeline, outputs):
            return record
    return None


def related_records(
    records: Mapping[str, PipelineRecord], identity: QueryIdentity, outputs: Iterable[str]
) -> dict[str, PipelineRecord]:
    """Return the records that a start of this pipeline depends on: of its name, its id or its outputs."""
    written = set(outputs)
    return {
        name: record
        for name, record in records.items()
        if name == identity.name or record.identity.id == identity.id or written & set(record.places.values())
    }


def _own_record(
    records: Mapping[str, PipelineRecord],
    name: str,
    stored: QueryIdentity | None,
    pipeline: Pipeline,
    outputs: Mapping[str, str],
) -> PipelineRecord | None:
    """Return the record of this pipeline, under its name or an older one."""
    own = records.get(name)
    if own is not None and shared_queries(own, pipeline):
        return own
    if stored is not None:
        # A folder that the file names, and that has run under another name.
        return next((record for record in records.values() if record.identity.id == stored.id), None)
    return find_renamed(records, name, pipeline, outputs)


def _refuse_outputs_of_others(
    records: Mapping[str, PipelineRecord],
    own: PipelineRecord | None,
    stored: QueryIdentity | None,
    name: str,
    pipeline: Pipeline,
    outputs: Mapping[str, str],
) -> None:
    """Raise ConfigError for an output that this pipeline has not written before, and another one writes."""
    before: dict[str, str] = {}
    if stored is not None:
        before |= {query: outputs[query] for query in outputs if query in stored.queries}
    if own is not None:
        before |= own.places
    for record in records.values():
        if (own is not None and record.identity.id == own.identity.id) or record.name == name:
            continue
        for query in writes_again(record, pipeline, outputs):
            if before.get(query) == outputs[query]:
                continue
            raise ConfigError(
                f"{query} writes to {outputs[query]}, as the pipeline {record.name} in {record.place} does: its rows "
                f"would be there twice; run that one, SET name = '{record.name}' to continue it with this file, "
                "or write to another topic or table"
            )


def choose_identity(
    pipeline: Pipeline,
    name: str,
    place: str,
    stored: QueryIdentity | None,
    records: Mapping[str, PipelineRecord],
    repaired: frozenset[str],
    outputs: Mapping[str, str],
    *,
    has_run: bool = True,
) -> QueryIdentity | None:
    """Return the identity that a run continues, None for a new pipeline; ConfigError when another folder has it.

    `repaired` are the queries that the run rebuilds or adopts: they get new checkpoints, so the old ones may be gone.
    `outputs` is where the pipeline's queries write, `has_run` whether those of the stored identity have.
    """
    record = _own_record(records, name, stored, pipeline, outputs)
    _refuse_outputs_of_others(records, record, stored if has_run else None, name, pipeline, outputs)
    identity = _choose(pipeline, name, place, stored, record, repaired)
    return None if identity is None else replace(identity, name=name)


def _choose(
    pipeline: Pipeline,
    name: str,
    place: str,
    stored: QueryIdentity | None,
    record: PipelineRecord | None,
    repaired: frozenset[str],
) -> QueryIdentity | None:
    shared = [] if record is None else shared_queries(record, pipeline)
    if record is None or not shared:
        return stored
    if stored is not None and stored.id != record.identity.id:
        raise ConfigError(
            f"the name {name} is used by the pipeline in {record.place}, which writes to the same topics or tables; "
            f"this one is in {place}: run that one, or SET name = '...' and write to other topics"
        )
    if stored is None and record.name != name:
        advice = f"SET name = '{record.name}' continues there"
        behind, reason = shared, f"it has run as {record.name} in {record.place}, and {place} is a new folder; {advice}"
    elif stored is None:
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
    # Of the folder or of the record, whichever has the newest generation.
    adoptions = {
        query: entry
        for adopted in (stored.adoptions, record.identity.adoptions)
        for query, entry in adopted.items()
        if entry["generation"] == newest.get(query)
    }
    return replace(stored, generations=newest, adoptions=adoptions)
