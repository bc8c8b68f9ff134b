"""How a statement's `timestamp_format` spells times: ISO 8601, a number since 1970, or a pattern as Java has them."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.tables.core.text_values import BadValue, parse_timestamp, zone_offset

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_UNITS: Final = {"seconds": 1_000_000, "millis": 1000, "micros": 1}
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LETTERS: Final = {
    "y": r"(?P<year>\d{4})",
    "u": r"(?P<year>\d{4})",
    "M": r"(?P<month>\d{%d,2})",
    "L": r"(?P<month>\d{%d,2})",
    "d": r"(?P<day>\d{%d,2})",
    "H": r"(?P<hour>\d{%d,2})",
    "h": r"(?P<half_hour>\d{%d,2})",
    "m": r"(?P<minute>\d{%d,2})",
    "s": r"(?P<second>\d{%d,2})",
    "S": r"(?P<fraction>\d{%d})",
    "a": r"(?P<half>[aApP][mM])",
    "X": r"(?P<zone>Z|[+-]\d\d(?::?\d\d)?)",
    "x": r"(?P<zone>[+-]\d\d(?::?\d\d)?)",
    "Z": r"(?P<zone>[+-]\d\d:?\d\d)",
}
TimeParser = Callable[[Any, bool], dt.datetime]
"""Parses a value of JSON, with or without a zone; BadValue when it is no time."""


def make_time_parser(time_format: str | None) -> TimeParser:
    """Return the parser of a `timestamp_format`; ConfigError for a pattern with letters that are not known."""
    name = (time_format or "iso").lower()
    if name == "iso":
        return parse_iso
    if name in _UNITS:
        return _EpochParser(name)
    assert time_format is not None
    return _PatternParser(time_format)


def parse_iso(value: Any, zoned: bool) -> dt.datetime:
    """Parse `2026-05-01T10:00:00Z`, and nothing that is no text: a number does not tell its unit."""
    if isinstance(value, str):
        return parse_timestamp(value, zoned=zoned)
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        raise BadValue("a number is a time with timestamp_format = 'seconds', 'millis' or 'micros' alone")
    raise BadValue("it is no TIMESTAMP")


class _EpochParser:
    """Numbers of a unit since 1970."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, value: Any, zoned: bool) -> dt.datetime:
        number = value
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,20}(\.\d{1,6})?", value):
            number = Decimal(value)  # a field of CSV
        whole = isinstance(number, int) or (isinstance(number, Decimal) and number == number.to_integral_value())
        fits = isinstance(number, int | Decimal) and not isinstance(number, bool) and (whole or self._name == "seconds")
        try:
            if fits:
                moment = _EPOCH + dt.timedelta(microseconds=int(number * _UNITS[self._name]))
                return moment if zoned else moment.replace(tzinfo=None)
        except OverflowError:
            pass
        raise BadValue(f"it is no time in {self._name}")


class _PatternParser:
    """Text by a pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._expression = re.compile(_translate(pattern))

    def __call__(self, value: Any, zoned: bool) -> dt.datetime:
        match = self._expression.fullmatch(value) if isinstance(value, str) else None
        try:
            if match is not None:
                return self._moment({name: text for name, text in match.groupdict().items() if text}, zoned)
        except (ValueError, OverflowError):
            pass
        raise BadValue(f"it is no time in the format {self._pattern}")

    @staticmethod
    def _moment(parts: dict[str, str], zoned: bool) -> dt.datetime:
        month = parts["month"]
        hour = int(parts.get("hour", 0))
        if "half_hour" in parts:
            hour = int(parts["half_hour"]) % 12 + (12 if parts.get("half", "am").lower() == "pm" else 0)
        moment = dt.datetime(  # noqa: DTZ001 - the zone is applied below
            int(parts["year"]),
            int(month) if month.isdecimal() else _MONTHS.index(month.lower()) + 1,
            int(parts["day"]),
            hour,
            int(parts.get("minute", 0)),
            int(parts.get("second", 0)),
            int(parts.get("fraction", "0").ljust(6, "0")[:6]),
        )
        return (moment - zone_offset(parts.get("zone"))).replace(tzinfo=dt.UTC) if zoned else moment


def _translate(pattern: str) -> str:
    """Return a pattern of Java's DateTimeFormatter as a regular expression."""
    parts: list[str] = []
    for piece in re.finditer(r"'(?P<quoted>(?:[^']|'')*)'|(?P<letters>([A-Za-z])\3*)|(?P<other>.)", pattern, re.DOTALL):
        if piece["letters"] is None:
            text = piece["quoted"]
            parts.append(re.escape(piece["other"] if text is None else text.replace("''", "'") or "'"))
            continue
        letter, width = piece["letters"][0], len(piece["letters"])
        if letter in "ML" and width == 3:
            parts.append(f"(?P<month>(?i:{'|'.join(_MONTHS)}))")
            continue
        expression = _LETTERS.get(letter)
        if expression is None or width > (9 if letter == "S" else 5) or (letter in "yu" and width not in (1, 4)):
            raise ConfigError(f"timestamp_format '{pattern}': {piece['letters']} is not read here")
        parts.append(expression % min(width, 9 if letter == "S" else 2) if "%d" in expression else expression)
    try:
        re.compile("".join(parts))
    except re.error as error:
        raise ConfigError(f"timestamp_format '{pattern}' cannot be read: {error}") from None
    return "".join(parts)
