"""A dict of dicts that is small if nearly all of the inner ones have one entry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class CompactIndex(Generic[K, V]):
    """Entries by key and, for one key, by a field of theirs, in the order in which they were put.

    The only entry of a key is kept without a dict of its own, which would take 230 bytes: nearly all subjects have one
    version, and nearly all ids one subject. Entries must not be dicts.
    """

    __slots__ = ("_entries", "_field_of")

    def __init__(self, field_of: Callable[[V], Any]) -> None:
        self._entries: dict[K, Any] = {}
        """An entry, or a dict of entries by their field."""
        self._field_of = field_of

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def values(self, key: K) -> Collection[V]:
        """Return the entries of a key."""
        entry = self._entries.get(key)
        if entry is None:
            return ()
        return entry.values() if isinstance(entry, dict) else (entry,)

    def first(self, key: K) -> V | None:
        """Return the entry of a key that was put first."""
        return next(iter(self.values(key)), None)

    def last(self, key: K) -> V | None:
        """Return the entry of a key that was put last."""
        entry = self._entries.get(key)
        return next(reversed(entry.values()), None) if isinstance(entry, dict) else entry

    def find(self, key: K, field: Any) -> V | None:
        """Return the entry of a key with a field."""
        entry = self._entries.get(key)
        if isinstance(entry, dict):
            return entry.get(field)
        return entry if entry is not None and self._field_of(entry) == field else None

    def put(self, key: K, value: V) -> None:
        """Add an entry; it replaces the one with the same field in its place."""
        entry = self._entries.get(key)
        field = self._field_of(value)
        if isinstance(entry, dict):
            entry[field] = value
        elif entry is None or self._field_of(entry) == field:
            self._entries[key] = value
        else:
            self._entries[key] = {self._field_of(entry): entry, field: value}

    def sort(self, key: K) -> None:
        """Bring the entries of a key into the order of their fields."""
        entry = self._entries.get(key)
        if isinstance(entry, dict):
            self._entries[key] = dict(sorted(entry.items()))

    def remove(self, key: K, field: Any) -> V | None:
        """Remove an entry, and return it; None if there is none."""
        value = self.find(key, field)
        if value is None:
            return None
        entry = self._entries[key]
        if isinstance(entry, dict):
            del entry[field]
        if not isinstance(entry, dict) or not entry:
            del self._entries[key]
        return value
