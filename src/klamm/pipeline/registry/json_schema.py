"""JSON Schema: objects as structs, values checked by fastjsonschema (drafts 4, 6 and 7).

What a struct cannot hold (a choice of types, an object without named properties) is a column of JSON text.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
from collections.abc import Callable, Mapping
from typing import Any

import fastjsonschema
import pyarrow as pa  # type: ignore[import-untyped]

from klamm.model.errors import ConfigError
from klamm.pipeline.core.registry_framing import BadRecord, Frame
from klamm.pipeline.registry.client import Schema

_PLAIN = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_DEPTH_MAX = 40


class JsonCodec:
    """One schema."""

    def __init__(self, schema: Schema, references: Mapping[str, Schema]) -> None:
        self.schema = schema
        try:
            self.root = json.loads(schema.text)
            self._others = {name: json.loads(each.text) for name, each in references.items()}
            found = dict.fromkeys(("", "http", "https"), self._other)
            self._check = fastjsonschema.compile(self.root, handlers=found, use_default=False)
        except (ValueError, TypeError, KeyError, AttributeError, fastjsonschema.JsonSchemaDefinitionException) as error:
            raise BadRecord(f"schema {schema.id} is no JSON Schema: {error}") from None
        self._arrow: pa.DataType | None = None

    def _other(self, uri: str) -> Any:
        """A schema that the registry says this one refers to; nothing is fetched from anywhere else."""
        name = uri.partition("#")[0]
        for known in (name, name.rpartition("/")[2]):
            if known in self._others:
                return self._others[known]
        raise KeyError(f"no reference {uri}")

    @property
    def arrow(self) -> pa.DataType:
        """The type of its values."""
        if self._arrow is None:
            self._arrow = self._type(self.root, self.root, 0)
        return self._arrow

    def _follow(self, node: Any, root: Any) -> tuple[Any, Any]:
        """A node behind its $ref, and the document it is in."""
        for _ in range(_DEPTH_MAX):
            if not isinstance(node, dict) or "$ref" not in node:
                return node, root
            where, _, inner = node["$ref"].partition("#")
            if where:
                root = self._other(where)
            node = root
            for part in inner.strip("/").split("/") if inner.strip("/") else ():
                node = node[part.replace("~1", "/").replace("~0", "~")]
        raise ConfigError("a $ref of a JSON Schema that leads to itself")

    def _type(self, node: Any, root: Any, depth: int) -> pa.DataType:
        if depth > _DEPTH_MAX:
            raise ConfigError("a JSON Schema that contains itself, and columns cannot")
        node, root = self._follow(node, root)
        kind = _kind(node)
        if kind in _PLAIN:
            return _PLAIN[kind]
        if kind == "object" and node.get("properties"):
            return pa.struct([(name, self._type(each, root, depth + 1)) for name, each in node["properties"].items()])
        if kind == "object" and isinstance(node.get("additionalProperties"), dict):
            return pa.map_(pa.string(), self._type(node["additionalProperties"], root, depth + 1))
        if kind == "array" and isinstance(node.get("items"), dict):
            return pa.list_(self._type(node["items"], root, depth + 1))
        choices = (
            [each for each in node.get("oneOf") or node.get("anyOf") or () if _kind(each) != "null"] if node else ()
        )
        return self._type(choices[0], root, depth + 1) if len(choices) == 1 else pa.string()

    def decoder(self, reader: JsonCodec) -> Callable[[Frame], Any]:
        """Checked with this schema, in the columns of `reader`."""
        arrow = reader.arrow

        def decode(frame: Frame) -> Any:
            try:
                found = json.loads(frame.payload)
                self._check(found)
            except (ValueError, RecursionError, fastjsonschema.JsonSchemaValueException) as error:
                raise BadRecord(f"not what JSON Schema {self.schema.id} says: {error}") from None
            return _shaped(found, arrow)

        return decode

    def encode(self, value: Any) -> bytes:
        """A value as bytes. Columns that are null are left out, unless the schema requires the property."""
        plain = self._pruned(value, self.root, self.root)
        try:
            text = json.dumps(plain, default=_text, separators=(",", ":"), allow_nan=False)
            self._check(json.loads(text))
        except (ValueError, TypeError, fastjsonschema.JsonSchemaValueException) as error:
            raise BadRecord(f"does not fit JSON Schema {self.schema.id}: {error}") from None
        return text.encode()

    def _pruned(self, value: Any, node: Any, root: Any) -> Any:
        node, root = self._follow(node, root)
        if not isinstance(node, dict):
            return value
        choices = [each for each in node.get("oneOf") or node.get("anyOf") or () if _kind(each) != "null"]
        if len(choices) == 1:
            return self._pruned(value, choices[0], root)
        if isinstance(value, dict):
            inner, required = node.get("properties") or {}, node.get("required") or ()
            return {
                name: self._pruned(each, inner.get(name, {}), root)
                for name, each in value.items()
                if each is not None or name in required
            }
        if isinstance(value, list):
            return [self._pruned(each, node.get("items", {}), root) for each in value]
        return value

    @property
    def path(self) -> None:
        """A schema is a single type."""
        return


def _kind(node: Any) -> str | None:
    if not isinstance(node, dict):
        return None
    kind = node.get("type")
    if isinstance(kind, list):
        others = [each for each in kind if each != "null"]
        return others[0] if len(others) == 1 else None
    if kind is None and "properties" in node:
        return "object"
    if kind is None and node.get("enum") and all(isinstance(each, str) for each in node["enum"]):
        return "string"
    return kind if isinstance(kind, str) else None


def _shaped(value: Any, arrow: pa.DataType) -> Any:
    """A value as its column takes it."""
    if value is None:
        return None
    if pa.types.is_struct(arrow) and isinstance(value, dict):
        return {each.name: _shaped(value.get(each.name), each.type) for each in arrow}
    if pa.types.is_map(arrow) and isinstance(value, dict):
        return [(name, _shaped(each, arrow.item_type)) for name, each in value.items()]
    if pa.types.is_list(arrow) and isinstance(value, list):
        return [_shaped(each, arrow.value_type) for each in value]
    if pa.types.is_string(arrow) and not isinstance(value, str):
        return json.dumps(value, separators=(",", ":"))
    if pa.types.is_integer(arrow) and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _text(value: Any) -> Any:
    if isinstance(value, (dt.datetime, dt.date)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"no JSON for {type(value).__name__}")
