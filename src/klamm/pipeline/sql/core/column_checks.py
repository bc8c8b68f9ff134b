"""Checks of declared columns: what options name, parts of the record, and the one column of some formats. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from klamm.pipeline.sql.core.column_types import TIMES
from klamm.pipeline.sql.core.problems import SqlProblem, suggest
from klamm.pipeline.sql.core.statement_options import SINGLE, name_list
from klamm.pipeline.sql.core.statements import SOURCE

if TYPE_CHECKING:
    from klamm.pipeline.sql.core.graph import GraphNode


def check_columns(node: GraphNode) -> Iterator[SqlProblem]:
    """Yield the problems of a statement's columns."""
    create = node.create
    names = {column.name.lower(): column for column in create.columns}
    for option in ("key", "timestamp", "deduplicate"):
        value = create.options.get(option)
        for name in name_list(value.text) if value else ():
            if value and name.lower() not in names:
                hint = suggest(name, [declared.name for declared in create.columns])
                yield SqlProblem(value.offset, f"{create.name} has no column {name}{hint}")
    timestamp = create.options.get("timestamp")
    column = names.get(timestamp.text.lower()) if timestamp else None
    if timestamp and column is not None and column.type not in TIMES:
        yield SqlProblem(timestamp.offset, f"{column.name} is {column.type}; a timestamp is TIMESTAMP")
    for declared in create.columns:
        yield from _check_metadata(declared.name, declared.metadata, declared.type, declared.offset)
    values = [column for column in create.columns if column.metadata is None]
    if node.format in SINGLE and create.kind != SOURCE:
        keys = {name.lower() for name in node.key}
        value_columns = [column for column in values if column.name.lower() not in keys]
        if len(value_columns) != 1:
            yield SqlProblem(
                create.offset, f"format {node.format} has one column beside its key, not {len(value_columns)}"
            )
        elif node.format == "raw" and value_columns[0].type != "BINARY":
            yield SqlProblem(value_columns[0].offset, "a raw value is BINARY")
    elif not values:
        yield SqlProblem(create.offset, "there is no column for the value")


_METADATA_TYPES: Final = {
    "timestamp": TIMES,
    "offset": ("BIGINT", "LONG"),
    "partition": ("INT", "INTEGER"),
    "topic": ("STRING",),
    "key": ("STRING", "BINARY"),
    "headers": ("MAP<STRING, BINARY>",),
    "op": ("STRING",),
}


def _check_metadata(name: str, part: str | None, kind: str, offset: int) -> Iterator[SqlProblem]:
    if part is not None and kind not in _METADATA_TYPES[part]:
        yield SqlProblem(offset, f"{name} is {kind}; a record's {part} is {_METADATA_TYPES[part][0]}")
