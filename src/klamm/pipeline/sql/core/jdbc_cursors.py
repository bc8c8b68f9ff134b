"""Ranges of a database table's cursor column: which one the next batch reads. Pure.

A position is an integer: the value of an integer column, or the microseconds of a timestamp. A range goes from its
start up to, not including, its end, and the next one begins where it ends: rows of equal values are in one range, and
no row is in two.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from klamm.model.errors import ConfigError

INTEGER: Final = "integer"
TIMESTAMP: Final = "timestamp"
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a database's timestamp has no zone, and so has this one
BEFORE_ALL: Final = -(2**63)
"""The position before every row: of `latest` in a table that was empty at the first start."""
_GUESSES_MAX: Final = 8
_GROWTH_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class CursorRange:
    """The range that one batch reads; `start` is None for the table's beginning. `rows` is the number counted."""

    kind: str
    start: int | None
    end: int
    rows: int = 0

    def encode(self) -> str:
        """Return the text of a checkpoint file."""
        return json.dumps({"version": 1, "kind": self.kind, "start": self.start, "end": self.end, "rows": self.rows})

    @classmethod
    def decode(cls, text: str, path: str) -> CursorRange:
        """Parse the text of a checkpoint file."""
        try:
            document = json.loads(text)
            if document["version"] != 1 or document["kind"] not in (INTEGER, TIMESTAMP):
                raise ValueError("of another version or kind")
            start = None if document["start"] is None else int(document["start"])
            return cls(document["kind"], start, int(document["end"]), int(document["rows"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path} is not a position of a JDBC source: {error!r}") from None

    def condition(self, column: str) -> str:
        """Return the SQL condition for the rows of this range."""
        until = f"{column} < {literal(self.kind, self.end)}"
        return until if self.start is None else f"{column} >= {literal(self.kind, self.start)} AND {until}"


def literal(kind: str, position: int) -> str:
    """Return a position in SQL: a number, or a timestamp in JDBC's escape syntax, which every driver reads."""
    if kind == INTEGER:
        return str(position)
    # JDBC's {ts '...'} is read without a time zone, as the column is.
    moment = _EPOCH + dt.timedelta(microseconds=position)
    return f"{{ts '{moment:%Y-%m-%d %H:%M:%S.%f}'}}"


def choose_width(low: int, high: int, max_rows: int, guess: int, count: Callable[[int], int]) -> tuple[int, int]:
    """Return how many positions from `low` on the next batch takes, and how many rows these have: at most `max_rows`.

    `high` is the last position. `count(width)` counts the rows of the first `width` positions. Rows of one position are
    not split, so a single position is taken even if it has more rows. `guess` is the width to start with.
    """
    span = high - low + 1
    fitting, fitting_rows, too_wide = 0, 0, span + 1
    width = min(max(guess, 1), span)
    guesses = 0
    while True:
        rows_in_width = count(width)
        if rows_in_width <= max_rows or width == 1:
            fitting, fitting_rows = width, rows_in_width
            if width == span or rows_in_width > max_rows or 2 * rows_in_width >= max_rows:
                return fitting, fitting_rows
            # Growth is bounded: a few rows at the beginning are a poor estimate of the rest.
            estimate = min(width * max_rows // max(rows_in_width, 1), width * _GROWTH_MAX)
        else:
            too_wide = width
            estimate = width * max_rows // rows_in_width
        if too_wide - fitting <= 1:
            return fitting, fitting_rows
        guesses += 1
        # Rows may be so unevenly distributed that estimates do not converge; bisection does.
        width = (
            min(max(estimate, fitting + 1), too_wide - 1)
            if guesses < _GUESSES_MAX or too_wide > span
            else (fitting + too_wide) // 2
        )


class StablePositions:
    """The positions below which no more rows are expected: those first seen `delay_s` ago.

    A row gets its value when it is inserted, and is visible when its transaction commits, so a smaller value may appear
    after a larger one. The delay gives such transactions time to commit.
    """

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._seen: deque[tuple[float, int]] = deque()
        self._newest: int | None = None
        self._stable: int | None = None

    def observe(self, now_s: float, newest_position: int | None) -> int | None:
        """Record the newest position; return the newest stable one."""
        if newest_position is not None and (self._newest is None or newest_position > self._newest):
            self._newest = newest_position
            self._seen.append((now_s, newest_position))
        # Every position seen so long ago is stable; the last of them is the newest.
        while self._seen and now_s - self._seen[0][0] >= self._delay_s:
            self._stable = self._seen.popleft()[1]
        return self._stable

    def wait_s(self, now_s: float) -> float:
        """Return the time until another position is stable; 0 when none is pending."""
        return max(self._seen[0][0] + self._delay_s - now_s, 0.0) if self._seen else 0.0
