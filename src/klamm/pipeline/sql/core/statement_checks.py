"""Checks of particular statements: sources, registry formats, tables as of a time. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from klamm.pipeline.core.lake_tables import TABLES
from klamm.pipeline.sql.core.captured_tables import check_capture
from klamm.pipeline.sql.core.column_types import TIMES, WHOLE
from klamm.pipeline.sql.core.problems import ParseError, SqlProblem
from klamm.pipeline.sql.core.statement_options import (
    CDC_OPTIONS,
    CHANGE_FORMATS,
    CONNECTOR_OPTIONS,
    REGISTRY_FORMATS,
)
from klamm.pipeline.sql.core.statements import STREAM, TABLE, Create

if TYPE_CHECKING:
    from klamm.pipeline.sql.core.graph import GraphNode


def check_source(node: GraphNode) -> Iterator[SqlProblem]:
    """Yield the problems of a source."""
    connector = node.connector
    create = node.create
    if not connector:
        yield SqlProblem(create.offset, "a source needs a connector: WITH (connector = 'files', path = '...')")
        return
    for name, value in create.options.items():
        connectors = [known for known, names in CONNECTOR_OPTIONS.items() if name in names]
        if connectors and connector not in connectors:
            yield SqlProblem(value.name_offset, f"{name} is an option of connector {connectors[0]}, not of {connector}")
    if connector == "files":
        if node.option("path") is None:
            yield SqlProblem(create.offset, "files need a path")
        if not create.columns:
            yield SqlProblem(create.offset, "files need columns: CREATE SOURCE name (column type, ...) WITH (...)")
    elif connector == "jdbc":
        yield from _check_jdbc(node)
    elif connector == "postgres":
        yield from check_capture(node)
    elif create.columns:
        yield SqlProblem(create.columns[0].offset, "rate has the columns timestamp and value: leave the list out")


def _check_jdbc(node: GraphNode) -> Iterator[SqlProblem]:
    create = node.create
    url = create.options.get("url")
    if url is None or not url.text.startswith(("jdbc:", "${")):
        offset = create.offset if url is None else url.offset
        yield SqlProblem(offset, "jdbc needs the database's address: url = 'jdbc:...'")
    if (node.option("table") is None) == (node.option("query") is None):
        yield SqlProblem(create.offset, "jdbc needs either table = '...' or query = 'SELECT ...'")
    if "driver_jar" in create.options and "driver" not in create.options:
        offset = create.options["driver_jar"].name_offset
        yield SqlProblem(offset, "a driver from a jar is named by its class, too: driver = 'org.postgresql.Driver'")
    cursor = create.options.get("cursor")
    if cursor is None:
        yield SqlProblem(create.offset, "jdbc needs a cursor: the column by which new rows are recognized")
        return
    # The cursor is SQL of the database, which may qualify and quote the name.
    bare = cursor.text.rsplit(".", 1)[-1].strip('"`[]').lower()
    for column in create.columns:
        if column.name.lower() == bare and not (
            # DECIMAL(p,0) is a whole number, and Oracle's type for one.
            column.type in TIMES or column.type in WHOLE or column.type.endswith(",0)")
        ):
            yield SqlProblem(
                cursor.offset, f"{column.name} is {column.type}; a cursor is a whole number or a TIMESTAMP"
            )


_REGISTRY_OPTIONS: Final = ("registry", "subject", "key_subject", "message", "schema", "framing")


def check_registry(node: GraphNode, settings: Mapping[str, str]) -> Iterator[SqlProblem]:
    """Yield the problems of registry formats and their options."""
    create = node.create
    if node.registered or node.key_registered:
        if node.option("registry") is None and "registry" not in settings:
            format_name = node.format if node.registered else node.key_format
            yield SqlProblem(create.offset, f"{format_name} needs a registry: SET registry = 'http://host:8081'")
        if "message" in create.options and node.format != "protobuf":
            yield SqlProblem(create.options["message"].name_offset, "only protobuf has messages to choose from")
        if "subject" in create.options and not node.registered:
            yield SqlProblem(
                create.options["subject"].name_offset, f"a subject is of a registry; format is {node.format}"
            )
        if "key_subject" in create.options and not node.key_registered:
            yield SqlProblem(create.options["key_subject"].name_offset, "a subject needs a key_format of a registry")
        return
    for name in _REGISTRY_OPTIONS:
        if name in create.options and node.has_topic:
            formats = ", ".join(REGISTRY_FORMATS)
            message = f"{name} is for formats of a registry ({formats}); format is {node.format}"
            yield SqlProblem(create.options[name].name_offset, message)


def check_sink(node: GraphNode) -> Iterator[SqlProblem]:
    """Yield the problems of a sink."""
    create = node.create
    format_name = (node.option("format") or "").lower()
    if not format_name:
        yield SqlProblem(create.offset, "a sink needs a format: WITH (format = 'parquet', path = '...')")
    elif format_name not in ("console", "noop") and node.option("path") is None and not _has_catalog(node, format_name):
        yield SqlProblem(create.offset, f"{format_name} needs a path: WITH (format = '{format_name}', path = '...')")
    if "table" in create.options and format_name != "iceberg":
        yield SqlProblem(create.options["table"].name_offset, "table names an Iceberg table: format = 'iceberg'")
    if node.upserts:
        if format_name not in TABLES:
            yield SqlProblem(create.options["mode"].offset, f"{format_name} is only appended to: delta or iceberg")
        if not node.key:
            yield SqlProblem(create.offset, "upserts need a key: WITH (mode = 'upsert', key = 'id', ...)")
        return
    for name in ("key", "order_by", "delete_when"):
        if name in create.options:
            yield SqlProblem(create.options[name].name_offset, f"{name} of a sink is for mode = 'upsert'")
    # With an unknown name among them its inputs cannot be classified.
    assert node.scan is not None
    known = len(node.inputs) == len({name.lower() for name in node.scan.names})
    if known and node.tables and not node.streams:
        yield SqlProblem(
            create.offset, f"{create.name} reads tables only: a sink of a table needs mode = 'upsert' and its key"
        )


def _has_catalog(node: GraphNode, format_name: str) -> bool:
    """Whether an Iceberg table's location comes from its catalog."""
    return format_name == "iceberg" and any(name in node.create.options for name in ("option.uri", "option.catalog"))


