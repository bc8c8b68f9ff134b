"""Splits `CREATE TABLE ... WITH (connector = 'postgres')` into the source that captures and the table that reads. Pure.

The source `NAME.source` is a query: it writes the changes of a database's table to the topic, in Debezium's form. The
statement itself reads that topic like any other of format debezium.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from klamm.pipeline.sql.core.problems import SqlProblem
from klamm.pipeline.sql.core.statement_options import CONNECTOR_OPTIONS
from klamm.pipeline.sql.core.statements import SOURCE, STREAM, TABLE, Create, Value

if TYPE_CHECKING:
    from klamm.pipeline.sql.core.graph import GraphNode

POSTGRES: Final = "postgres"
CAPTURE: Final = ".source"
"""The suffix of the source of a captured table."""
_SHARED: Final = ("topic", "key", "partitions", "replication")
"""Options of both."""
_OF_SOURCE: Final = ("connector", "trigger", *CONNECTOR_OPTIONS[POSTGRES])


def capture_of(name: str) -> str:
    """Return the name of the source of a captured table."""
    return f"{name}{CAPTURE}"


def split_captured(create: Create) -> tuple[Create, ...]:
    """Return the statements of a statement: source and table of one with a connector, otherwise itself."""
    if create.kind not in (STREAM, TABLE) or create.select is not None or "connector" not in create.options:
        return (create,)
    options = create.options
    is_shared = {name for name in options if name in _SHARED or name.startswith("kafka.")}
    source = {name: value for name, value in options.items() if name in _OF_SOURCE or name in is_shared}
    # The topic of both is the name of the table.
    source.setdefault("topic", Value(create.name, create.offset, create.offset))
    reading = {name: value for name, value in options.items() if name not in source or name in is_shared}
    connector = options["connector"]
    reading.setdefault("format", Value("debezium", connector.offset, connector.name_offset))
    return (
        Create(SOURCE, capture_of(create.name), create.offset, (), source),
        replace(create, options=reading),
    )


def check_captured(create: Create) -> Iterator[SqlProblem]:
    """Yield the problems of a statement as it was written."""
    connector = create.options.get("connector")
    if connector is None or create.select is not None:
        return
    if create.kind == SOURCE and connector.text.lower() == POSTGRES:
        columns = f"CREATE TABLE {create.name} (columns) WITH (connector = 'postgres', ...)"
        yield SqlProblem(connector.offset, f"a table of PostgreSQL is captured as a table: {columns}")
    elif create.kind in (STREAM, TABLE):
        if connector.text.lower() != POSTGRES:
            yield SqlProblem(
                connector.offset,
                f"a {create.kind} has the connector postgres; {connector.text} is one of CREATE SOURCE",
            )
        if "format" in create.options:
            offset = create.options["format"].name_offset
            yield SqlProblem(offset, "captured changes have the format debezium: leave format out")


def check_capture(node: GraphNode) -> Iterator[SqlProblem]:
    """Yield the problems of the source of a captured table."""
    create = node.create
    url = create.options.get("url")
    example = "url = 'postgresql://user@host/database'"
    if url is None:
        yield SqlProblem(create.offset, f"postgres needs the database's address: {example}")
    elif not url.text.startswith(("postgresql://", "postgres://", "${")):
        yield SqlProblem(url.offset, f"write the address of PostgreSQL: {example}")
    table = create.options.get("table")
    if table is None:
        yield SqlProblem(create.offset, "postgres needs the table to capture: table = 'public.accounts'")
    elif table.text.count(".") > 1:
        yield SqlProblem(table.offset, "write schema and table: table = 'public.accounts'")
    if not node.key:
        yield SqlProblem(create.offset, "postgres needs the columns of the table's primary key: key = 'id'")
    slot = create.options.get("slot")
    if slot is not None and not (slot.text.isascii() and slot.text.replace("_", "a").isalnum() and slot.text.islower()):
        yield SqlProblem(slot.offset, "a replication slot's name has lower-case letters, digits and _")
