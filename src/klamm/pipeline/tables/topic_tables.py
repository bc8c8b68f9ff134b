"""Ranges of topics as tables of a DuckDB database in memory, for ad-hoc queries: `klamm sql`.

A topic becomes a table of its records. The fields of their values are the first columns, then come `_key`, `_value`,
`_timestamp`, `_partition`, `_offset` and `_headers`. Fields are those of the newest schema in a registry, or those of
JSON objects with the types that DuckDB infers. Values that are no such records have nulls there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from klamm.model.errors import ConfigError
from klamm.pipeline.tables.core.field_types import quote_identifier
from klamm.pipeline.tables.core.inferred_columns import COLUMNS_MAX
from klamm.pipeline.tables.queries import (
    Answer,
    LimitExceeded,
    QueryLimits,
    QueryRunner,
    check_statement,
    fetch_row,
    lock_database,
    open_database,
    read_table_names,
)

if TYPE_CHECKING:
    import duckdb

RECORD_COLUMNS: Final = ("_key", "_value", "_timestamp", "_partition", "_offset", "_headers")
_RAW: Final = "klamm.raw_records"
_ARRIVING: Final = "arriving"
_TEXT: Final = "try(decode(_value))"
_OBJECT: Final = f"CASE WHEN json_valid({_TEXT}) AND json_type({_TEXT}) = 'OBJECT' THEN {_TEXT}::JSON END"
_TIME_PATTERN: Final = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*"
_DATE_PATTERN: Final = r"\d{4}-\d\d-\d\d"
_BIGINT_MAX: Final = (1 << 63) - 1

DecodeArrays = Callable[[pa.Array, pa.Array], pa.Array]


@dataclass(frozen=True, slots=True)
class LoadedTopic:
    """A topic in the database; `undecoded` counts the values that are not of the registry's schemas."""

    records: int
    undecoded: int


