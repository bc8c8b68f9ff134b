"""Positions in a table of a database: which range of its cursor column is read next. Pure.

A position is a whole number: the value of an integer column, or the microseconds of a timestamp. A range goes from its
start up to, not including, its end, so that the next one begins where it ended: rows whose values are equal are in one
range, and no row is in two.
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
_GUESSES: Final = 8
_GROWTH: Final = 16


@dataclass(frozen=True, slots=True)
class CursorRange:
    """What one batch reads; `start` is None where the table begins. `rows` is how many were counted."""

    kind: str
    start: int | None
    end: int
    rows: int = 0

    def encode(self) -> str:
        """As text for a file."""
        return json.dumps({"version": 1, "kind": self.kind, "start": self.start, "end": self.end, "rows": self.rows})

    @classmethod
    def decode(cls, text: str, where: str) -> CursorRange:
        """From a file's text."""
        try:
            found = json.loads(text)
            if found["version"] != 1 or found["kind"] not in (INTEGER, TIMESTAMP):
                raise ValueError("of another version or kind")
            start = None if found["start"] is None else int(found["start"])
            return cls(found["kind"], start, int(found["end"]), int(found["rows"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{where} is no position in a table: {error!r}") from None

    def condition(self, column: str) -> str:
        """The rows of this range, in the database's SQL."""
        until = f"{column} < {literal(self.kind, self.end)}"
        return until if self.start is None else f"{column} >= {literal(self.kind, self.start)} AND {until}"


def literal(kind: str, position: int) -> str:
    """A position in SQL: a number, or a timestamp in the form that every JDBC driver reads."""
    if kind == INTEGER:
        return str(position)
    moment = _EPOCH + dt.timedelta(microseconds=position)
    return f"{{ts '{moment:%Y-%m-%d %H:%M:%S.%f}'}}"


def choose_width(low: int, high: int, most: int, guess: int, count: Callable[[int], int]) -> tuple[int, int]:
    """How many positions from `low` on the next batch takes, and how many rows that is: at most `most`, if it can be.

    `high` is the last position there is. `count(width)` counts the rows of the first `width` positions. Rows of one
    position stay together, so a single position is taken whatever it holds. `guess` is the width to begin with.
    """
    span = high - low + 1
    fits, rows, over = 0, 0, span + 1
    width = min(max(guess, 1), span)
    turn = 0
    while True:
        found = count(width)
        if found <= most or width == 1:
            fits, rows = width, found
            if width == span or found > most or 2 * found >= most:
                return fits, rows
            wanted = min(width * most // max(found, 1), width * _GROWTH)
        else:
            over = width
            wanted = width * most // found
        if over - fits <= 1:
            return fits, rows
        turn += 1
        # Rows may lie so unevenly that guessing does not end; halving does.
        width = min(max(wanted, fits + 1), over - 1) if turn < _GUESSES or over > span else (fits + over) // 2


class StablePositions:
    """Which positions can be believed: those that were passed `delay_s` ago.

    A row gets its value when it is inserted and is seen when its transaction ends, so a smaller value may appear after
    a larger one. Waiting gives such transactions time to end.
    """

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._seen: deque[tuple[float, int]] = deque()
        self._noted: int | None = None
        self._settled: int | None = None

    def look(self, now_s: float, newest: int | None) -> int | None:
        """Note the newest position there is now; returns the newest that can be believed."""
        if newest is not None and (self._noted is None or newest > self._noted):
            self._noted = newest
            self._seen.append((now_s, newest))
        while self._seen and now_s - self._seen[0][0] >= self._delay_s:
            self._settled = self._seen.popleft()[1]
        return self._settled

    def wait_s(self, now_s: float) -> float:
        """How long until something more can be believed; 0 when nothing waits."""
        return max(self._seen[0][0] + self._delay_s - now_s, 0.0) if self._seen else 0.0
