"""Spark expressions, as text, that convert between a record's bytes and columns; made without Spark.

A row of a topic has key, value, topic, partition, offset, timestamp and headers. Reading parses the value into `_row`,
puts the record's error into `_error` (null for a good record), and then selects the columns. Writing makes key and
value. A column of the declared key is read from the record's key in a table, where a deletion has nothing else, and
from the value first in a stream. Registry formats are decoded and encoded by functions that `registry_functions`
registers with the session: here they are only named, and `_row` and `_key` are structs of `record` and `error`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Final

from klamm.pipeline.sql.core.change_formats import ENVELOPE_ERROR, OP, is_change_log
from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.graph import GraphNode
from klamm.pipeline.sql.core.statement_options import SINGLE
from klamm.pipeline.sql.core.statements import TABLE, Column
from klamm.pipeline.sql.core.value_parsing import (
    BROKEN,
    literal,
    parse_errors,
    parsed_field,
    parsed_struct,
    typed_errors,
)

PARSED: Final = "_row"
KEYED: Final = "_key"
ERROR: Final = "_error"
_TEXT: Final = "cast(value AS STRING)"
# By default to_json drops nulls and cuts timestamps to milliseconds.
_WRITE_JSON: Final = (
    "map('timestampFormat', 'yyyy-MM-dd''T''HH:mm:ss.SSSSSSXXX', 'timestampNTZFormat',"
    " 'yyyy-MM-dd''T''HH:mm:ss.SSSSSS', 'ignoreNullFields', 'false')"
).replace("''", "\\'")
_HEADERS: Final = "coalesce(headers, cast(array() AS ARRAY<STRUCT<key: STRING, value: BINARY>>))"
_METADATA: Final = {
    "key": "key",
    "offset": "offset",
    "op": OP,
    "partition": "partition",
    "timestamp": "timestamp",
    "topic": "topic",
    # Of several headers with one key the last counts, as for Kafka's lastHeader; a map with a key twice is an error.
    # A record without headers has null there, and an empty map here.
    "headers": (
        f"map_from_entries(filter({_HEADERS}, (header, index) -> NOT exists("
        f"slice({_HEADERS}, index + 2, greatest(size({_HEADERS}), 1)), later -> later.key = header.key)))"
    ),
}


def _function(what: str, node: GraphNode) -> str:
    """Return a function's name: readable, and distinct for every statement."""
    name = node.name.lower()
    # The checksum keeps names apart that differ only in replaced characters.
    return f"klamm_{what}_{re.sub('[^a-z0-9_]', '_', name)}_{zlib.crc32(name.encode()):08x}"


def value_reader(node: GraphNode) -> str:
    """Return the name of the function that decodes a statement's values."""
    return _function("read_value", node)


def key_reader(node: GraphNode) -> str:
    """Return the name of the function that decodes its keys."""
    return _function("read_key", node)


def value_writer(node: GraphNode) -> str:
    """Return the name of the function that encodes its values."""
    return _function("write_value", node)


def checked_value_writer(node: GraphNode) -> str:
    """Return the name of the function that encodes its values and keeps the error of one that does not fit."""
    return _function("write_checked_value", node)


def key_writer(node: GraphNode) -> str:
    """Return the name of the function that encodes its keys."""
    return _function("write_key", node)


def ddl(columns: Iterable[Column]) -> str:
    """Return columns as Spark's DDL."""
    return ", ".join(f"{quote_name(column.name)} {column.type}" for column in columns)


def value_columns(node: GraphNode, columns: Sequence[Column]) -> list[Column]:
    """Return the columns in the value: all but metadata, and but the key for formats of a single column."""
    in_value = [column for column in columns if column.metadata is None]
    if node.format in SINGLE:
        keys = {name.lower() for name in node.key}
        in_value = [column for column in in_value if column.name.lower() not in keys]
    return in_value


def needs_headers(columns: Iterable[Column]) -> bool:
    """Whether a column is read from the headers."""
    return any(column.metadata == "headers" for column in columns)


def value_struct(node: GraphNode, columns: Sequence[Column]) -> str:
    """Return the expression of the value as a struct."""
    if node.registered:
        return f"{value_reader(node)}(value, headers)"
    columns_in_value = value_columns(node, columns)
    if node.format in SINGLE:
        (column,) = columns_in_value
        text = "value" if column.type == "BINARY" else f"try_cast(cast(value AS STRING) AS {column.type})"
        return f"named_struct({literal(column.name)}, {text})"
    return parsed_struct(node, _text_format(node), columns_in_value, _TEXT)


def _text_format(node: GraphNode) -> str:
    """Return the format of a value's text; the rows in changes are JSON."""
    return "json" if is_change_log(node) else node.format


def key_struct(node: GraphNode) -> str | None:
    """Return the expression of the key as a struct, when a function decodes it."""
    return f"{key_reader(node)}(key, headers)" if node.key_registered else None


