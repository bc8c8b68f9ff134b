"""JSON Schema: objects as structs, values validated by fastjsonschema (drafts 4, 6 and 7).

What a struct cannot hold (a choice of types, an object without named properties) becomes a column of JSON text.
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
from klamm.pipeline.core.registry_framing import BadRecord, SchemaFrame
from klamm.pipeline.registry.client import Schema

_PRIMITIVES = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_DEPTH_MAX = 40


class JsonCodec:
    """A compiled schema."""

    def __init__(self, schema: Schema, references: Mapping[str, Schema]) -> None:
        self.schema = schema
        try:
            self.root = json.loads(schema.text)
            self._referenced = {name: json.loads(schema.text) for name, schema in references.items()}
            # Handlers for all schemes: fastjsonschema would otherwise fetch a $ref from its URL.
            handlers = dict.fromkeys(("", "http", "https"), self._reference)
            # use_default=False: otherwise the check writes default values into the record.
            self._check = fastjsonschema.compile(self.root, handlers=handlers, use_default=False)
        except (ValueError, TypeError, KeyError, AttributeError, fastjsonschema.JsonSchemaDefinitionException) as error:
            raise BadRecord(f"schema {schema.id} is not a JSON Schema: {error}") from None
        self._arrow: pa.DataType | None = None

    def _reference(self, uri: str) -> Any:
        """Return a schema that the registry lists as a reference; nothing is fetched from elsewhere."""
        name = uri.partition("#")[0]
        for candidate in (name, name.rpartition("/")[2]):
            if candidate in self._referenced:
                return self._referenced[candidate]
        raise KeyError(f"no reference {uri}")

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of its values."""
        if self._arrow is None:
            self._arrow = self._type(self.root, self.root, 0)
        return self._arrow

    def _follow(self, node: Any, root: Any) -> tuple[Any, Any]:
        """Resolve a node's $ref; return the node and the document it is in."""
        for _ in range(_DEPTH_MAX):
            if not isinstance(node, dict) or "$ref" not in node:
                return node, root
            document, _, pointer = node["$ref"].partition("#")
            if document:
                root = self._reference(document)
            node = root
            for part in pointer.strip("/").split("/") if pointer.strip("/") else ():
                # ~1 before ~0 (RFC 6901): otherwise ~01 would become a slash.
                node = node[part.replace("~1", "/").replace("~0", "~")]
        raise ConfigError("a $ref of the JSON Schema refers to itself")

    def _type(self, node: Any, root: Any, depth: int) -> pa.DataType:
        if depth > _DEPTH_MAX:
            raise ConfigError("the JSON Schema is recursive, which columns cannot be")
        node, root = self._follow(node, root)
        kind = _type_name(node)
        if kind in _PRIMITIVES:
            return _PRIMITIVES[kind]
        if kind == "object" and node.get("properties"):
            return pa.struct([(name, self._type(part, root, depth + 1)) for name, part in node["properties"].items()])
        if kind == "object" and isinstance(node.get("additionalProperties"), dict):
            return pa.map_(pa.string(), self._type(node["additionalProperties"], root, depth + 1))
        if kind == "array" and isinstance(node.get("items"), dict):
            return pa.list_(self._type(node["items"], root, depth + 1))
        choices = (
            [choice for choice in node.get("oneOf") or node.get("anyOf") or () if _type_name(choice) != "null"]
            if node
            else ()
        )
        # A choice of null and one type is a nullable column of that type.
        return self._type(choices[0], root, depth + 1) if len(choices) == 1 else pa.string()

    def decoder(self, reader: JsonCodec) -> Callable[[SchemaFrame], Any]:
        """Return a function that validates records with this schema and converts them to the reader's type."""
        arrow = reader.arrow

        def decode(frame: SchemaFrame) -> Any:
            try:
                value = json.loads(frame.payload)
                self._check(value)
            # json.loads raises RecursionError for deep nesting.
            except (ValueError, RecursionError, fastjsonschema.JsonSchemaValueException) as error:
                raise BadRecord(f"not a value of JSON Schema {self.schema.id}: {error}") from None
            return _to_column(value, arrow)

        return decode

    def encode(self, value: Any) -> bytes:
        """Encode a value. A column that is null is left out, unless the schema requires the property."""
        plain = self._prune(value, self.root, self.root)
        try:
            text = json.dumps(plain, default=_encode_scalar, separators=(",", ":"), allow_nan=False)
            # Validated as JSON, after dates and decimals have become text and numbers.
            self._check(json.loads(text))
        except (ValueError, TypeError, fastjsonschema.JsonSchemaValueException) as error:
            raise BadRecord(f"does not fit JSON Schema {self.schema.id}: {error}") from None
        return text.encode()

    def _prune(self, value: Any, node: Any, root: Any) -> Any:
        node, root = self._follow(node, root)
        if not isinstance(node, dict):
            return value
        choices = [choice for choice in node.get("oneOf") or node.get("anyOf") or () if _type_name(choice) != "null"]
        if len(choices) == 1:
            return self._prune(value, choices[0], root)
        if isinstance(value, dict):
            inner, required = node.get("properties") or {}, node.get("required") or ()
            return {
                name: self._prune(item, inner.get(name, {}), root)
                for name, item in value.items()
                if item is not None or name in required
            }
        if isinstance(value, list):
            return [self._prune(item, node.get("items", {}), root) for item in value]
        return value

    @property
    def path(self) -> None:
        """None: unlike a Protobuf file, a schema has one type."""
        return


def _type_name(node: Any) -> str | None:
    if not isinstance(node, dict):
        return None
    kind = node.get("type")
    if isinstance(kind, list):
        names = [name for name in kind if name != "null"]
        return names[0] if len(names) == 1 else None
    if kind is None and "properties" in node:
        return "object"
    if kind is None and node.get("enum") and all(isinstance(value, str) for value in node["enum"]):
        return "string"
    return kind if isinstance(kind, str) else None


def _to_column(value: Any, arrow: pa.DataType) -> Any:
    """Convert a value to what its column's type takes."""
    if value is None:
        return None
    if pa.types.is_struct(arrow) and isinstance(value, dict):
        return {field.name: _to_column(value.get(field.name), field.type) for field in arrow}
    if pa.types.is_map(arrow) and isinstance(value, dict):
        return [(name, _to_column(item, arrow.item_type)) for name, item in value.items()]
    if pa.types.is_list(arrow) and isinstance(value, list):
        return [_to_column(item, arrow.value_type) for item in value]
    if pa.types.is_string(arrow) and not isinstance(value, str):
        return json.dumps(value, separators=(",", ":"))
    if (
        pa.types.is_integer(arrow) and isinstance(value, float) and value.is_integer()
    ):  # 1.0 is an integer in JSON Schema
        return int(value)
    return value


def _encode_scalar(value: Any) -> Any:
    if isinstance(value, (dt.datetime, dt.date)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"no JSON for {type(value).__name__}")
