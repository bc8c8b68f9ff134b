"""Between a record's bytes and columns: Spark expressions as text, made without Spark.

A row of a topic has key, value, topic, partition, offset, timestamp and headers. Reading parses the value into `_row`,
says in `_error` what is wrong with the record (null when nothing is), and then names the columns. Writing makes key and
value. What is read by a declared key comes from the record's key in a table, where a deletion has nothing else, and
from the value first in a stream. Formats of a registry are read and written by functions of the session, which
`encodings` makes: here they are only named, and `_row` and `_key` are structs of `record` and `error`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.graph import SINGLE, Node
from klamm.pipeline.sql.core.statements import TABLE, Column

BROKEN: Final = "_broken"
PARSED: Final = "_row"
KEYED: Final = "_key"
ERROR: Final = "_error"
_WRITE_JSON: Final = (
    "map('timestampFormat', 'yyyy-MM-dd''T''HH:mm:ss.SSSSSSXXX', 'timestampNTZFormat',"
    " 'yyyy-MM-dd''T''HH:mm:ss.SSSSSS', 'ignoreNullFields', 'false')"
).replace("''", "\\'")
_READ_OPTIONS: Final = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{BROKEN}')"
_METADATA: Final = {
    "key": "key",
    "offset": "offset",
    "partition": "partition",
    "timestamp": "timestamp",
    "topic": "topic",
    "headers": "map_from_entries(headers)",
}


def _function(what: str, node: Node) -> str:
    """A function's name: readable, and another one for every statement."""
    name = node.name.lower()
    return f"klamm_{what}_{re.sub('[^a-z0-9_]', '_', name)}_{zlib.crc32(name.encode()):08x}"


def value_reader(node: Node) -> str:
    """The function that reads a statement's values."""
    return _function("read_value", node)


def key_reader(node: Node) -> str:
    """The function that reads its keys."""
    return _function("read_key", node)


def value_writer(node: Node) -> str:
    """The function that writes its values."""
    return _function("write_value", node)


def key_writer(node: Node) -> str:
    """The function that writes its keys."""
    return _function("write_key", node)


def literal(text: str) -> str:
    """A text as a string literal of Spark."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def ddl(columns: Iterable[Column]) -> str:
    """Columns as Spark's DDL."""
    return ", ".join(f"{quote_name(column.name)} {column.type}" for column in columns)


def value_columns(node: Node, columns: Sequence[Column]) -> list[Column]:
    """Those columns that are in the value: all but metadata, and but the key where the value is a single column."""
    found = [column for column in columns if column.metadata is None]
    if node.format in SINGLE:
        keys = {each.lower() for each in node.key}
        found = [each for each in found if each.name.lower() not in keys]
    return found


def needs_headers(columns: Iterable[Column]) -> bool:
    """Whether a column is taken from the headers."""
    return any(column.metadata == "headers" for column in columns)


def value_struct(node: Node, columns: Sequence[Column]) -> str:
    """The value as a struct."""
    if node.registered:
        return f"{value_reader(node)}(value, headers)"
    inside = value_columns(node, columns)
    if node.format in SINGLE:
        (column,) = inside
        text = "value" if column.type == "BINARY" else f"try_cast(cast(value AS STRING) AS {column.type})"
        return f"named_struct({literal(column.name)}, {text})"
    function = "from_json" if node.format == "json" else "from_csv"
    schema = literal(f"{ddl(inside)}, {BROKEN} STRING")
    return f"{function}(cast(value AS STRING), {schema}, {_READ_OPTIONS})"


def key_struct(node: Node) -> str | None:
    """The key as a struct, where a function reads it."""
    return f"{key_reader(node)}(key, headers)" if node.key_registered else None


