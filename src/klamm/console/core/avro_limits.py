"""Avro schemas whose decoding the size of a record does not bound.

A record names a count or a depth in a few bytes. For most types every counted item takes bytes of its own, so that
damaged data ends early; these are the exceptions. Bytes are written by others, and a codec cannot be stopped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

RECURSIVE_BYTES_MAX: Final = 2000
"""Of a record whose schema contains itself: each level takes one byte and frames of the C stack, without a limit."""

_NAMED: Final = ("record", "error", "enum", "fixed")


@dataclass(frozen=True, slots=True)
class AvroLimits:
    """What of a schema the size of a record does not bound."""

    has_empty_items: bool = False
    is_recursive: bool = False

    def refuse(self, size: int) -> str:
        """Return why a record of so many bytes is not decoded; empty when it may be."""
        if self.has_empty_items:
            return "its schema has arrays of items without bytes, whose number the record's size does not limit"
        if self.is_recursive and size > RECURSIVE_BYTES_MAX:
            return f"its schema contains itself, and the record has more than {RECURSIVE_BYTES_MAX} bytes"
        return ""


def find_limits(text: str, references: Iterable[str] = ()) -> AvroLimits:
    """Return the limits of a schema with those that it refers to."""
    try:
        types = _SchemaTypes([json.loads(schema) for schema in (*references, text)])
    except (ValueError, RecursionError):
        # No schema at all: the codec says so better.
        return AvroLimits()
    return AvroLimits(types.has_empty_items, types.is_recursive)


class _SchemaTypes:
    """What is dangerous in schemas; named types are resolved by their full or short name."""

    def __init__(self, schemas: list[Any]) -> None:
        self.has_empty_items = False
        self.is_recursive = False
        self._named: dict[str, Mapping[str, Any]] = {}
        for schema in schemas:
            self._collect(schema)
        for schema in schemas:
            self._visit(schema, ())

    def _collect(self, schema: Any) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch)
        elif isinstance(schema, Mapping):
            if schema.get("type") in _NAMED and isinstance(schema.get("name"), str):
                # By the short name: two types of one name in two namespaces count as one, which refuses too much.
                self._named.setdefault(_short(schema["name"]), schema)
            for part in _parts(schema):
                self._collect(part)

    def _visit(self, schema: Any, path: tuple[str, ...]) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._visit(branch, path)
            return
        if isinstance(schema, str):
            named = self._named.get(_short(schema))
            if named is None:
                return
            schema = named
        if not isinstance(schema, Mapping):
            return
        name = schema.get("name")
        if schema.get("type") in _NAMED and isinstance(name, str):
            if _short(name) in path:
                self.is_recursive = True
                return
            path = (*path, _short(name))
        if schema.get("type") == "array" and self._is_empty(schema.get("items"), ()):
            self.has_empty_items = True
        for part in _parts(schema):
            self._visit(part, path)

    def _is_empty(self, schema: Any, path: tuple[str, ...]) -> bool:
        """Whether a value may take no bytes."""
        if isinstance(schema, str):
            named = self._named.get(_short(schema))
            if named is None or _short(schema) in path:
                return schema == "null"
            schema, path = named, (*path, _short(schema))
        if not isinstance(schema, Mapping):
            return False  # the index of a union takes a byte
        kind = schema.get("type")
        if kind in ("record", "error"):
            fields = schema.get("fields") or ()
            return all(isinstance(field, Mapping) and self._is_empty(field.get("type"), path) for field in fields)
        if kind == "fixed":
            return schema.get("size") == 0
        return self._is_empty(kind, path) if isinstance(kind, str | Mapping) else False


def _parts(schema: Mapping[str, Any]) -> list[Any]:
    """The schemas inside of a schema."""
    fields = schema.get("fields")
    parts = [field.get("type") for field in fields if isinstance(field, Mapping)] if isinstance(fields, list) else []
    kind = schema.get("type")
    return [*parts, schema.get("items"), schema.get("values"), *([kind] if isinstance(kind, list | Mapping) else [])]


def _short(name: str) -> str:
    return name.rpartition(".")[2]
