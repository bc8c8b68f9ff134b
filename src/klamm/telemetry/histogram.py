"""Distributions of times, cheap enough to record on the event loop.

A time is counted in the bucket of the bit length of its microseconds: one list item and one sum change, nothing is
looked up by a label and nothing is locked. Quantiles and sums over buckets are computed when they are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

SLOTS: Final = 64
"""Bit lengths of microseconds that have a count of their own; the last ones are centuries."""
FIRST_BOUND: Final = 5
"""The smallest bound that is shown: 2**5 microseconds."""
LAST_BOUND: Final = 25
"""The largest one: 2**25 microseconds, 33 seconds."""
BOUNDS: Final = tuple(2**power / 1e6 for power in range(FIRST_BOUND, LAST_BOUND + 1))
"""The upper bounds that are shown, in seconds."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """The counts of a histogram at one moment."""

    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many times were recorded."""
        return sum(self.counts)

    def scale(self, count: int) -> "Distribution":
        """Return a distribution of this shape with `count` times."""
        own = self.count
        if not own:
            # Without a sample of the shape nothing better is known than that they were short.
            return Distribution((count, *([0] * (SLOTS - 1))), 0.0)
        factor = count / own
        counts = [round(number * factor) for number in self.counts]
        counts[counts.index(max(counts))] += count - sum(counts)
        return Distribution(tuple(counts), self.sum * factor)

    def plus(self, other: "Distribution") -> "Distribution":
        """Return the sum of both."""
        return Distribution(
            tuple(left + right for left, right in zip(self.counts, other.counts, strict=True)), self.sum + other.sum
        )

    def minus(self, earlier: "Distribution") -> "Distribution":
        """Return what was recorded since an earlier moment."""
        return Distribution(
            tuple(left - right for left, right in zip(self.counts, earlier.counts, strict=True)),
            self.sum - earlier.sum,
        )

    def cumulative(self) -> list[int]:
        """Return how many times were at most each of `BOUNDS`."""
        return list(accumulate(self.counts))[FIRST_BOUND : LAST_BOUND + 1]


EMPTY: Final = Distribution((0,) * SLOTS, 0.0)


class Histogram:
    """The distribution of one kind of time; recorded and read on one thread."""

    __slots__ = ("_marked", "_marked_before", "counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * SLOTS
        self.sum = 0.0
        self._marked = self._marked_before = EMPTY

    def observe(self, seconds: float) -> None:
        """Count one time."""
        self.sum += seconds
        self.counts[int(seconds * 1e6).bit_length()] += 1

    def observe_many(self, seconds: float, count: int) -> None:
        """Count the same time for several requests."""
        self.sum += seconds * count
        self.counts[int(seconds * 1e6).bit_length()] += count

    def read(self) -> Distribution:
        """Return the counts since the start."""
        return Distribution(tuple(self.counts), self.sum)

    def mark(self) -> None:
        """Begin the next window of `recent`."""
        self._marked_before = self._marked
        self._marked = self.read()

    def recent(self) -> Distribution:
        """Return the counts since the mark before the last one: between one and two windows."""
        return self.read().minus(self._marked_before)


def quantile(counts: Sequence[int], share: float) -> float:
    """Return the seconds below which `share` of the times are, interpolated within the bucket; 0 without any."""
    total = sum(counts)
    if not total:
        return 0.0
    rank = share * total
    below = 0
    for power, number in enumerate(counts):
        if number and below + number >= rank:
            lower, upper = float(1 << power - 1 if power else 0), float(1 << power)
            return (lower + (upper - lower) * (rank - below) / number) / 1e6
        below += number
    return float(1 << len(counts) - 1) / 1e6
