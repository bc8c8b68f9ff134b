"""A record while a filter is evaluated: its text and JSON on demand, and why a result is unknown."""

from __future__ import annotations

import json
from typing import Any, Final, Protocol


class RecordLike(Protocol):
    """The fields of `klamm.client.Record` that filters use."""

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def partition(self) -> int:
        """The partition."""

    @property
    def offset(self) -> int:
        """The offset."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970."""

    @property
    def key(self) -> Any:
        """Bytes or None."""

    @property
    def value(self) -> Any:
        """Bytes or None."""

    @property
    def headers(self) -> Any:
        """Pairs of name and bytes."""


class Unknown:
    """What an expression is when it cannot be computed; counts as false, but is no value and equals nothing."""

    def __bool__(self) -> bool:
        return False


UNKNOWN: Final = Unknown()


class View:
    """A record while its filter runs; text and JSON are decoded at their first use."""

    __slots__ = ("_made", "absence_meant", "missing", "record", "why")

    def __init__(self, record: RecordLike) -> None:
        self.record = record
        self.why: str | None = None
        self.missing: dict[str, Any] = {}
        """Fields the record lacks, each with the object that should have it."""
        self.absence_meant = False
        """Whether the expression tests for presence, so that a missing field is a result and not a mistake."""
        self._made: dict[str, Any] = {}

    def unknown(self, why: str) -> Unknown:
        """UNKNOWN; the first reason is kept for the report."""
        self.why = self.why or why
        return UNKNOWN

    def text(self, name: str) -> Any:
        """Key or value as text."""
        if name not in self._made:
            self._made[name] = as_text(getattr(self.record, name))
        return self._made[name]

    def parse(self, name: str) -> Any:
        """Key or value as JSON, None when it is none."""
        slot = f"{name} parsed"
        if slot not in self._made:
            try:
                # An empty value has no fields, like null; it is not reported as broken JSON.
                self._made[slot] = json.loads(self.text(name) or "null")
            except (ValueError, RecursionError):
                self.unknown(f"a {name} is not JSON and has no fields")
                self._made[slot] = None
        return self._made[slot]


def as_text(data: Any) -> Any:
    """Bytes as text; anything else as it is."""
    # Binary data must not fail the filter: other parts of the expression may still match.
    return bytes(data).decode(errors="replace") if isinstance(data, bytes | bytearray | memoryview) else data