class TopicDatabase:
    """A database in memory with the records of topics."""

    def __init__(self, limits: QueryLimits) -> None:
        self._limits = limits
        self._connection = open_database(None, limits)
        self._connection.execute("CREATE SCHEMA klamm")
        lock_database(self._connection)
        self._runner = QueryRunner(self._connection, limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()
        self._connection.close()

    def topics_of(self, sql: str) -> list[str]:
        """Return the names that a query reads; QueryError when it is no SELECT."""
        return read_table_names(self._connection, check_statement(self._connection, sql))

    def load(
        self, topic: str, batches: Iterable[pa.RecordBatch], registry: Mapping[str, str] | None = None
    ) -> LoadedTopic:
        """Create a table of a topic's records; LimitExceeded when they need more memory than there may be."""
        import duckdb  # noqa: PLC0415 - an extra

        try:
            return self._load(topic, batches, registry)
        except duckdb.OutOfMemoryException:
            raise LimitExceeded(
                f"the records of {topic} need more than {self._limits.memory_bytes >> 20} MiB of memory:"
                " read a shorter range, or raise the memory limit"
            ) from None
        finally:
            self._connection.execute(f"DROP TABLE IF EXISTS {_RAW}")

    def _load(self, topic: str, batches: Iterable[pa.RecordBatch], registry: Mapping[str, str] | None) -> LoadedTopic:
        from klamm.client.columns import empty_batch  # noqa: PLC0415

        decoder = _RegistryDecoder(topic, registry) if registry is not None else None
        records = undecoded = 0
        self._append(_record_columns(empty_batch(), decoder)[0], create=True)
        for batch in batches:
            rows, bad = _record_columns(batch, decoder)
            self._append(rows, create=False)
            records += batch.num_rows
            undecoded += bad
        fields = decoder.names if decoder is not None and decoder.has_values else None
        key_decoded = decoder is not None and decoder.has_keys
        _create_table(self._connection, topic, fields, key_decoded=key_decoded)
        return LoadedTopic(records, undecoded)

    def _append(self, rows: pa.Table, *, create: bool) -> None:
        self._connection.register(_ARRIVING, rows)
        try:
            target = f"CREATE TABLE {_RAW} AS" if create else f"INSERT INTO {_RAW}"
            self._connection.execute(f"{target} SELECT * FROM {_ARRIVING}")
        finally:
            self._connection.unregister(_ARRIVING)

    def columns(self, topic: str) -> list[dict[str, str]]:
        """Return names and types of the columns of a topic that was loaded."""
        return self._runner.run(f"SELECT * FROM {quote_identifier(topic)} LIMIT 0").columns

    def query(self, sql: str) -> Answer:
        """Answer a query over the topics that were loaded."""
        return self._runner.run(sql)


class _RegistryDecoder:
    """Decodes values, and keys if the registry has a schema for them, by the newest schemas of a topic's subjects."""

    def __init__(self, topic: str, registry: Mapping[str, str]) -> None:
        self.names: list[str] = []
        self._values = self._decoder(topic, registry, "value")
        names, self.names = self.names, []
        self._keys = self._decoder(topic, registry, "key")
        self._key_names, self.names = self.names, names

    def _decoder(self, topic: str, registry: Mapping[str, str], part: str) -> DecodeArrays | None:
        from klamm.pipeline.registry.columns import make_decoder  # noqa: PLC0415
        from klamm.registry.client import parse_settings, shared_registry  # noqa: PLC0415
        from klamm.registry.codecs.compilation import compile_schema  # noqa: PLC0415

        client = shared_registry(parse_settings(registry))
        subject = f"{topic}-{part}"
        try:
            newest = client.latest(subject)
        except ConfigError:
            return None  # the registry has no schema for it
        kind = compile_schema(client, newest).arrow
        self.names = [field.name for field in kind] if pa.types.is_struct(kind) else [part]
        alone = None if pa.types.is_struct(kind) else part
        return make_decoder(registry, subject=subject, names=self.names, part=part, alone=alone)

    @property
    def has_values(self) -> bool:
        """Whether values have a schema."""
        return self._values is not None

    @property
    def has_keys(self) -> bool:
        """Whether keys have a schema."""
        return self._keys is not None

    def decode(self, keys: pa.Array, values: pa.Array, headers: pa.Array) -> tuple[dict[str, pa.Array], int]:
        """Return columns by name, `_key` if it has a schema, and how many values could not be decoded."""
        columns: dict[str, pa.Array] = {}
        undecoded = 0
        if self._values is not None:
            decoded = self._values(values, headers)
            undecoded = len(values) - decoded.field("error").null_count
            columns |= zip(self.names, decoded.field("record").flatten(), strict=True)
        if self._keys is not None:
            record = self._keys(keys, headers).field("record")
            columns["_key"] = record.flatten()[0] if len(self._key_names) == 1 else record
        return columns, undecoded


def _record_columns(batch: pa.RecordBatch, decoder: _RegistryDecoder | None) -> tuple[pa.Table, int]:
    keys, values, headers = batch.column("key"), batch.column("value"), batch.column("headers")
    decoded, undecoded = ({}, 0) if decoder is None else decoder.decode(keys, values, headers)
    fields = {name: array for name, array in decoded.items() if name not in RECORD_COLUMNS}
    columns = {
        **fields,
        "_key": decoded.get("_key", keys),
        "_value": values,
        "_timestamp": batch.column("timestamp"),
        "_partition": batch.column("partition"),
        "_offset": batch.column("offset"),
        "_headers": _header_maps(headers),
    }
    return pa.table(columns), undecoded


def _header_maps(headers: pa.Array) -> pa.Array:
    """Return headers as maps of text; of a repeated name the last counts."""
    kind = pa.map_(pa.string(), pa.string())
    if not pc.sum(pc.list_value_length(headers)).as_py():
        return pa.array([[]] * len(headers), kind)
    maps = []
    for row in headers.to_pylist():
        texts = {header["key"]: _show_bytes(header["value"]) for header in row or ()}
        maps.append(list(texts.items()))
    return pa.array(maps, kind)


def _show_bytes(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


def _create_table(
    connection: duckdb.DuckDBPyConnection, topic: str, fields: Sequence[str] | None, *, key_decoded: bool
) -> None:
    """Create the topic's table of the raw records."""
    if fields is not None:
        names = [name for name in fields if name not in RECORD_COLUMNS]
        columns = {name: quote_identifier(name) for name in names}
        source = _RAW
    else:
        structure = _infer_structure(connection)
        columns = _field_expressions(connection, structure)
        parsed = f"json_transform({_OBJECT}, {_literal(json.dumps(structure))}) AS klamm_row" if structure else "0"
        source = f"(SELECT *, {parsed} FROM {_RAW})"
    columns |= {
        "_key": "_key" if key_decoded else _text_or_bytes(connection, "_key"),
        "_value": _text_or_bytes(connection, "_value"),
        **{name: name for name in RECORD_COLUMNS[2:]},
    }
    selected = ", ".join(f"{expression} AS {quote_identifier(name)}" for name, expression in columns.items())
    connection.execute(f"CREATE OR REPLACE TABLE {quote_identifier(topic)} AS SELECT {selected} FROM {source}")


def _text_or_bytes(connection: duckdb.DuckDBPyConnection, column: str) -> str:
    """Return the expression of a column of bytes: text if all of them are."""
    row = fetch_row(
        connection, f"SELECT count(*) FROM {_RAW} WHERE {column} IS NOT NULL AND try(decode({column})) IS NULL"
    )
    return f"decode({column})" if row == (0,) else column


def _infer_structure(connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    """Return the fields of all JSON objects with the types that DuckDB infers."""
    row = fetch_row(connection, f"SELECT json_group_structure({_OBJECT}) FROM {_RAW}")
    structure = json.loads(row[0]) if row is not None and row[0] else {}
    fields: dict[str, Any] = {}
    for name, kind in structure.items() if isinstance(structure, dict) else ():
        # Names of columns differ not only by case, and data used as names must not make a column each.
        taken = name.lower() in map(str.lower, fields) or name.lower() in RECORD_COLUMNS
        if name and not taken and len(fields) < COLUMNS_MAX:
            fields[name] = "JSON" if kind == "NULL" else kind
    return fields


def _field_expressions(connection: duckdb.DuckDBPyConnection, structure: Mapping[str, Any]) -> dict[str, str]:
    """Return an expression for each field: numbers are signed, and text that is a time in every record is one."""
    expressions = {name: f"klamm_row.{quote_identifier(name)}" for name in structure}
    checks = []
    for name, kind in structure.items():
        value = expressions[name]
        if kind in ("UBIGINT", "HUGEINT"):
            checks.append(f"CASE WHEN bool_and({value} BETWEEN {-_BIGINT_MAX - 1} AND {_BIGINT_MAX}) THEN 'BIGINT' END")
        elif kind == "VARCHAR":
            checks.append(
                f"CASE WHEN {_all_match(value, _DATE_PATTERN, 'DATE')} THEN 'DATE'"
                f" WHEN {_all_match(value, _TIME_PATTERN, 'TIMESTAMPTZ')} THEN 'TIMESTAMPTZ' END"
            )
        else:
            checks.append("NULL")
    if not checks:
        return expressions
    parsed = f"SELECT json_transform({_OBJECT}, {_literal(json.dumps(structure))}) AS klamm_row FROM {_RAW}"
    row = fetch_row(connection, f"SELECT {', '.join(checks)} FROM ({parsed})")
    for (name, kind), narrower in zip(structure.items(), row or (), strict=True):
        value = expressions[name]
        if kind == "JSON":
            # Values of several types, or nulls alone: text, without the quotes of a JSON string.
            expressions[name] = f"({value} ->> '$')"
        elif kind == "UBIGINT" or narrower is not None:
            # Unsigned numbers would fail when one is subtracted from a smaller one.
            expressions[name] = f"{value}::{narrower or 'HUGEINT'}"
    return expressions


def _all_match(value: str, pattern: str, kind: str) -> str:
    matches = f"regexp_full_match({value}, '{pattern}') AND TRY_CAST({value} AS {kind}) IS NOT NULL"
    return f"bool_and({matches}) FILTER (WHERE {value} IS NOT NULL)"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
