"""Durations as Java's Duration reads them: PnDTnHnMn.nS, with days as the longest unit. Pure."""

from __future__ import annotations

import re
from typing import Final

_FORM: Final = re.compile(
    r"([-+]?)P(?:([-+]?[0-9]+)D)?"
    r"(T(?:([-+]?[0-9]+)H)?(?:([-+]?[0-9]+)M)?(?:([-+]?[0-9]+)(?:[.,]([0-9]{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
_SECONDS_MAX: Final = 2**63 - 1


def duration_ns(text: str) -> int:
    """Nanoseconds of a duration; ValueError when it is none. Years, months and weeks have no fixed length to Java."""
    found = _FORM.fullmatch(text)
    if found is None or found[3] == "T" or not any(found.group(2, 4, 5, 6)):
        raise ValueError(f"{text} is no duration")
    days, hours, minutes, seconds = (int(each or 0) for each in found.group(2, 4, 5, 6))
    fraction = int((found[7] or "").ljust(9, "0"))
    if (found[6] or "").startswith("-"):
        fraction = -fraction
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if abs(whole) > _SECONDS_MAX:
        raise ValueError(f"{text} is longer than a duration can be")
    total = whole * 1_000_000_000 + fraction
    return -total if found[1] == "-" else total
