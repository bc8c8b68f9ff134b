"""Numbers as people read them: `12,345`, `1.2 k/s`, `3 min ago`."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIME_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))
UNKNOWN: Final = "\N{EN DASH}"


def format_count(value: float | None) -> str:
    """`12,345`; a dash for an unknown number."""
    return UNKNOWN if value is None else f"{round(value):,}"


def format_short(value: float | None) -> str:
    """`950`, `12.3 k`, `4.5 M`: three digits at most."""
    if value is None:
        return UNKNOWN
    for limit, unit in _UNITS:
        if abs(value) >= limit * 0.9995:
            return f"{_three_digits(value / limit)} {unit}"
    return _three_digits(value)


def format_rate(value: float | None) -> str:
    """`0`, `0.4`, `12.3 k`, per second."""
    return UNKNOWN if value is None else f"{format_short(value)}/s"


def format_share(value: float | None) -> str:
    """`42 %`."""
    return UNKNOWN if value is None else f"{value * 100:.0f} %"


def format_age(ms: float | None) -> str:
    """`now`, `12 s`, `3 min`, `5 h`, `2 d`."""
    if ms is None:
        return UNKNOWN
    seconds = max(ms, 0) / 1000
    if seconds < 1:
        return "now"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} d"


def format_seconds(seconds: float) -> str:
    """`0 s`, `0.5 s`, `90 s`, `2.5 min`, `12 h`: for axes, whose numbers are round in one of these units."""
    for limit, unit in _TIME_UNITS:
        if seconds >= 2 * limit:
            return f"{_three_digits(seconds / limit)} {unit}"
    return f"{_three_digits(seconds)} s"


def _three_digits(value: float) -> str:
    if value == 0:
        return "0"
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 0.05 else 2
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
