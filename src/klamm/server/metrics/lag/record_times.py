"""When the records of a partition of another node were written, by a few lookups in its time index; pure.

A lookup asks for the first record of a time T or later. Its answer (an offset and the time of the record there) divides
the log: records before the offset are older than T, the others are not older than the record. Between two such cuts the
time of an offset is interpolated, so that a group that moves on has a lag before the next lookup; lookups narrow what
is between the cuts around the offsets of groups.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from math import sqrt
from typing import Final, NamedTuple

TOLERANCE_MS: Final = 1_000
TOLERANCE_SHARE: Final = 0.02
"""How far apart the bounds of a time may stay, the second as a share of the lag; the larger one counts."""
AGE_MS_MIN: Final = 500
"""The smallest age a lookup is made for."""
UNKNOWN: Final = -1
FIRST_RECORD: Final = 0
"""The time whose lookup finds the first record of a log."""


class Cut(NamedTuple):
    """What one lookup has shown."""

    offset: int
    before_ms: int
    """Records before the offset are older."""
    at_ms: int
    """The time of the record at the offset; UNKNOWN if there was none yet."""


class RecordTimes:
    """The end of one partition and the times of its records, as far as lookups have shown them."""

    __slots__ = ("_cuts", "end", "end_ms")

    def __init__(self) -> None:
        self.end = UNKNOWN
        """The high watermark."""
        self.end_ms = 0
        """When it was that."""
        self._cuts: list[Cut] = []

    def set_end(self, end: int, now_ms: int) -> None:
        """Note the high watermark; records that were truncated or are of an earlier topic of the name are forgotten."""
        if end < self.end:
            self._cuts.clear()
        self.end, self.end_ms = end, now_ms

    def add(self, target_ms: int, offset: int, at_ms: int) -> None:
        """Note the answer to a lookup; a negative offset if there is no record so late."""
        if offset < 0:
            offset, at_ms = self.end, UNKNOWN
        index = bisect_left(self._cuts, offset, key=_offset_of)
        if index < len(self._cuts) and self._cuts[index].offset == offset:
            known = self._cuts[index]
            self._cuts[index] = Cut(offset, min(known.before_ms, target_ms), max(known.at_ms, at_ms))
        else:
            self._cuts.insert(index, Cut(offset, target_ms, at_ms))

    def estimate(self, offset: int) -> int:
        """Return the time of the record at an offset, or of the first one there is; UNKNOWN before any lookup."""
        lower, upper = self._bounds(offset)
        if lower is None:
            return UNKNOWN
        if offset <= lower.offset:
            return lower.at_ms
        share = (offset - lower.offset) / max(upper.offset - lower.offset, 1)
        return lower.at_ms + int(max(upper.before_ms - lower.at_ms, 0) * min(share, 1.0))

    def next_lookup(self, offset: int, now_ms: int, step: int) -> int | None:
        """Return the time to look up for the record at an offset; None if its time is known well enough."""
        lower, upper = self._bounds(offset)
        if lower is None:
            return FIRST_RECORD
        spread = upper.before_ms - lower.at_ms
        age_max = now_ms - lower.at_ms
        if offset <= lower.offset or spread <= max(TOLERANCE_MS, TOLERANCE_SHARE * age_max):
            return None
        if step % 2 == 0:
            # Best where records come evenly; every second lookup halves the possible ages whatever their distribution.
            target_ms = self.estimate(offset)
        else:
            age_min = max(now_ms - upper.before_ms, AGE_MS_MIN)
            target_ms = now_ms - int(sqrt(age_min * max(age_max, age_min)))
        # A lookup at a bound or outside would show nothing new.
        margin = spread // 16
        return min(max(target_ms, lower.at_ms + 1 + margin), upper.before_ms - 1 - margin)

    def spread_ms(self, offset: int) -> int:
        """Return how far apart the bounds of a time are."""
        lower, upper = self._bounds(offset)
        return upper.before_ms - lower.at_ms if lower is not None else upper.before_ms

    def prune(self, offsets: Iterable[int]) -> None:
        """Keep the first cut and those around these offsets."""
        kept = {id(cut): cut for cut in self._cuts[:1]}
        for offset in offsets:
            for cut in self._bounds(offset):
                if cut is not None:
                    kept[id(cut)] = cut
        self._cuts = [cut for cut in self._cuts if id(cut) in kept]

    def _bounds(self, offset: int) -> tuple[Cut | None, Cut]:
        """Return the cuts around an offset: the first one if it is before all of them, the end if it is behind."""
        cuts = self._cuts
        index = bisect_right(cuts, offset, key=_offset_of)
        upper = cuts[index] if index < len(cuts) else Cut(self.end, self.end_ms, UNKNOWN)
        # Behind a cut without a record the times of the records that have come since are not known.
        while index and cuts[index - 1].at_ms < 0:
            index -= 1
        if index:
            return cuts[index - 1], upper
        return next((cut for cut in cuts if cut.at_ms >= 0), None), upper


def _offset_of(cut: Cut) -> int:
    return cut.offset