def error_expression(node: Node, columns: Sequence[Column]) -> str:
    """What is wrong with a record: a text, or null. The value of a table may be null: that deletes the key."""
    cases: list[str] = []
    inside = value_columns(node, columns)
    if node.kind == TABLE:
        cases.append("WHEN key IS NULL THEN 'the key is null'")
    if node.key_registered:
        cases.append(f"WHEN {KEYED}.error IS NOT NULL THEN concat('the key: ', {KEYED}.error)")
    if node.kind == TABLE:
        cases.append("WHEN value IS NULL THEN NULL")
    elif node.format not in SINGLE:
        cases.append("WHEN value IS NULL THEN 'the value is null'")
    if node.registered:
        cases.append(f"WHEN {PARSED}.error IS NOT NULL THEN {PARSED}.error")
        cases.extend(
            f"WHEN {PARSED}.record.{quote_name(each.name)} IS NOT NULL AND {_cast(node, each)} IS NULL"
            f" THEN {literal(f'{each.name} is no {each.type}')}"
            for each in inside
        )
    elif node.format not in SINGLE:
        name = node.format.upper()
        words = literal(f"the value is no {name} of {', '.join(f'{each.name} {each.type}' for each in inside)}")
        cases.append(f"WHEN {PARSED} IS NULL OR {PARSED}.{BROKEN} IS NOT NULL THEN {words}")
    else:
        (column,) = inside
        cases.append(
            f"WHEN value IS NOT NULL AND {PARSED}.{quote_name(column.name)} IS NULL"
            f" THEN {literal(f'the value is no {column.type}')}"
        )
    cases.extend(
        f"WHEN {_read(node, each, columns)} IS NULL THEN {literal(f'{each.name} is null')}"
        for each in columns
        if not each.nullable
    )
    return f"CASE {' '.join(cases)} END"


def good_or_raise(node: Node) -> str:
    """True for a good record; a bad one ends the query with words that say where it is."""
    place = f"{literal(f'a record of {node.name} is bad: ')}, topic, '-', partition, ' offset ', offset, ': ', {ERROR}"
    return f"CASE WHEN {ERROR} IS NULL THEN true ELSE cast(raise_error(concat({place})) AS BOOLEAN) END"


def row_error(node: Node, kind: str) -> str:
    """What is wrong with a row of a file: a text, or null."""
    words = literal(
        f"no {kind.upper()} of {', '.join(f'{column.name} {column.type}' for column in node.create.columns)}"
    )
    cases = [f"WHEN {BROKEN} IS NOT NULL THEN {words}"]
    cases += [
        f"WHEN {quote_name(column.name)} IS NULL THEN {literal(f'{column.name} is null')}"
        for column in node.create.columns
        if not column.nullable
    ]
    return f"CASE {' '.join(cases)} END"


def good_row_or_raise(node: Node) -> str:
    """As `fine_or_fail`, for a row of a file."""
    place = f"{literal(f'a record of {node.name} is bad: ')}, _file, ': ', {ERROR}"
    return f"CASE WHEN {ERROR} IS NULL THEN true ELSE cast(raise_error(concat({place})) AS BOOLEAN) END"


def bad_row(node: Node) -> str:
    """A row of a file as it came; where its text is not known, as JSON."""
    names = ", ".join(quote_name(column.name) for column in node.create.columns)
    return f"cast(coalesce({BROKEN}, to_json(struct({names}))) AS BINARY)"


def version_time(node: Node, columns: Sequence[Column]) -> str:
    """Since when a record of a table is valid: its own time column, or the record's time; a deletion has only that."""
    stamp = (node.option("timestamp") or "").lower()
    found = next((column for column in columns if column.name.lower() == stamp), None)
    return "timestamp" if found is None else f"coalesce({_read(node, found, columns)}, timestamp)"


def column_expressions(node: Node, columns: Sequence[Column]) -> list[str]:
    """The columns, named."""
    return [f"{_read(node, column, columns)} AS {quote_name(column.name)}" for column in columns]


def _read(node: Node, column: Column, columns: Sequence[Column]) -> str:
    if column.metadata is not None:
        return f"cast({_METADATA[column.metadata]} AS {column.type})"
    inside = {value_column.name.lower() for value_column in value_columns(node, columns)}
    from_value = f"{PARSED}.{quote_name(column.name)}" if column.name.lower() in inside else None
    if node.registered and from_value is not None:
        from_value = _cast(node, column)
    keys = [each.lower() for each in node.key]
    if column.name.lower() not in keys:
        assert from_value is not None
        return from_value
    from_key = _from_key(node, column, columns)
    both = (from_key, from_value) if node.kind == TABLE else (from_value, from_key)
    return f"coalesce({', '.join(each for each in both if each)})"


