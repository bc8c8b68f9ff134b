"""The rules by which a JSON document becomes values of declared types: the one place where they are decided.

A value is one JSON object and nothing else. Fields are found by their exact names; those that are not declared are
ignored, missing ones are null, and of a repeated name the last counts. A number that the type cannot hold exactly is
bad. A time is spelt as the statement's `timestamp_format` says. These are the rules of `parsing = 'strict'`
(`sql.core.value_parsing`), which has them as Spark expressions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NoReturn

from klamm.pipeline.tables.core.field_types import INTEGER_BITS, FieldType
from klamm.pipeline.tables.core.text_values import (
    BadValue,
    check_decimal,
    check_integer,
    check_text,
    from_text,
    parse_base64,
    parse_date,
)
from klamm.pipeline.tables.core.time_formats import TimeParser, parse_iso


def parse_document(data: bytes) -> dict[str, Any]:
    """Return the fields of a record's value; BadValue when it is not one JSON object. Fractions are Decimals."""
    try:
        document = json.loads(data.decode(), parse_float=Decimal, parse_constant=_refuse_constant)
    except RecursionError:
        raise BadValue("the value is nested too deeply") from None
    except ValueError as error:
        raise BadValue(f"the value is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadValue(f"the value is no JSON object but {type(document).__name__}")
    return document


def read_fields(
    document: Mapping[str, Any], columns: Sequence[tuple[str, FieldType]], parse_time: TimeParser = parse_iso
) -> list[Any]:
    """Return the values of columns; BadValue names the first that does not fit."""
    values = []
    for name, field_type in columns:
        try:
            values.append(from_json(document.get(name), field_type, parse_time))
        except BadValue as error:
            raise BadValue(f"{name}: {error}") from None
    return values


def from_json(value: Any, field_type: FieldType, parse_time: TimeParser = parse_iso) -> Any:
    """Return a parsed JSON value as a value of the type; BadValue when it does not fit."""
    if value is None:
        return None
    name = field_type.name
    if name == "STRING":
        return check_text(value if isinstance(value, str) else write_json(value))
    if name == "VARIANT":
        return check_text(write_json(value))
    if name == "BOOLEAN":
        if isinstance(value, bool):
            return value
    elif name in INTEGER_BITS:
        if isinstance(value, int) and not isinstance(value, bool):
            return check_integer(value, field_type)
    elif name in ("FLOAT", "DOUBLE"):
        if isinstance(value, int | Decimal) and not isinstance(value, bool):
            return _float(value)
        if value in ("NaN", "Infinity", "-Infinity"):  # as Spark writes them
            return float(value)
    elif name == "DECIMAL":
        if isinstance(value, int | Decimal) and not isinstance(value, bool):
            return check_decimal(Decimal(value), field_type)
        # Digits in quotes are exact. CSV trims its fields, and JSON does not: a blank is no digit.
        if isinstance(value, str) and value == value.strip():
            return from_text(value, field_type)
    elif name == "DATE" and isinstance(value, str):
        return parse_date(value)
    elif name in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        return parse_time(value, name == "TIMESTAMP")
    elif name == "BINARY" and isinstance(value, str):
        return parse_base64(value)
    elif field_type.nested:
        return _from_json_nested(value, field_type, parse_time)
    raise BadValue(f"{_describe(value)} is no {field_type}")


def _from_json_nested(value: Any, field_type: FieldType, parse_time: TimeParser) -> Any:
    if field_type.name == "ARRAY" and isinstance(value, list):
        return [from_json(item, field_type.parts[0], parse_time) for item in value]
    if field_type.name == "MAP" and isinstance(value, dict):
        key_type, item_type = field_type.parts
        return [(from_text(key, key_type), from_json(item, item_type, parse_time)) for key, item in value.items()]
    if field_type.name == "STRUCT" and isinstance(value, dict):
        fields = list(zip(field_type.names, field_type.parts, strict=True))
        return dict(zip(field_type.names, read_fields(value, fields, parse_time), strict=True))
    raise BadValue(f"{_describe(value)} is no {field_type}")


def write_json(value: Any) -> str:
    """Return a parsed JSON value as text; numbers keep their digits."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_write_text(key)}:{write_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(write_json, value)) + "]"
    return _write_text(value)


def _write_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _float(value: int | Decimal) -> float:
    try:
        return float(value)
    except OverflowError:
        raise BadValue(f"{_describe(value)} is out of range of DOUBLE") from None


def _describe(value: Any) -> str:
    text = write_json(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _refuse_constant(word: str) -> NoReturn:
    # Python reads NaN and Infinity, which JSON does not have.
    raise ValueError(f"{word} is no JSON")
