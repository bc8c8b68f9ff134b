"""Columns of records that name their schemas, to columns of values of one Arrow type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from klamm.registry.framing import BadRecord, SchemaFrame, unframe

# pyarrow raises any of these for a value that a type cannot hold, depending on the type.
_ARROW_ERRORS = (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError)


def decode_rows(
    decode: Callable[[SchemaFrame], Any], values: pa.Array, headers: pa.Array | None, header_name: str
) -> tuple[list[Any], list[str | None]]:
    """Return the value and the error of each row, one of them None; both for a null."""
    records: list[Any] = []
    errors: list[str | None] = []
    for data, header in zip(values.to_pylist(), last_headers(headers, header_name, len(values)), strict=True):
        value = error = None
        if data is not None:
            try:
                value = decode(unframe(data, header))
            # A RegistryError passes: the record is not at fault.
            except BadRecord as problem:
                error = problem.message
        records.append(value)
        errors.append(error)
    return records, errors


def last_headers(headers: pa.Array | None, name: str, count: int) -> Sequence[bytes | None]:
    """Return each row's last header of a name."""
    # Usually no record has headers: a sum is cheaper than a list of lists.
    if headers is None or not pc.sum(pc.list_value_length(headers)).as_py():
        return [None] * count
    return [
        # Kafka allows repeated headers; the last one counts, as in Headers.lastHeader.
        next((header["value"] for header in reversed(row or ()) if header["key"] == name), None)
        for row in headers.to_pylist()
    ]


def build_column(records: list[Any], errors: list[str | None], arrow: pa.DataType) -> pa.Array:
    """Return a column of values; one that the type cannot hold (a number too large) becomes null, with an error."""
    try:
        return pa.array(records, arrow)
    except _ARROW_ERRORS:
        # One bad value fails the whole array: find it value by value.
        for index, record in enumerate(records):
            try:
                pa.array([record], arrow)
            except _ARROW_ERRORS as problem:
                records[index], errors[index] = None, f"does not fit its column: {problem}"
        return pa.array(records, arrow)
