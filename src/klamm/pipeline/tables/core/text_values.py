"""The rules by which text becomes a value of a declared type: keys, values of the format string, fields of CSV.

They are those of Spark's casts where a cast is exact. Text that would have to be rounded is no value: 1.239 is no
DECIMAL(12,2).
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import re
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from klamm.pipeline.tables.core.field_types import INTEGER_BITS, FieldType

_TRUE: Final = frozenset({"true", "t", "yes", "y", "1"})
_FALSE: Final = frozenset({"false", "f", "no", "n", "0"})
_SPECIAL_FLOATS: Final = {
    "nan": "nan",
    "infinity": "inf",
    "+infinity": "inf",
    "-infinity": "-inf",
    "inf": "inf",
    "+inf": "inf",
    "-inf": "-inf",
}
_WHOLE: Final = re.compile(r"[+-]?\d+")
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_DATE: Final = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})")
_TIME: Final = re.compile(
    r"(?P<date>\d{4}-\d{2}-\d{2})"
    r"(?:[T ](?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d{1,9}))?)?)?"
    r"\s*(?P<zone>Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?)?)?"
)
_EXPONENT_MAX: Final = 400
"""Larger exponents fit no type: computing with 1e999999999 would take all memory."""


class BadValue(ValueError):
    """Raised for a value that its column's type cannot hold."""


def from_text(text: str, field_type: FieldType) -> Any:
    """Return the value of a text; BadValue when it is none of the type."""
    name = field_type.name
    if name in ("STRING", "VARIANT"):
        return check_text(text)
    if name == "BINARY":
        return text.encode()
    words = text.strip()
    if name == "BOOLEAN":
        if words.lower() in _TRUE:
            return True
        if words.lower() in _FALSE:
            return False
    elif name in INTEGER_BITS:
        if _WHOLE.fullmatch(words):
            return check_integer(int(words) if len(words) < 40 else 1 << 200, field_type)
    elif name in ("FLOAT", "DOUBLE"):
        if _NUMBER.fullmatch(words):
            return float(words)
        if words.lower() in _SPECIAL_FLOATS:
            return float(_SPECIAL_FLOATS[words.lower()])
    elif name == "DECIMAL":
        if _NUMBER.fullmatch(words):
            return check_decimal(_decimal(words), field_type)
    elif name == "DATE":
        return parse_date(words)
    elif name in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        return parse_timestamp(words, zoned=name == "TIMESTAMP")
    raise BadValue(f"{_shorten(text)} is no {field_type}")


def check_text(text: str) -> str:
    """Return the text if it is one: JSON can escape half of a surrogate pair, which no encoding has."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadValue("the text has half of a surrogate pair") from None
    return text


def check_integer(number: int, field_type: FieldType) -> int:
    """Return the number if it is in the type's range."""
    half = 1 << (INTEGER_BITS[field_type.name] - 1)
    if -half <= number < half:
        return number
    raise BadValue(f"{_shorten(str(number))} is out of range of {field_type}")


def check_decimal(number: Decimal, field_type: FieldType) -> Decimal:
    """Return the number with the type's scale; one with more digits than the type has is bad."""
    precision, scale = field_type.size
    if not number.is_finite() or abs(number.adjusted()) > _EXPONENT_MAX:
        raise BadValue(f"{_shorten(str(number))} is no {field_type}")
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    value = int("".join(map(str, digits)))
    if exponent < -scale:
        value, rest = divmod(value, 10 ** (-scale - exponent))
        if rest:
            raise BadValue(f"{_shorten(str(number))} has more than {scale} decimal places of {field_type}")
        exponent = -scale
    unscaled = value * 10 ** (exponent + scale)
    if unscaled >= 10**precision:
        raise BadValue(f"{_shorten(str(number))} is out of range of {field_type}")
    return Decimal((sign, tuple(map(int, str(unscaled))), -scale))


def parse_date(words: str) -> dt.date:
    """Return the date of `2026-05-01`."""
    match = _DATE.fullmatch(words)
    try:
        if match is not None:
            return dt.date(int(match[1]), int(match[2]), int(match[3]))
    except ValueError:
        pass
    raise BadValue(f"{_shorten(words)} is no DATE")


def parse_timestamp(words: str, *, zoned: bool) -> dt.datetime:
    """Return the time of `2026-05-01T10:00:00.5Z`; times without a zone are UTC, of TIMESTAMP_NTZ they have none."""
    match = _TIME.fullmatch(words)
    try:
        if match is None:
            raise ValueError
        day = parse_date(match["date"])
        micros = int((match["fraction"] or "").ljust(6, "0")[:6])
        hour, minute, second = (int(match[part] or 0) for part in ("hour", "minute", "second"))
        moment = dt.datetime.combine(day, dt.time(hour, minute, second, micros))
        if not zoned:
            return moment
        return (moment - zone_offset(match["zone"])).replace(tzinfo=dt.UTC)
    except (ValueError, OverflowError):
        raise BadValue(f"{_shorten(words)} is no TIMESTAMP{'' if zoned else '_NTZ'}") from None


def zone_offset(zone: str | None) -> dt.timedelta:
    """Return how far a zone is ahead of UTC; ValueError for one that is too far."""
    if zone is None or zone in ("Z", "UTC", "GMT"):
        return dt.timedelta()
    hours, _, minutes = zone[1:].partition(":")
    if len(hours) > 2:
        hours, minutes = hours[:-2], hours[-2:]
    offset = dt.timedelta(hours=int(hours), minutes=int(minutes or 0))
    if offset > dt.timedelta(hours=18):
        raise ValueError
    return -offset if zone[0] == "-" else offset


def parse_base64(text: str) -> bytes:
    """Return the bytes that JSON holds as base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadValue(f"{_shorten(text)} is no base64 of BINARY") from None


def _decimal(words: str) -> Decimal:
    try:
        return Decimal(words)
    except InvalidOperation:
        raise BadValue(f"{_shorten(words)} is no number") from None


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
