"""Change data: Spark expressions that turn the envelopes of a change log into rows and deletions; pure text.

A record of format `debezium` says what happened to a row of a database: `op` is c (created), u (updated), d (deleted),
r (read by a snapshot) or t (truncated), `before` and `after` are the row. The envelope may be the `payload` beside its
`schema`. Format `cdc` is for other logs; options name its fields. In both a null value deletes its key.

The envelope is opened before the row in it is parsed: `value` becomes the row's JSON, or null for a deletion, and the
record's own bytes stay in `_record`, for dead letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.graph import GraphNode
from klamm.pipeline.sql.core.statement_options import CHANGE_FORMATS, name_list
from klamm.pipeline.sql.core.statements import TABLE, Column
from klamm.pipeline.sql.core.value_parsing import literal, parse_errors, parsed_field, parsed_struct

ENVELOPE: Final = "_envelope"
RECORD: Final = "_record"
"""The column with the record's own value."""
OP: Final = "_op"
ENVELOPE_ERROR: Final = "_envelope_error"
ORDER: Final = "_order"
"""The column by which changes of a key are ordered, with the option order_by."""
_TEXT: Final = "cast(value AS STRING)"
# A row is not parsed as STRING: Spark would write its numbers as doubles, and lose digits.
_DEBEZIUM: Final = {"op": "STRING", "before": "VARIANT", "after": "VARIANT"}
_UPSERTS: Final = {"debezium": "c, r, u", "cdc": "c, r, u, i, insert, update, upsert"}
_DELETES: Final = {"debezium": "d", "cdc": "d, delete"}
TRUNCATE: Final = "t"
TRUNCATED: Final = "the table was truncated: this is not applied, its rows stay until each is deleted"


def is_change_log(node: GraphNode) -> bool:
    """Whether its records are changes."""
    return node.format in CHANGE_FORMATS and node.has_topic


def envelope_struct(node: GraphNode) -> str:
    """Return the expression of the envelope as a struct."""
    return parsed_struct(node, "json", _columns(node), _TEXT)


def change_expressions(node: GraphNode, names: Sequence[str]) -> list[str]:
    """Return the columns of an opened record; `names` are those it has."""
    kept = [quote_name(name) for name in names if name not in ("value", ENVELOPE)]
    order = [f"{_order(node)} AS {ORDER}"] if node.option("order_by") else []
    return [
        *kept,
        f"value AS {RECORD}",
        f"{_value(node)} AS value",
        f"{_op(node)} AS {OP}",
        f"CASE {' '.join(_errors(node))} END AS {ENVELOPE_ERROR}",
        *order,
    ]


def restored_expressions(names: Sequence[str]) -> list[str]:
    """Return the columns of a record with its own value again."""
    return [*(quote_name(name) for name in names if name not in ("value", RECORD)), f"{RECORD} AS value"]


def _columns(node: GraphNode) -> list[Column]:
    if node.format == "debezium":
        payload = ", ".join(f"{name}: {kind}" for name, kind in _DEBEZIUM.items())
        fields = [Column(name, kind, 0) for name, kind in _DEBEZIUM.items()]
        return [*fields, Column("payload", f"STRUCT<{payload}>", 0)]
    rows = [name for name in (node.option("row_column"), node.option("before_column")) if name is not None]
    return [Column(op_column(node), "STRING", 0), *(Column(name, "VARIANT", 0) for name in rows)]


def op_column(node: GraphNode) -> str:
    """Return the field with the operation."""
    return node.option("op_column") or "op"


def _field(node: GraphNode, name: str) -> str:
    """Return a row of the envelope as text, or null."""
    # The null of JSON is a value in a VARIANT.
    return f"nullif({_either(node, name, 'to_json({})')}, 'null')"


def _op(node: GraphNode) -> str:
    return _either(node, op_column(node), "{}")


def _either(node: GraphNode, name: str, template: str) -> str:
    """Return a field of the envelope, or of the payload of one with a schema."""
    field = parsed_field(node, "json", Column(name, "STRING", 0), ENVELOPE)
    if node.format != "debezium":
        return template.format(field)
    payload = parsed_field(node, "json", Column("payload", "", 0), ENVELOPE)
    return f"coalesce({template.format(field)}, {template.format(f'{payload}.{quote_name(name)}')})"


def _row(node: GraphNode) -> str:
    """Return the row as it is after the change."""
    if node.format == "debezium":
        return _field(node, "after")
    name = node.option("row_column")
    return _TEXT if name is None else _field(node, name)


def _row_before(node: GraphNode) -> str:
    """Return the row that was deleted; an empty object where the log does not say, so that the key is left."""
    if node.format == "debezium":
        return f"coalesce({_field(node, 'before')}, '{{}}')"
    name = node.option("before_column")
    return f"coalesce({_row(node) if name is None else _field(node, name)}, '{{}}')"


def upsert_ops(node: GraphNode) -> list[str]:
    """Return the operations, in lower case, that leave a row."""
    return [op.lower() for op in name_list(node.option("upsert_ops") or _UPSERTS[node.format])]


def delete_ops(node: GraphNode) -> list[str]:
    """Return the operations, in lower case, that delete one."""
    return [op.lower() for op in name_list(node.option("delete_ops") or _DELETES[node.format])]


def _is_one_of(node: GraphNode, ops: Sequence[str]) -> str:
    return f"lower({_op(node)}) IN ({', '.join(map(literal, ops))})"


def _value(node: GraphNode) -> str:
    upsert = _is_one_of(node, upsert_ops(node))
    if node.kind == TABLE:
        return f"CASE WHEN {upsert} THEN {_row(node)} END"
    # A stream has a row for each change, of a deletion the row that was there.
    delete = _is_one_of(node, delete_ops(node))
    return f"CASE WHEN {upsert} THEN {_row(node)} WHEN {delete} THEN {_row_before(node)} END"


def _errors(node: GraphNode) -> Iterator[str]:
    upserts = upsert_ops(node)
    deletes = delete_ops(node)
    yield "WHEN value IS NULL THEN NULL"
    yield from parse_errors(node, "json", _columns(node), ENVELOPE, _TEXT)
    column = op_column(node)
    yield f"WHEN {_op(node)} IS NULL THEN {literal(f'the value is no change: it has no {column}')}"
    known = [*upserts, *deletes]
    if node.format == "debezium":
        known.append(TRUNCATE)
        if node.kind == TABLE:
            # Its record has no key, so it could not be ordered with the changes of other partitions.
            message = literal(TRUNCATED)
            yield f"WHEN {_op(node)} = '{TRUNCATE}' THEN {message}"
    none_of = literal(f", which is none of {', '.join(known)}")
    message = f"concat({literal(f'{column} is ')}, {_op(node)}, {none_of})"
    yield f"WHEN NOT ({_is_one_of(node, known)}) THEN {message}"
    missing = literal("the change has no row")
    yield f"WHEN {_is_one_of(node, upserts)} AND {_row(node)} IS NULL THEN {missing}"


def _order(node: GraphNode) -> str:
    """Return what orders the changes of a key: numbers of any size by their value, other text as text."""
    parts: list[str] = []
    for path in name_list(node.option("order_by") or ""):
        text = f"get_json_object({_TEXT}, {literal(f'$.{path}')})"
        if node.format == "debezium":
            text = f"coalesce({text}, get_json_object({_TEXT}, {literal(f'$.payload.{path}')}))"
        parts += [f"try_cast({text} AS DECIMAL(38,0))", text]
    # Of changes at one position the later record counts, as a deletion and its null value are.
    return f"struct({', '.join([*parts, 'timestamp', 'offset'])})"