def _cast(node: Node, column: Column) -> str:
    """A field of a registry's record as its declared type, null where it does not fit."""
    field = f"{PARSED}.record.{quote_name(column.name)}"
    if column.type == "BINARY" and node.format == "json_schema":
        return f"try_to_binary(cast({field} AS STRING), 'base64')"
    if "<" in column.type and not (node.runs and node.option("schema") is None):
        # Casting goes by the place of fields, not by their names: fine only where the schema was made of the columns.
        return field
    return f"try_cast({field} AS {column.type})"


def has_json_key(node: Node) -> bool:
    """Whether the record's key is JSON: with several columns it is, unless told otherwise."""
    return node.key_format == "json"


def _from_key(node: Node, column: Column, columns: Sequence[Column]) -> str:
    if node.key_registered:
        return f"try_cast({KEYED}.record.{quote_name(column.name)} AS {column.type})"
    if has_json_key(node):
        names = {each.lower() for each in node.key}
        schema = ddl(each for each in columns if each.name.lower() in names)
        return f"from_json(cast(key AS STRING), {literal(schema)}).{quote_name(column.name)}"
    return "key" if column.type == "BINARY" else f"try_cast(cast(key AS STRING) AS {column.type})"


def key_expression(node: Node, binary: bool = False) -> str:
    """The record's key of a row; a plain key that is null has no place in a table."""
    if not node.key:
        return "cast(NULL AS STRING)"
    if node.key_registered:
        return f"{key_writer(node)}(struct({', '.join(map(quote_name, node.key))}))"
    if has_json_key(node):
        return json_object(node.key)
    name = quote_name(node.key[0])
    return name if binary else f"cast({name} AS STRING)"


def json_object(names: Iterable[str]) -> str:
    """Columns as a JSON object, nulls and microseconds among them."""
    return f"to_json(struct({', '.join(map(quote_name, names))}), {_WRITE_JSON})"


def value_expression(node: Node, names: Sequence[str]) -> str:
    """The record's value of a row with these columns."""
    if node.format in SINGLE:
        keys = {each.lower() for each in node.key}
        (name,) = (each for each in names if each.lower() not in keys)
        text = quote_name(name) if node.format == "raw" else f"cast({quote_name(name)} AS STRING)"
    elif node.registered:
        text = f"{value_writer(node)}(struct({', '.join(map(quote_name, names))}))"
    else:
        text = json_object(names) if node.format == "json" else f"to_csv(struct({', '.join(map(quote_name, names))}))"
    doomed = node.option("delete_when")
    return f"CASE WHEN ({doomed}) THEN NULL ELSE {text} END" if doomed else text


def dead_letter_headers(pipeline: str, node: Node) -> str:
    """Where a dead letter comes from and why it is one, after the headers it had."""
    empty = "cast(array() AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"
    place = {
        "topic": "topic",
        "partition": "partition",
        "offset": "offset",
        "timestamp": "unix_millis(timestamp)",
    }
    return f"concat(coalesce(headers, {empty}), {_letter_headers(pipeline, node, place)})"


def bad_row_headers(pipeline: str, node: Node) -> str:
    """The same of a row of a file, which stands for the topic."""
    place = {"topic": "_file", "partition": "0", "offset": "0", "timestamp": "unix_millis(_written)"}
    return _letter_headers(pipeline, node, place)


def _letter_headers(pipeline: str, node: Node, place: Mapping[str, str]) -> str:
    parts = {"pipeline": literal(pipeline), "stream": literal(node.name), **place, "error": ERROR}
    added = ", ".join(
        f"named_struct('key', {literal(f'dead_letter.{name}')}, 'value', cast(cast({text} AS STRING) AS BINARY))"
        for name, text in parts.items()
    )
    return f"array({added})"


def headers_expression(headers: Sequence[tuple[str, bytes]]) -> str:
    """Headers that every record has."""
    each = (f"named_struct('key', {literal(name)}, 'value', X'{value.hex()}')" for name, value in headers)
    return f"array({', '.join(each)})"
