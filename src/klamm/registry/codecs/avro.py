"""Avro: values by fastavro; records of an old schema are resolved to the reader's schema."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import fastavro

from klamm.registry.client import Schema
from klamm.registry.codecs import avro_json
from klamm.registry.framing import BadRecord, SchemaFrame

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]


class AvroCodec:
    """A compiled schema."""

    def __init__(self, schema: Schema, references: Mapping[str, Schema]) -> None:
        self.schema = schema
        self._references = dict(references)
        named: dict[str, Any] = {}
        try:
            # fastavro adds the types of every schema to `named`; references come innermost first.
            for reference in references.values():
                fastavro.parse_schema(json.loads(reference.text), named)
            self.parsed: Any = fastavro.parse_schema(json.loads(schema.text), named)
        except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
            raise BadRecord(f"schema {schema.id} is not an Avro schema: {error}") from None
        self.named_types = named
        # A schema that is only `bytes` is written as the bytes themselves, without a length, as Java's serializer does.
        self._is_raw = self.parsed in ("bytes", {"type": "bytes"})

    @property
    def full_name(self) -> str | None:
        """The name for RecordNameStrategy: that of a named type, the type of a primitive, None for a union."""
        if isinstance(self.parsed, list):
            return None
        if isinstance(self.parsed, str):
            return self.parsed
        return str(self.parsed.get("name") or self.parsed["type"])

    @property
    def path(self) -> None:
        """None: unlike a Protobuf file, a schema has one type."""
        return

    # Values

    def encode(self, value: Any) -> bytes:
        """Encode a value."""
        if self._is_raw:
            if not isinstance(value, (bytes, bytearray, memoryview)):
                raise BadRecord(f"does not fit Avro schema {self.schema.id}: {type(value).__name__} is not bytes")
            return bytes(value)
        out = io.BytesIO()
        try:
            fastavro.schemaless_writer(out, self.parsed, value)
        except Exception as error:  # noqa: BLE001 - fastavro raises any exception for a value that does not fit
            raise BadRecord(f"does not fit Avro schema {self.schema.id}: {error or type(error).__name__}") from None
        return out.getvalue()

    encode_value = encode

    def value_decoder(self, reader: AvroCodec | None = None) -> Callable[[SchemaFrame], Any]:
        """Return a function that decodes records of this schema, resolved to the reader's schema if there is one."""
        # Without a reader's schema fastavro skips the resolution of fields.
        is_same = reader is None or reader.parsed == self.parsed
        return functools.partial(self._decode, None if is_same or reader is None else reader.parsed)

    def _decode(self, reader_schema: Any, frame: SchemaFrame, *, names: bool = False) -> Any:
        if self._is_raw:
            return bytes(frame.payload)
        source = io.BytesIO(frame.payload)
        try:
            # With names: values alone do not tell two records of equal fields in a union apart.
            value = fastavro.schemaless_reader(
                source, self.parsed, reader_schema, return_record_name=names, return_named_type=names
            )
        except Exception as error:  # noqa: BLE001 - fastavro raises any exception for damaged bytes
            raise BadRecord(f"not a value of Avro schema {self.schema.id}: {error or type(error).__name__}") from None
        # Left-over bytes mean that the record was not written with this schema, even if it decodes.
        if source.tell() != len(frame.payload):
            raise BadRecord(f"{len(frame.payload) - source.tell()} bytes are left after the value")
        return value

    # JSON

    def from_json(self, value: Any, *, tagged: bool = False) -> bytes:
        """Encode a JSON value; `tagged` is Avro's JSON encoding, where logical types are the types below them."""
        codec = self._underlying if tagged else self
        try:
            return codec.encode(avro_json.parse(value, codec.parsed, codec.named_types))
        except (ValueError, TypeError, KeyError) as error:
            raise BadRecord(f"does not fit Avro schema {self.schema.id}: {error}") from None

    def to_json(self, frame: SchemaFrame, *, tagged: bool = False) -> Any:
        """Decode a record to a JSON value; `tagged` is Avro's JSON encoding, which names the branches of unions."""
        codec = self._underlying if tagged else self
        return avro_json.show(codec._decode(None, frame, names=True), codec.parsed, codec.named_types, tagged=tagged)  # noqa: SLF001 - of its own class

    @functools.cached_property
    def _underlying(self) -> AvroCodec:
        """The same schema without logical types."""
        return AvroCodec(
            _without_logical_types(self.schema), {n: _without_logical_types(s) for n, s in self._references.items()}
        )

    # Columns

    @functools.cached_property
    def arrow(self) -> pa.DataType:
        """The Arrow type of its values."""
        from klamm.registry.codecs.avro_columns import arrow_type  # noqa: PLC0415 - pyarrow is an extra

        return arrow_type(self.parsed, self.named_types)

    def decoder(self, reader: AvroCodec) -> Callable[[SchemaFrame], Any]:
        """Return a function that decodes records of this schema into values of the reader's Arrow type."""
        from klamm.registry.codecs.avro_columns import reshaper  # noqa: PLC0415 - pyarrow is an extra

        decode = self.value_decoder(reader)
        reshape = reshaper(reader.parsed, reader.named_types)
        return decode if reshape is None else functools.partial(_decode_reshaped, decode, reshape)


def _decode_reshaped(decode: Callable[[SchemaFrame], Any], reshape: Callable[[Any], Any], frame: SchemaFrame) -> Any:
    return reshape(decode(frame))


def _without_logical_types(schema: Schema) -> Schema:
    return schema._replace(text=json.dumps(avro_json.without_logical_types(json.loads(schema.text))))
