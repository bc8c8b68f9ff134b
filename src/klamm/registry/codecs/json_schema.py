"""JSON Schema: values are JSON, validated by jsonschema-rs with the schema that a record names."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from klamm.registry.client import Schema
from klamm.registry.framing import BadRecord, SchemaFrame
from klamm.registry.schemas.json_schema import JsonSchema, compile_validator
from klamm.registry.schemas.parsed import InvalidSchemaError, ParsedSchema

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]


class JsonCodec:
    """A compiled schema."""

    def __init__(self, schema: Schema, references: Mapping[str, Schema]) -> None:
        self.schema = schema
        parsed: dict[str, ParsedSchema] = {}
        try:
            # References come innermost first, so each finds its own among those before it.
            for name, reference in references.items():
                parsed[name] = JsonSchema.parse(reference.text, parsed, is_new=False)
            self._parsed = JsonSchema.parse(schema.text, parsed, is_new=False)
            self._validator = compile_validator(self._parsed.document)
        except InvalidSchemaError as error:
            raise BadRecord(f"schema {schema.id} is not a JSON Schema: {error}") from None
        self.document = self._parsed.document

    @property
    def full_name(self) -> str | None:
        """The name for RecordNameStrategy: the title."""
        return self._parsed.full_name or None

    @property
    def path(self) -> None:
        """None: unlike a Protobuf file, a schema has one type."""
        return

    def check(self, value: Any) -> None:
        """Raise ValueError for a value that the schema does not allow."""
        # The answer alone is three times as fast as the reason.
        if not self._validator.is_valid(value):
            self._validator.validate(value)

    # Values

    def encode_value(self, value: Any) -> bytes:
        """Encode a value."""
        try:
            # The bytes of confluent-kafka's serializer: no spaces, text as it is.
            text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
            self.check(value)
            return text.encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise BadRecord(f"does not fit JSON Schema {self.schema.id}: {_first_line(error)}") from None

    def value_decoder(self, reader: JsonCodec | None = None) -> Callable[[SchemaFrame], Any]:
        """Return a function that parses and validates records, with the reader's schema too if there is one."""
        return functools.partial(self._decode, None if reader is self else reader)

    def _decode(self, reader: JsonCodec | None, frame: SchemaFrame) -> Any:
        try:
            value = json.loads(frame.payload)
            self.check(value)
            if reader is not None:
                reader.check(value)
        # json.loads raises RecursionError for deep nesting.
        except (ValueError, RecursionError) as error:
            raise BadRecord(f"not a value of JSON Schema {self.schema.id}: {_first_line(error)}") from None
        return value

    # JSON

    def from_json(self, value: Any, *, tagged: bool = False) -> bytes:
        """Encode a JSON value, which it is already."""
        del tagged
        return self.encode_value(value)

    def to_json(self, frame: SchemaFrame, *, tagged: bool = False) -> Any:
        """Decode a record to a JSON value."""
        del tagged
        return self._decode(None, frame)

    # Columns

    @functools.cached_property
    def arrow(self) -> pa.DataType:
        """The Arrow type of its values."""
        from klamm.registry.codecs.json_columns import arrow_type  # noqa: PLC0415 - pyarrow is an extra

        return arrow_type(self.document.root_node)

    def decoder(self, reader: JsonCodec) -> Callable[[SchemaFrame], Any]:
        """Return a function that validates records with this schema and converts them to the reader's type."""
        from klamm.registry.codecs.json_columns import column_converter  # noqa: PLC0415 - pyarrow is an extra

        convert = column_converter(reader.arrow)
        decode = self.value_decoder()
        return decode if convert is None else functools.partial(_to_column, decode, convert)

    def encode(self, value: Any) -> bytes:
        """Encode a value of its Arrow type. A null is left out, unless the schema requires the property."""
        from klamm.registry.codecs.json_columns import encode_scalar, prune  # noqa: PLC0415 - pyarrow is an extra

        plain = prune(value, self.document.root_node)
        try:
            text = json.dumps(plain, default=encode_scalar, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
            # Validated as JSON, after dates and decimals have become text and numbers.
            self.check(json.loads(text))
        except (ValueError, TypeError) as error:
            raise BadRecord(f"does not fit JSON Schema {self.schema.id}: {_first_line(error)}") from None
        return text.encode()


def _to_column(decode: Callable[[SchemaFrame], Any], convert: Callable[[Any], Any], frame: SchemaFrame) -> Any:
    value = decode(frame)
    return None if value is None else convert(value)


def _first_line(error: Exception) -> str:
    # jsonschema-rs adds the schema and the whole value, line by line.
    path = "".join(f"[{part!r}]" for part in getattr(error, "instance_path", ()))
    message = getattr(error, "message", None) or str(error).partition("\n")[0] or type(error).__name__
    return f"value{path}: {message}" if path else message
