"""Values of an answer as JSON has them: for output on the command line and over HTTP.

As in values that a pipeline writes: times are UTC with microseconds, bytes are base64, decimals keep their digits.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]


def to_plain(value: Any) -> Any:
    """Return a value of Python as one that JSON has."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _special_float(value)
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return f"{text}Z" if value.tzinfo is not None else text
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(name): to_plain(item) for name, item in value.items()}
    if type(value).__name__ == "MonthDayNano":
        return _interval(*value)
    if isinstance(value, list) and value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
        return {str(to_plain(name)): to_plain(item) for name, item in value}  # a map, as Arrow returns it
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return str(value)  # intervals, UUIDs and other types of DuckDB


def _special_float(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _interval(months: int, days: int, nanoseconds: int) -> str:
    """Return an interval as DuckDB shows it: `1 month 2 days 03:04:05.5`."""
    words = [
        f"{count} {unit}{'' if abs(count) == 1 else 's'}" for count, unit in ((months, "month"), (days, "day")) if count
    ]
    seconds, rest = divmod(abs(nanoseconds) // 1000, 1_000_000)
    if seconds or rest or not words:
        fraction = f".{rest:06d}".rstrip("0") if rest else ""
        sign = "-" if nanoseconds < 0 else ""
        words.append(f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}")
    return " ".join(words)


def _decimal(value: Decimal) -> int | float | str:
    """Return a number if JSON readers see the same digits, otherwise text."""
    if not value.is_finite():
        return str(value)
    if value == value.to_integral_value() and abs(value) < 1 << 53:
        return int(value) if value.as_tuple().exponent == 0 else float(value)
    number = float(value)
    return number if Decimal(repr(number)) == value else str(value)


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of an answer; a column whose name is there already gets a number."""
    names = unique_names(table.column_names)
    columns = [[to_plain(value) for value in column.to_pylist()] for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def unique_names(names: list[str]) -> list[str]:
    """Return names of which none is there twice: `SELECT a, a` has the columns a and a_1."""
    unique: list[str] = []
    for name in names:
        candidate, number = name, 0
        while candidate in unique:
            number += 1
            candidate = f"{name}_{number}"
        unique.append(candidate)
    return unique