def error_expression(node: GraphNode, columns: Sequence[Column]) -> str:
    """Return the expression of a record's error, or null. A table's value may be null: that deletes the key."""
    # The first case that applies counts, so a deletion is recognized before its value is checked.
    cases: list[str] = []
    columns_in_value = value_columns(node, columns)
    if is_change_log(node):
        cases.append(f"WHEN {ENVELOPE_ERROR} IS NOT NULL THEN {ENVELOPE_ERROR}")
    if node.kind == TABLE:
        cases.append("WHEN key IS NULL THEN 'the key is null'")
    if node.key_registered:
        cases.append(f"WHEN {KEYED}.error IS NOT NULL THEN concat('the key: ', {KEYED}.error)")
    # Of a stream of changes a null is what follows a deletion, or a truncation: no row.
    if node.kind == TABLE or is_change_log(node):
        cases.append("WHEN value IS NULL THEN NULL")
    elif node.format not in SINGLE:
        cases.append("WHEN value IS NULL THEN 'the value is null'")
    if node.registered:
        cases.append(f"WHEN {PARSED}.error IS NOT NULL THEN {PARSED}.error")
        cases.extend(
            # try_cast is null for what does not fit: null from a field that is there is an error.
            f"WHEN {PARSED}.record.{quote_name(column.name)} IS NOT NULL AND {_cast(node, column)} IS NULL"
            f" THEN {literal(f'{column.name} is no {column.type}')}"
            for column in columns_in_value
        )
        for column in columns_in_value:
            cases.extend(typed_errors(node, column, f"{PARSED}.record.{quote_name(column.name)}"))
    elif node.format not in SINGLE:
        cases.extend(parse_errors(node, _text_format(node), columns_in_value, PARSED, _TEXT))
    else:
        (column,) = columns_in_value
        cases.append(
            f"WHEN value IS NOT NULL AND {PARSED}.{quote_name(column.name)} IS NULL"
            f" THEN {literal(f'the value is no {column.type}')}"
        )
        cases.extend(typed_errors(node, column, _TEXT))
    cases.extend(
        f"WHEN {_read(node, column, columns)} IS NULL THEN {literal(f'{column.name} is null')}"
        for column in columns
        if not column.nullable
    )
    return f"CASE {' '.join(cases)} END"


def good_or_raise(node: GraphNode) -> str:
    """Return a condition that is true for a good record; a bad one fails the query with its position."""
    # raise_error has the type VOID, which a condition cannot have.
    message = (
        f"{literal(f'a record of {node.name} is bad: ')}, topic, '-', partition, ' offset ', offset, ': ', {ERROR}"
    )
    return f"CASE WHEN {ERROR} IS NULL THEN true ELSE cast(raise_error(concat({message})) AS BOOLEAN) END"


def row_error(node: GraphNode, kind: str) -> str:
    """Return the expression of the error of a file's row, or null."""
    message = literal(
        f"no {kind.upper()} of {', '.join(f'{column.name} {column.type}' for column in node.create.columns)}"
    )
    cases = [f"WHEN {BROKEN} IS NOT NULL THEN {message}"]
    cases += [
        f"WHEN {quote_name(column.name)} IS NULL THEN {literal(f'{column.name} is null')}"
        for column in node.create.columns
        if not column.nullable
    ]
    return f"CASE {' '.join(cases)} END"


def line_struct(node: GraphNode) -> str:
    """Return the expression of a line of a file of JSON as a struct."""
    return parsed_struct(node, "json", node.create.columns, "value")


def line_field(node: GraphNode, column: Column) -> str:
    """Return the expression of a column of such a line."""
    return parsed_field(node, "json", column, PARSED)


def line_error(node: GraphNode) -> str:
    """Return the expression of the error of such a line, or null."""
    cases = [*parse_errors(node, "json", node.create.columns, PARSED, "value")]
    cases += [
        f"WHEN {line_field(node, column)} IS NULL THEN {literal(f'{column.name} is null')}"
        for column in node.create.columns
        if not column.nullable
    ]
    return f"CASE {' '.join(cases)} END"


def good_row_or_raise(node: GraphNode) -> str:
    """Return the condition of `good_or_raise` for a file's row."""
    message = f"{literal(f'a record of {node.name} is bad: ')}, _file, ': ', {ERROR}"
    return f"CASE WHEN {ERROR} IS NULL THEN true ELSE cast(raise_error(concat({message})) AS BOOLEAN) END"


def bad_row(node: GraphNode) -> str:
    """Return the expression of a file's row as bytes: its text, or JSON where that is not known."""
    names = ", ".join(quote_name(column.name) for column in node.create.columns)
    return f"cast(coalesce({BROKEN}, to_json(struct({names}))) AS BINARY)"


def version_time(node: GraphNode, columns: Sequence[Column]) -> str:
    """Return the time since which a table's record is valid: its time column, or the record's own for a deletion."""
    timestamp = (node.option("timestamp") or "").lower()
    time_column = next((column for column in columns if column.name.lower() == timestamp), None)
    return "timestamp" if time_column is None else f"coalesce({_read(node, time_column, columns)}, timestamp)"


