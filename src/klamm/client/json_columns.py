"""JSON values as typed columns, for `read_topic(value="json")`.

Arrow's own reader parses all values at once and infers their types. Only when it fails, values are parsed one by one to
find those that are no JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from klamm.client.consumer.typed_columns import handle_row_error, row_error
from klamm.client.errors import SerializationError

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

FORMS: Final = ("bytes", "str", "json")
"""The forms that values can be read as."""
_BLOCK_BYTES: Final = 1 << 30
"""Arrow infers types per block; its limit is twice this size."""


async def read_values(table: pa.Table, form: str, on_error: Any) -> pa.Table:
    """The same rows with typed values; rows that cannot be read are passed to `on_error` and left out."""
    if form == "bytes":
        return table
    read = _texts if form == "str" else _fields
    try:
        return read(table)
    except _NotReadError:
        kept = [True] * table.num_rows
        for row in _unreadable(table["value"], form):
            await handle_row_error(_error(table, row, form), on_error)
            kept[row] = False
    try:
        return read(table.filter(kept))
    except _NotReadError as error:
        # Every value is JSON by itself: the same field is a number in one and text in another.
        raise SerializationError(f'the values have no common type: {error}; value="str" reads them as text') from error


class _NotReadError(Exception):
    """Arrow cannot parse the values."""


def _texts(table: pa.Table) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415

    try:
        texts = table["value"].cast(pa.large_string())
    except pa.ArrowInvalid as error:
        raise _NotReadError(str(error)) from error
    return table.set_column(table.schema.get_field_index("value"), "value", texts)


def _fields(table: pa.Table) -> pa.Table:
    """One column per field of the objects, in place of the value; values that are no objects stay one column."""
    parsed = _parse(table)
    place = table.schema.get_field_index("value")
    columns: list[tuple[str, Any]] = [(name, table[name]) for name in table.schema.names if name != "value"]
    columns[place:place] = spread(parsed, {name for name, _ in columns})
    import pyarrow as pa  # noqa: PLC0415

    return pa.table([column for _, column in columns], names=[name for name, _ in columns])


def spread(parsed: pa.ChunkedArray, taken: set[str]) -> Iterable[tuple[str, Any]]:
    """The fields of structs by name; a name that is also a column of the record gets the prefix `value.`."""
    import pyarrow as pa  # noqa: PLC0415

    if not pa.types.is_struct(parsed.type) or not parsed.type.num_fields:
        return [("value", parsed)]
    names = [field.name for field in parsed.type]
    return [
        (f"value.{name}" if name in taken else name, column)
        for name, column in zip(names, parsed.flatten(), strict=True)
    ]


def _parse(table: pa.Table) -> pa.ChunkedArray:
    """One column of parsed values; null where there is no value."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import json as arrow_json  # noqa: PLC0415

    if not table.num_rows:
        return pa.chunked_array([], pa.null())
    # Arrow reads one document per line. In JSON a line end is white space between tokens, never part of a text.
    lines = b"\n".join(
        b'{"value":%b}' % (b"null" if value is None else value.replace(b"\n", b" ").replace(b"\r", b" "))
        for value in table["value"].to_pylist()
    )
    options = arrow_json.ReadOptions(block_size=min(len(lines) + 1, _BLOCK_BYTES))
    try:
        lines.decode()  # Arrow does not check that texts are UTF-8
        parsed = arrow_json.read_json(pa.BufferReader(lines), read_options=options)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise _NotReadError(str(error)) from error
    if parsed.num_rows != table.num_rows or parsed.schema.names != ["value"]:
        # A value such as 1,"other":2 is no JSON, but becomes a valid line within {"value":...}.
        raise _NotReadError("a value contains more than one JSON value")
    return parsed["value"]


def _unreadable(values: pa.ChunkedArray, form: str) -> list[int]:
    """The rows whose values do not have the form."""
    rows = []
    for row, value in enumerate(values.to_pylist()):
        try:
            if value is not None:
                _read(value, form)
        except ValueError:
            rows.append(row)
    return rows


def _read(value: bytes, form: str) -> Any:
    # NaN and Infinity: Python's parser accepts them, JSON and Arrow do not.
    return value.decode() if form == "str" else json.loads(value.decode(), parse_constant=_refuse)


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _error(table: pa.Table, row: int, form: str) -> SerializationError:
    try:
        _read(table["value"][row].as_py(), form)
    except ValueError as cause:
        error = row_error(table, row, f"the value is no {form}: {cause}")
        error.__cause__ = cause
        return error
    raise AssertionError(f"row {row} can be read")
