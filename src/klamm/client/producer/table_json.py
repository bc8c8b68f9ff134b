"""Rows of a table as JSON objects: what `send_arrow(..., value="json")` sends."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

JSON: Final = "json"
_ROWS: Final = 2048
"""Rows that are written before others on the loop have their turn."""


def is_wanted(schema: pa.Schema, value: object) -> bool:
    """Whether rows are to be written as JSON; a column that is named json is a column."""
    return value == JSON and JSON not in schema.names


async def with_json(table: pa.Table, named: Mapping[str, object]) -> pa.Table:
    """The table with a column `json` of its rows, as `send_arrow` takes it.

    A row is all columns but those that are headers, timestamp and partition of the records; a column that only serves
    as key, under that name, is left out as well.
    """
    import pyarrow as pa  # noqa: PLC0415

    apart = {
        named.get("headers"),
        named.get("timestamp"),
        named.get("partition"),
        "key" if named.get("key") == "key" else None,
    }
    rows = table.select([name for name in table.schema.names if name not in apart])
    if not rows.num_columns:
        raise ValueError("there is no column left for value: a row is all but key, headers, timestamp and partition")
    rows = pa.table([_writable(rows[at], field.name) for at, field in enumerate(rows.schema)], names=rows.schema.names)
    values: list[bytes] = []
    for batch in rows.to_batches(max_chunksize=_ROWS):
        values += [_bytes(row) for row in batch.to_pylist()]
        await asyncio.sleep(0)
    return table.append_column(JSON, pa.array(values, pa.binary()))


def _writable(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A column as JSON can have it: what is not a number, as pandas marks what is missing, is null."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # type: ignore[import-untyped] # noqa: PLC0415

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if any(holds(kind) for holds in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)):
        raise TypeError(f"column {name!r} is {kind}: JSON has no bytes; cast it to text, or leave it out")
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind))
    return column


def _bytes(row: dict[str, Any]) -> bytes:
    try:
        return json.dumps(row, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain).encode()
    except ValueError as error:
        raise ValueError(f"a row cannot be written as JSON: {error}") from error


def _plain(value: Any) -> Any:
    """What JSON has no word for: moments as ISO 8601, decimals as text, durations as seconds."""
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError(f"{value!r} cannot be written as JSON: it is a {type(value).__name__}")
