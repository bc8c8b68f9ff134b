"""The types that the state of a query was computed with, as Spark has resolved them, and whether they have changed.

A file without a change of its own can change types: a registry has a newer schema, or a query that this one reads has
another type. Spark finds that only when a batch runs, and advises to switch its check off, which corrupts state.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Final

from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
from klamm.pipeline.sql.core.read_columns import is_only_aggregated, is_wider_integer, read_columns
from klamm.pipeline.sql.core.statements import SOURCE

_OUTPUT: Final = "output"
_INPUTS: Final = "inputs"

OutputColumns = Mapping[str, Mapping[str, str]]
"""Types by column, by query."""


def describe_schemas(pipeline: Pipeline, outputs: OutputColumns) -> dict[str, dict[str, Any]]:
    """Return the types of each query with state: of its rows, and of the columns it reads that no file declares."""
    return {
        node.name: {
            _OUTPUT: dict(outputs.get(node.name, {})),
            _INPUTS: _resolved_inputs(pipeline, node, outputs),
        }
        for node in pipeline.queries
        if has_state(pipeline, node)
    }


def has_state(pipeline: Pipeline, node: GraphNode) -> bool:
    """Whether a query keeps state; deduplication keeps the keys it has seen in the query that reads."""
    return node.stateful or any(pipeline.node(stream).option("deduplicate") for stream in node.streams)


def _resolved_inputs(pipeline: Pipeline, node: GraphNode, outputs: OutputColumns) -> dict[str, dict[str, str]]:
    inputs = {}
    for name, read in read_columns(pipeline, node).items():
        source = pipeline.node(name)
        if source.create.resolved:
            types = {column.name: column.type for column in source.create.columns}
        else:
            # Declared columns are compared by the identity; those of a query are Spark's.
            types = dict(outputs.get(source.name, {})) if source.runs else {}
        inputs[source.name] = {
            column: kind for column, kind in sorted(types.items()) if read is None or column.lower() in read
        }
    return inputs


def schema_changes(stored: Mapping[str, Any], current: Mapping[str, Any], pipeline: Pipeline) -> dict[str, str]:
    """Return for each query whose state has other types now which column has changed."""
    changes = {}
    for query, schema in current.items():
        # Identities of older versions have no types; Spark's own check is what is left then.
        before = stored.get(query)
        if before is None:
            continue
        difference = _column_difference(query, before[_OUTPUT], schema[_OUTPUT])
        for source, types in schema[_INPUTS].items():
            difference = difference or _input_difference(
                pipeline, pipeline.node(query), source, before[_INPUTS].get(source, types), types
            )
        if difference:
            changes[query] = difference
    return changes


def resolved_changes(stored: Mapping[str, Any], pipeline: Pipeline) -> dict[str, str]:
    """Return the changes that are known without Spark: of columns that a registry has given."""
    changes: dict[str, str] = {}
    for query, before in stored.items():
        node = next((node for node in pipeline.queries if node.name == query), None)
        if node is None:
            continue
        for source, types in _resolved_inputs(pipeline, node, {}).items():
            if pipeline.node(source).create.resolved:
                difference = _input_difference(pipeline, node, source, before[_INPUTS].get(source, types), types)
                if difference:
                    changes.setdefault(query, difference)
    return changes


def has_derived_types(pipeline: Pipeline, node: GraphNode, unchanged: Container[str]) -> bool:
    """Whether a query with state reads columns whose types may have changed, and which only Spark resolves.

    `unchanged` are the queries whose statements, with all that they read, are those of before.
    """
    return has_state(pipeline, node) and any(
        _is_derived(pipeline, name, unchanged) for name in (*node.streams, *node.tables)
    )


def _is_derived(pipeline: Pipeline, name: str, unchanged: Container[str]) -> bool:
    source = pipeline.node(name)
    if not source.runs:
        return False
    if name not in unchanged or (source.kind == SOURCE and not source.create.columns):
        return True
    return any(
        pipeline.node(inner).create.resolved or _is_derived(pipeline, inner, unchanged)
        for inner in (*source.streams, *source.tables)
    )


def _input_difference(
    pipeline: Pipeline, node: GraphNode, source: str, before: Mapping[str, str], now: Mapping[str, str]
) -> str:
    kept = {
        column: now[column]
        for column, kind in before.items()
        if column in now and is_wider_integer(kind, now[column]) and is_only_aggregated(pipeline, node, column)
    }
    return _column_difference(source, {**before, **kept}, now)


def _column_difference(name: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    for column, kind in now.items():
        if column not in before:
            return f"{name} now has {column} {kind}"
        if before[column] != kind:
            return f"{name}.{column} is {kind} instead of {before[column]}"
    gone = [column for column in before if column not in now]
    return f"{name} no longer has {gone[0]}" if gone else ""
