"""Rows of a table as JSON objects, for `send_arrow(..., value="json")`."""

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
"""Rows that are encoded before other tasks of the loop run."""


def is_wanted(schema: pa.Schema, value: object) -> bool:
    """Whether rows are to be sent as JSON; a column of the name json takes precedence."""
    return value == JSON and JSON not in schema.names


async def with_json(table: pa.Table, named: Mapping[str, object]) -> pa.Table:
    """The table with a column `json` of its rows.

    A row has all columns but those that are headers, timestamp and partition of the records; a column named `key` is
    left out as well.
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
        raise ValueError("no column is left for value: a row has all but key, headers, timestamp and partition")
    # By index: two columns may have the same name.
    rows = pa.table(
        [_writable(rows[index], field.name) for index, field in enumerate(rows.schema)], names=rows.schema.names
    )
    values: list[bytes] = []
    for batch in rows.to_batches(max_chunksize=_ROWS):
        values += [_bytes(row) for row in batch.to_pylist()]
        await asyncio.sleep(0)
    return table.append_column(JSON, pa.array(values, pa.binary()))


def _writable(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A column whose values JSON can represent: NaN, which pandas uses for missing values, becomes null."""
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
    """Types that JSON does not have: times as ISO 8601, decimals as text, durations as seconds."""
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return str(value)  # as a JSON number, readers would round it to a float
    raise TypeError(f"{value!r} cannot be written as JSON: it is a {type(value).__name__}")