def column_expressions(
    node: GraphNode, columns: Sequence[Column], selected: Sequence[Column] | None = None
) -> list[str]:
    """Return the expressions of the columns, or of those that are selected."""
    chosen = columns if selected is None else selected
    return [f"{_read(node, column, columns)} AS {quote_name(column.name)}" for column in chosen]


def _read(node: GraphNode, column: Column, columns: Sequence[Column]) -> str:
    if column.metadata is not None:
        return f"cast({_METADATA[column.metadata]} AS {column.type})"
    value_names = {value_column.name.lower() for value_column in value_columns(node, columns)}
    from_value = _from_value(node, column) if column.name.lower() in value_names else None
    keys = [name.lower() for name in node.key]
    if column.name.lower() not in keys:
        assert from_value is not None
        return from_value
    from_key = _from_key(node, column, columns)
    # A table's deletion has only a key; a stream's value is the newer truth if both differ.
    candidates = (from_key, from_value) if node.kind == TABLE else (from_value, from_key)
    return f"coalesce({', '.join(candidate for candidate in candidates if candidate)})"


def _from_value(node: GraphNode, column: Column) -> str:
    if node.registered:
        return _cast(node, column)
    if node.format in SINGLE:
        return f"{PARSED}.{quote_name(column.name)}"
    return parsed_field(node, _text_format(node), column, PARSED)


def _cast(node: GraphNode, column: Column) -> str:
    """Return a field of a decoded record as its declared type, null where it does not fit."""
    field = f"{PARSED}.record.{quote_name(column.name)}"
    if column.type == "BINARY" and node.format == "json_schema":
        # JSON Schema has no bytes: they are base64 in a string.
        return f"try_to_binary(cast({field} AS STRING), 'base64')"
    if "<" in column.type and not (node.runs and node.option("schema") is None):
        # Spark casts structs by position, not by name: safe only where the schema was derived from the columns.
        return field
    return f"try_cast({field} AS {column.type})"


def has_json_key(node: GraphNode) -> bool:
    """Whether the record's key is JSON, as that of several columns is by default."""
    return node.key_format == "json"


def _from_key(node: GraphNode, column: Column, columns: Sequence[Column]) -> str:
    if node.key_registered:
        return f"try_cast({KEYED}.record.{quote_name(column.name)} AS {column.type})"
    if has_json_key(node):
        names = {name.lower() for name in node.key}
        schema = ddl(column for column in columns if column.name.lower() in names)
        text, name = "cast(key AS STRING)", quote_name(column.name)
        if node.format == "debezium":
            # With a schema beside it, the key is its payload.
            wrapped = literal(f"payload STRUCT<{schema.replace('` ', '`: ')}>")
            return f"coalesce(from_json({text}, {literal(schema)}).{name}, from_json({text}, {wrapped}).payload.{name})"
        return f"from_json({text}, {literal(schema)}).{name}"
    return "key" if column.type == "BINARY" else f"try_cast(cast(key AS STRING) AS {column.type})"


def key_expression(node: GraphNode, binary: bool = False) -> str:
    """Return the expression of a record's key."""
    if not node.key:
        return "cast(NULL AS STRING)"
    if node.key_registered:
        return f"{key_writer(node)}(struct({', '.join(map(quote_name, node.key))}))"
    if has_json_key(node):
        return json_object(node.key)
    name = quote_name(node.key[0])
    return name if binary else f"cast({name} AS STRING)"


def json_object(names: Iterable[str]) -> str:
    """Return columns as a JSON object, with nulls and microseconds."""
    return f"to_json(struct({', '.join(map(quote_name, names))}), {_WRITE_JSON})"


def value_expression(node: GraphNode, names: Sequence[str], *, checked: bool = False) -> str:
    """Return the expression of a record's value from these columns; `checked` makes it a struct of value and error."""
    if node.format in SINGLE:
        keys = {key.lower() for key in node.key}
        (name,) = (column for column in names if column.lower() not in keys)
        text = quote_name(name) if node.format == "raw" else f"cast({quote_name(name)} AS STRING)"
    elif node.registered:
        writer = checked_value_writer(node) if checked else value_writer(node)
        text = f"{writer}(struct({', '.join(map(quote_name, names))}))"
    else:
        text = json_object(names) if node.format == "json" else f"to_csv(struct({', '.join(map(quote_name, names))}))"
    delete_when = node.option("delete_when")
    return f"CASE WHEN ({delete_when}) THEN NULL ELSE {text} END" if delete_when else text


def headers_expression(headers: Sequence[tuple[str, bytes]]) -> str:
    """Return an array of constant headers."""
    structs = (f"named_struct('key', {literal(name)}, 'value', X'{value.hex()}')" for name, value in headers)
    return f"array({', '.join(structs)})"
