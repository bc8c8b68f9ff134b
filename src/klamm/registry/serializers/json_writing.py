"""JSON as records of a schema, for `klamm produce` and the console: people write JSON, whatever the schema's kind."""

from __future__ import annotations

from typing import Any

from klamm.registry.client import Registry, Schema
from klamm.registry.codecs.compilation import compile_schema
from klamm.registry.framing import prefix
from klamm.registry.rules import WRITE, refuse_rules


class JsonRecordWriter:
    """Writes JSON values with one schema; BadRecord for a value that does not fit.

    A schema without an id is one that is not registered: values are checked and get no prefix.
    """

    def __init__(self, registry: Registry, schema: Schema, message: str | None = None) -> None:
        refuse_rules(schema, WRITE)
        self.schema = schema
        self._codec = compile_schema(registry, schema, message)
        self._first = b"" if schema.id is None else prefix(schema.id) + (self._codec.path or b"")

    def write(self, value: Any) -> bytes:
        """Return the bytes of a record's key or value."""
        return self._first + self._codec.from_json(value)