def check_upsert(node: GraphNode, nodes: Sequence[GraphNode]) -> Iterator[SqlProblem]:
    """Yield the problems of what an upserting sink reads."""
    scan = node.scan
    if not node.upserts or scan is None:
        return
    create = node.create
    if node.streams:
        if "order_by" not in create.options and not scan.grouped:
            yield SqlProblem(
                create.offset, "upserts of a stream need order_by = 'column': the last row of a key counts"
            )
        return
    if "order_by" in create.options:
        yield SqlProblem(create.options["order_by"].name_offset, "changes of a table have an order: leave order_by out")
    across_rows = scan.grouped or scan.distinct or scan.joined or scan.limited
    if across_rows or len(node.tables) != 1 or node.inputs != node.tables:
        yield SqlProblem(
            create.offset, f"{create.name} reads one table row by row: join and group in a CREATE TABLE, and read that"
        )
        return
    table = next(other for other in nodes if other.name == node.tables[0])
    if {name.lower() for name in table.key} != {name.lower() for name in node.key} and node.key:
        names = ", ".join(table.key)
        yield SqlProblem(create.options["key"].offset, f"the key is that of the table {table.name}: key = '{names}'")


def check_changes(node: GraphNode) -> Iterator[SqlProblem]:
    """Yield the problems of change logs and their options."""
    create = node.create
    is_change_log = node.format in CHANGE_FORMATS
    for column in create.columns:
        if column.metadata == "op" and not is_change_log:
            formats = " or ".join(CHANGE_FORMATS)
            yield SqlProblem(column.offset, f"only changes have an op: format = {formats}, not {node.format}")
    for name in (*CDC_OPTIONS, "order_by"):
        if name not in create.options or not node.has_topic or node.format == "cdc":
            continue
        if name == "order_by" and is_change_log:
            continue
        formats = " and ".join(CHANGE_FORMATS) if name == "order_by" else "cdc"
        yield SqlProblem(create.options[name].name_offset, f"{name} is for format {formats}; format is {node.format}")


def check_temporal_joins(node: GraphNode, creates: Mapping[str, Create]) -> Iterator[SqlProblem]:
    """Yield the problems of tables that are read as of a time."""
    try:
        joins = node.temporal_joins
    except ParseError as refused:
        yield refused.problem
        return
    for join in joins:
        table = creates.get(join.name.lower())
        # An unknown name is reported when names are resolved.
        if table is None:
            continue
        if table.kind != TABLE:
            yield SqlProblem(join.offset, f"{join.name} is a {table.kind}: only a table is read as of a time")
        elif node.kind not in (STREAM, TABLE) or len(node.streams) != 1:
            yield SqlProblem(
                join.offset, "a table is read as of a time beside one stream, in a STREAM or TABLE AS SELECT"
            )
