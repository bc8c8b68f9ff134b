"""Maps values of PostgreSQL, which logical decoding and snapshots give as text, to the JSON of change records.

Numbers and booleans become those of JSON, times ISO 8601 in UTC (Debezium's `time.precision.mode=isostring`), NUMERIC
text with all digits (`decimal.handling.mode=string`), BYTEA base64, arrays JSON arrays. All other types stay text:
json, uuid, enums, ranges, intervals. The text is that of a session with `SESSION_SETTINGS`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.model.errors import ErrorCode, KlammError

SESSION_SETTINGS: Final = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",
}
"""Settings on which the text of values depends."""
_BOOL, _BYTEA, _INT8, _INT2, _INT4, _OID = 16, 17, 20, 21, 23, 26
_FLOAT4, _FLOAT8 = 700, 701
_TIMESTAMP, _TIMESTAMPTZ = 1114, 1184
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?)(?:\+00)?")
_BOUNDS: Final = re.compile(r"(?:\[[+-]?\d+:[+-]?\d+\])+=")


class ColumnValueError(KlammError):
    """Raised for text that is no value of its type."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)


@dataclass(frozen=True, slots=True)
class TypeCatalog:
    """What is not fixed for all databases: which types are arrays, and which domains of another type."""

    elements: Mapping[int, int] = field(default_factory=dict)
    """The type of the elements of each array type."""
    domains: Mapping[int, int] = field(default_factory=dict)
    """The type that each domain restricts."""

    def base_of(self, oid: int) -> int:
        """Return a type without its domains."""
        # A domain of a domain ends; the bound is for a catalog that was read while types were changed.
        for _ in range(len(self.domains)):
            if oid not in self.domains:
                break
            oid = self.domains[oid]
        return oid


def _boolean(text: str) -> bool:
    if text not in ("t", "f"):
        raise ValueError(text)
    return text == "t"


def _double(text: str) -> float | str:
    # JSON has no such numbers; Spark reads these texts as DOUBLE.
    return text if text in ("NaN", "Infinity", "-Infinity") else float(text)


def _binary(text: str) -> str:
    if not text.startswith("\\x"):
        raise ValueError(text)
    return base64.b64encode(bytes.fromhex(text[2:])).decode()


def _instant(text: str) -> str:
    match = _TIME.fullmatch(text)
    # infinity, and years before 1 or after 9999, have no ISO form: they stay as they are.
    return text if match is None else f"{match[1]}T{match[2]}Z"


_CONVERSIONS: Final[Mapping[int, Callable[[str], Any]]] = {
    _BOOL: _boolean,
    _BYTEA: _binary,
    **dict.fromkeys((_INT2, _INT4, _INT8, _OID), int),
    **dict.fromkeys((_FLOAT4, _FLOAT8), _double),
    **dict.fromkeys((_TIMESTAMP, _TIMESTAMPTZ), _instant),
}


def json_value(text: str | None, oid: int, catalog: TypeCatalog) -> Any:
    """Return a value of a type as the JSON of records has it; ColumnValueError when the text is none of the type."""
    if text is None:
        return None
    oid = catalog.base_of(oid)
    element = catalog.elements.get(oid)
    try:
        if element is not None:
            return _parse_array(text, element, catalog)
        conversion = _CONVERSIONS.get(oid)
        return text if conversion is None else conversion(text)
    except ValueError:
        raise ColumnValueError(f"{text[:100]!r} is no value of PostgreSQL's type {oid}") from None


def text_value(value: Any, oid: int, catalog: TypeCatalog) -> str:
    """Return the text of a value that is not null, as `json_value` has made it of PostgreSQL's text."""
    oid = catalog.base_of(oid)
    if isinstance(value, list):
        element = catalog.elements.get(oid, oid)
        # Arrays in arrays have the type of the outer one.
        parts = (text_value(item, oid if isinstance(item, list) else element, catalog) for item in value)
        return "{" + ",".join(map(_array_text, value, parts)) + "}"
    if value is None:
        return "NULL"
    if oid == _BYTEA:
        return "\\x" + base64.b64decode(value).hex()
    return str(value)


def _array_text(value: Any, text: str) -> str:
    # Without quotes NULL is no text, and an inner array is no element.
    if value is None or isinstance(value, list):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _parse_array(text: str, element: int, catalog: TypeCatalog) -> list[Any]:
    """Parse `{1,2,NULL}`; arrays in arrays, quoted elements and lower bounds (`[0:1]={a,b}`) too."""
    parts = _array_parts(_BOUNDS.sub("", text, count=1))
    if next(parts, None) != "{":
        raise ValueError(text)
    elements = _array_elements(parts, element, catalog)
    if next(parts, None) is not None:
        raise ValueError(text)
    return elements


def _array_elements(parts: Iterator[str | _Element], element: int, catalog: TypeCatalog) -> list[Any]:
    elements: list[Any] = []
    for part in parts:
        if part == "}":
            return elements
        if part == "{":
            elements.append(_array_elements(parts, element, catalog))
        elif isinstance(part, _Element):
            elements.append(json_value(part.text, element, catalog))
        elif part != ",":
            raise ValueError(part)
    raise ValueError("an array has no end")


@dataclass(frozen=True, slots=True)
class _Element:
    text: str | None


def _array_parts(text: str) -> Iterator[str | _Element]:
    at = 0
    while at < len(text):
        if text[at] in "{},":
            yield text[at]
            at += 1
        elif text[at] == '"':
            quoted: list[str] = []
            at += 1
            while at < len(text) and text[at] != '"':
                # A backslash makes the next character, a quote or a backslash, a part of the value.
                at += text[at] == "\\"
                quoted.append(text[at : at + 1])
                at += 1
            if at >= len(text):
                raise ValueError(text)
            at += 1
            yield _Element("".join(quoted))
        else:
            end = next((index for index in range(at, len(text)) if text[index] in "{},"), len(text))
            # Only without quotes: "NULL" is a text.
            yield _Element(None if text[at:end] == "NULL" else text[at:end])
            at = end
