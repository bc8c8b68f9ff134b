"""Time and size as people write them: `7d`, `1.5GiB`, `2h ago`; and the way back. Pure."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

_DURATIONS: Final = {
    "ms": 1,
    "s": 1000,
    "sec": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
    "y": 365 * 86_400_000,
}
_SIZES: Final = {
    "": 1,
    "b": 1,
    # k, m, g alone are binary, as in dd and the JVM; kb and mb are decimal (SI), kib and mib binary (IEC).
    **{f"{letter}{rest}": 1024**power for power, letter in enumerate("kmgtp", 1) for rest in ("", "ib")},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", 1)},
}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
FOREVER: Final = ("forever", "unlimited", "-1")
_TIME_MS_MAX: Final = 2**63 - 1
"""An int64 on the wire."""


def parse_duration_ms(text: str) -> int:
    """`90s`, `2h`, `1d12h`, `500ms`; a bare number is milliseconds. ValueError shows how to write one."""
    words = text.strip().lower()
    if words in FOREVER:
        return -1
    if words.isdecimal():
        return int(words)
    total, position = 0.0, 0
    for match in _AMOUNT.finditer(words):
        unit = _DURATIONS.get(match[2])
        # Amounts must follow each other without gaps: 1d12h, not 1d and 12h.
        if match.start() != position or unit is None:
            break
        total += float(match[1]) * unit
        position = match.end()
    if not words or position != len(words):
        raise ValueError(f"{text!r} is no duration; write one such as 90s, 2h, 7d or 1d12h")
    return round(total)


def parse_size_bytes(text: str) -> int:
    """`10MiB`, `1.2 GiB`, `64k`, `5MB` (decimal); a bare number is bytes. ValueError shows how to write one."""
    words = text.strip().lower()
    if words in FOREVER:
        return -1
    match = _AMOUNT.fullmatch(words)
    unit = None if match is None else _SIZES.get(match[2])
    if match is None or unit is None:
        raise ValueError(f"{text!r} is no size; write one such as 512KiB, 10MiB or 1.2GiB")
    size: int = round(float(match[1]) * unit)
    return size


def parse_time_ms(text: str, now_ms: int) -> int:
    """A moment: `2h` or `2h ago` before now, `now`, an ISO time, milliseconds or seconds since 1970.

    Earlier times are 1970: no record is older, and negative numbers mean the ends of a log in Kafka's ListOffsets.
    """
    words = text.strip()
    if words == "now":
        return now_ms
    if words.isdecimal():
        number = int(words)
        if number > _TIME_MS_MAX:
            raise ValueError(f"{text!r} is no time: milliseconds since 1970 have at most 19 digits")
        # 10^11 ms is 1973 and 10^11 s is the year 5138, so no plausible time is ambiguous.
        return number if number >= 10**11 else number * 1000
    try:
        return parse_iso_ms(words)
    except ValueError:
        try:
            # `2h`, `-2h` and `2h ago` mean the same: times before now.
            return max(now_ms - parse_duration_ms(words.removesuffix("ago").rstrip(" -").lstrip("-")), 0)
        except ValueError:
            raise ValueError(
                f"{text!r} is no time; write 2h (before now), 2026-05-01T12:00:00Z or milliseconds since 1970"
            ) from None


def parse_iso_ms(text: str) -> int:
    """A moment in ISO's form, in local time where it names no zone, 1970 for earlier ones; ValueError otherwise."""
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        # Python takes a time without a zone as local time here.
        moment = moment.astimezone()
    return max(int(moment.timestamp() * 1000), 0)


def format_duration(ms: float) -> str:
    """`7d`, `2h30m`, `1.5s`, `12ms`; -1 and Kafka's largest numbers are `forever`."""
    # Kafka has -1 or Long.MAX_VALUE for no limit.
    if ms < 0 or ms >= 2**62:
        return "forever"
    if ms < 1000:
        return f"{ms:.3g}ms"
    if ms < 60_000:
        return f"{ms / 1000:.3g}s"
    parts = []
    rest = int(ms)
    for name in ("d", "h", "m", "s"):
        count, rest = divmod(rest, _DURATIONS[name])
        if count:
            parts.append(f"{count}{name}")
    # Two units are precise enough for people; the exact number is in the other output formats.
    return "".join(parts[:2])


def format_size(size_bytes: float) -> str:
    """`512 B`, `1.2 GiB`; -1 and Kafka's largest numbers are `unlimited`."""
    # Kafka has -1 or Long.MAX_VALUE for no limit.
    if size_bytes < 0 or size_bytes >= 2**62:
        return "unlimited"
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    text = f"{amount:.0f}" if unit == "B" or amount >= 100 else f"{amount:.1f}".removesuffix(".0")
    return f"{text} {unit}"


def pluralize(number: int, noun: str) -> str:
    """`1 topic`, `2 topics`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_time(ms: int) -> str:
    """A moment in local time with its zone; `-` for none."""
    if ms < 0:
        return "-"
    moment = dt.datetime.fromtimestamp(ms / 1000, dt.UTC).astimezone()
    return moment.isoformat(timespec="milliseconds")
