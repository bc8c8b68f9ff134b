"""Columns of JSON values that no statement declares: by the fields that were seen, in the order they were seen.

A type only ever becomes wider, so that every value seen so far fits: BIGINT, then DOUBLE, then text. Objects and arrays
are kept as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from klamm.pipeline.tables.core.field_types import FieldType

_UNKNOWN: Final = "NULL"
"""The type of a field that was null in every document so far."""
_BIGINT_MAX: Final = 1 << 63
COLUMNS_MAX: Final = 1000
"""More fields than these are not read: names that are data would make a column each."""


class InferredColumns:
    """The columns seen so far."""

    def __init__(self, types: Mapping[str, str] | None = None) -> None:
        self.types: dict[str, str] = dict(types or {})
        self._ignored: set[str] = set()

    def observe(self, document: Mapping[str, Any]) -> None:
        """Widen the columns so that the fields of a document fit."""
        types = self.types
        for name, value in document.items():
            kind = _type_of(value)
            known = types.get(name)
            if known != kind:
                if known is None and not self._is_new(name):
                    continue
                types[name] = _widen(known, kind)

    def _is_new(self, name: str) -> bool:
        """Whether a field that was not seen before becomes a column: names of columns differ not only by case."""
        if name in self._ignored:
            return False
        if len(self.types) < COLUMNS_MAX and _is_name(name) and name.lower() not in map(str.lower, self.types):
            return True
        if len(self._ignored) < COLUMNS_MAX:
            self._ignored.add(name)
        return False

    def columns(self) -> list[tuple[str, FieldType]]:
        """Return names and types."""
        return [(name, FieldType("STRING" if kind == _UNKNOWN else kind)) for name, kind in self.types.items()]


def _is_name(name: str) -> bool:
    try:
        return bool(name) and "\0" not in name and bool(name.encode())
    except UnicodeEncodeError:
        return False


def _type_of(value: Any) -> str:
    if value is None:
        return _UNKNOWN
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if -_BIGINT_MAX <= value < _BIGINT_MAX else "DOUBLE"
    if isinstance(value, Decimal):
        return "DOUBLE"
    return "STRING" if isinstance(value, str) else "VARIANT"


def _widen(known: str | None, kind: str) -> str:
    if known is None or known == _UNKNOWN:
        return kind
    if kind in (_UNKNOWN, known):
        return known
    return "DOUBLE" if {known, kind} == {"BIGINT", "DOUBLE"} else "STRING"
