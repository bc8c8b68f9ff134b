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
    match = _FORM.fullmatch(text)
    if match is None or match[3] == "T" or not any(match.group(2, 4, 5, 6)):
        raise ValueError(f"{text} is no duration")
    days, hours, minutes, seconds = (int(number or 0) for number in match.group(2, 4, 5, 6))
    fraction = int((match[7] or "").ljust(9, "0"))
    # -1.5S is -1 second and -0.5: the sign belongs to the fraction too, and "-0.5" has no sign left in int("-0").
    if (match[6] or "").startswith("-"):
        fraction = -fraction
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if abs(whole) > _SECONDS_MAX:
        raise ValueError(f"{text} is longer than a duration can be")
    total = whole * 1_000_000_000 + fraction
    return -total if match[1] == "-" else total
