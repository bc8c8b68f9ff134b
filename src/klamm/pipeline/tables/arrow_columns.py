"""Arrow arrays of declared types: of Python values, of text, and of arrays of another type.

Whole arrays are converted at once where all of their values fit. Otherwise the values are converted one by one by the
rules of `core`, which are the authority: what the short cut accepts, they accept with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from klamm.pipeline.tables.core.field_types import FieldType
from klamm.pipeline.tables.core.text_values import BadValue, check_decimal, from_text, parse_base64

_SIMPLE: Final = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "STRING": pa.string(),
    "VARIANT": pa.string(),
    "BINARY": pa.binary(),
}
_CAST_ERRORS: Final = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


def arrow_type(field_type: FieldType) -> pa.DataType:
    """Return the Arrow type of a declared type."""
    if field_type.name == "DECIMAL":
        return pa.decimal128(*field_type.size)
    if field_type.name == "ARRAY":
        return pa.list_(arrow_type(field_type.parts[0]))
    if field_type.name == "MAP":
        return pa.map_(arrow_type(field_type.parts[0]), arrow_type(field_type.parts[1]))
    if field_type.name == "STRUCT":
        fields = zip(field_type.names, field_type.parts, strict=True)
        return pa.struct([(name, arrow_type(part)) for name, part in fields])
    return _SIMPLE[field_type.name]


def make_array(values: Sequence[Any], field_type: FieldType) -> pa.Array:
    """Return an array of values that the rules have accepted."""
    return pa.array(values, arrow_type(field_type))


def decode_text(data: pa.Array) -> pa.Array:
    """Return bytes as text; those that are no UTF-8 are null."""
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_decode(value) for value in data.to_pylist()], pa.string())


def _decode(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def parse_texts(texts: pa.Array, field_type: FieldType) -> pa.Array:
    """Return texts as values of a type, null where they are none."""
    if field_type.name in ("STRING", "VARIANT"):
        return texts
    whole = _parse_whole(texts, field_type)
    if whole is not None:
        return whole
    return make_array([_parse_text(text, field_type) for text in texts.to_pylist()], field_type)


def _parse_text(text: str | None, field_type: FieldType) -> Any:
    try:
        return None if text is None else from_text(text, field_type)
    except BadValue:
        return None


def _parse_whole(texts: pa.Array, field_type: FieldType) -> pa.Array | None:
    """Return texts as values if Arrow parses all of them; None if not."""
    convert = _WHOLE.get(field_type.name)
    try:
        return None if convert is None else convert(texts)
    except _CAST_ERRORS:
        return None


def _cast_to(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    def cast(texts: pa.Array) -> pa.Array:
        return texts.cast(kind)

    return cast


def _parse_zoned(texts: pa.Array) -> pa.Array:
    try:
        return texts.cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:
        # Arrow refuses text without a zone for a type with one. All without: they are UTC. Mixed: one by one.
        return pc.assume_timezone(texts.cast(pa.timestamp("us")), "UTC")


_WHOLE: Final = {
    **{name: _cast_to(_SIMPLE[name]) for name in ("TINYINT", "SMALLINT", "INT", "BIGINT", "DATE", "TIMESTAMP_NTZ")},
    "TIMESTAMP": _parse_zoned,
}


def parse_base64_texts(texts: pa.Array) -> pa.Array:
    """Return the bytes of texts in base64, null where they are none: JSON Schema has no bytes."""
    return pa.array([_parse_base64(text) for text in texts.to_pylist()], pa.binary())


def _parse_base64(text: str | None) -> bytes | None:
    try:
        return None if text is None else parse_base64(text)
    except BadValue:
        return None


def convert_array(values: pa.Array, field_type: FieldType) -> pa.Array:
    """Return an array as another type, null where a value does not fit (Spark's `try_cast`)."""
    wanted = arrow_type(field_type)
    if values.type == wanted:
        return values
    if pa.types.is_string(values.type):
        return parse_texts(values, field_type)
    try:
        return values.cast(wanted)
    except _CAST_ERRORS:
        pass
    return pa.array([_convert_value(value, field_type, wanted) for value in values], wanted)


def _convert_value(scalar: pa.Scalar, field_type: FieldType, wanted: pa.DataType) -> Any:
    if not scalar.is_valid:
        return None
    value = scalar.as_py()
    try:
        if field_type.name == "DECIMAL" and isinstance(value, int | float | Decimal):
            # Arrow casts a whole column by its type: no BIGINT fits a DECIMAL(8,2), though its numbers may.
            return check_decimal(Decimal(str(value)), field_type)
        return scalar.cast(wanted).as_py()
    except (*_CAST_ERRORS, BadValue, InvalidOperation):
        return None
