"""Plans a run: what it means for the state of each query, and what reading again would cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from klamm.client.errors import KafkaError
from klamm.pipeline.query_checkpoint import QueryCheckpoint
from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
from klamm.pipeline.sql.core.identity import (
    CONTINUES,
    FROM_NOW,
    NEW,
    REBUILD,
    SAME,
    QueryChange,
    QueryIdentity,
    compare,
)
from klamm.pipeline.sql.core.pipeline_record import PipelineRecord
from klamm.pipeline.sql.core.read_cost import ReadCost, measured_rate
from klamm.pipeline.sql.core.rebuild_steps import SourceOffsets, lost_offsets
from klamm.pipeline.sql.core.state_schemas import (
    OutputColumns,
    describe_schemas,
    has_derived_types,
    resolved_changes,
    schema_changes,
)
from klamm.pipeline.sql.query_starts import began_offsets
from klamm.pipeline.sql.rebuilds import is_switched
from klamm.pipeline.sql.status import Home
from klamm.pipeline.sql.topics import ClusterTopics

_READS_AGAIN: Final = (NEW, FROM_NOW, REBUILD)
"""Verdicts of queries that read their topics from the beginning, or may do so."""
_NOT_COMPARED: Final = "derived types were not compared: klamm pipeline plan FILE --spark"
_CLUSTER_MS: Final = "2000"


def plan_run(
    pipeline: Pipeline,
    home: Home | None,
    client: Mapping[str, str] | None = None,
    columns: OutputColumns | None = None,
    older: PipelineRecord | None = None,
) -> tuple[list[QueryChange], str | None]:
    """Return what a run means for each query, and why costs are not known, if so; nothing for a new pipeline.

    `columns` are the types that Spark has resolved: with them state of other types is found. `older` is the record of
    the name under which the pipeline has run before its file was renamed.
    """
    stored = None if home is None else home.identity()
    if stored is None and older is not None:
        home, stored = Home(older.folder), older.identity
    if home is None or stored is None:
        return [], None
    changes = _with_types(compare(stored, pipeline), stored, pipeline, columns)
    if not any(change.verdict in _READS_AGAIN for change in changes):
        return changes, None
    brief = {**(client or {}), "bootstrap.timeout.ms": _CLUSTER_MS, "default.api.timeout.ms": _CLUSTER_MS}
    try:
        return _with_costs(changes, pipeline, home, ClusterTopics(pipeline, brief)), None
    except KafkaError as error:
        return changes, f"how much would be read again is not known: {error}"


def _with_types(
    changes: Iterable[QueryChange], stored: QueryIdentity, pipeline: Pipeline, columns: OutputColumns | None
) -> list[QueryChange]:
    if columns is None:
        differences = resolved_changes(stored.schemas, pipeline)
    else:
        differences = schema_changes(stored.schemas, describe_schemas(pipeline, columns), pipeline)
    compared = [
        replace(change, verdict=REBUILD, reason=f"{differences[change.name]}, and its state has the old type")
        if change.name in differences and change.verdict in (SAME, CONTINUES)
        else change
        for change in changes
    ]
    return compared if columns is not None else [_with_doubt(change, compared, pipeline) for change in compared]


def _with_doubt(change: QueryChange, changes: Iterable[QueryChange], pipeline: Pipeline) -> QueryChange:
    """Return a change that says so where types may have changed that were not compared."""
    unchanged = {other.name for other in changes if other.verdict == SAME}
    if change.verdict not in (SAME, CONTINUES) or not has_derived_types(
        pipeline, pipeline.node(change.name), unchanged
    ):
        return change
    reason = f"{change.reason}; {_NOT_COMPARED}" if change.reason else _NOT_COMPARED
    return replace(change, reason=reason)


def _with_costs(
    changes: Iterable[QueryChange], pipeline: Pipeline, home: Home, topics: ClusterTopics
) -> list[QueryChange]:
    status = home.status()["queries"]
    planned = []
    for change in changes:
        cost = None
        if change.verdict in _READS_AGAIN:
            node = pipeline.node(change.name)
            names = [pipeline.node(name).topic for name in node.streams or node.tables]
            existing = topics.existing(names)
            starts, ends = topics.range_of(existing)
            offsets = sum(end - starts[partition] for partition, end in ends.items())
            lost = _lost_of(node, home, starts, topics) if change.verdict == REBUILD else 0
            cost = ReadCost(offsets, measured_rate(status.get(change.name, {})), lost) if names else None
        planned.append(replace(change, cost=cost))
    return planned


def _lost_of(node: GraphNode, home: Home, starts: SourceOffsets, topics: ClusterTopics) -> int:
    """Return how many offsets are gone that the rows of a table or lake sink were computed from."""
    identity = home.identity()
    if identity is None or not is_switched(node, topics):
        return 0
    checkpoint = QueryCheckpoint.at(f"{home.path}/{node.name}.{identity.generation(node.name, node.name)}")
    began = {} if checkpoint is None else began_offsets(checkpoint.starts())
    return sum(lost_offsets(starts, began).values())
