"""What differs between two answers to the same query: rows that came, and rows that went.

Rows are compared whole, and an answer may have a row twice. A row that changed is one that went and one that came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

CAME: Final = "+"
WENT: Final = "-"


@dataclass(frozen=True, slots=True)
class Change:
    """A row that is in the answer now (`+`), or that is not any more (`-`)."""

    sign: str
    row: tuple[Any, ...]


def compare_answers(before: Sequence[Sequence[Any]], after: Sequence[Sequence[Any]]) -> list[Change]:
    """Return the changes from one answer to the next: rows that went, then those that came, in the answers' order."""
    old, new = _count_rows(before), _count_rows(after)
    changes: list[Change] = []
    for sign, rows, others in ((WENT, old, new), (CAME, new, old)):
        for key, (row, count) in rows.items():
            surplus = count - (others[key][1] if key in others else 0)
            changes.extend(Change(sign, row) for _ in range(surplus))
    return changes


def _count_rows(rows: Sequence[Sequence[Any]]) -> dict[Any, tuple[tuple[Any, ...], int]]:
    counted: dict[Any, tuple[tuple[Any, ...], int]] = {}
    for row in rows:
        key = _comparable(row)
        counted[key] = (tuple(row), counted[key][1] + 1 if key in counted else 1)
    return counted


def _comparable(value: Any) -> Any:
    """Return a value that can be counted: lists and dicts of nested columns cannot."""
    if isinstance(value, dict):
        return tuple((name, _comparable(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(_comparable(item) for item in value)
    # NaN is unequal to itself, and would come and go at every look. True equals 1, which is another value in JSON.
    return (type(value).__name__, str(value)) if isinstance(value, float | bool) else value
