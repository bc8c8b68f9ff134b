"""Finds the rows that a query has left out because they were late; pure text and numbers.

Spark reports only how many it dropped, after it has grouped a part of them. A batch can be read again: its offsets and
the watermark are in the checkpoint. A row was late when the end of its window was not after the watermark of the batch
before; where there is no window its own time counts. A SELECT of another shape is not guessed at: its late rows are not
counted, rather than wrongly.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.statements import Select
from klamm.pipeline.sql.core.tokens import Token, closing_index, nesting_depths

END: Final = "_late_end"
"""The column with the end of a row's window."""
ROW: Final = "_late_row"
"""The column that names the record a row was read from."""
SAMPLES_MAX: Final = 5


def dropped_rows(progress: Mapping[str, Any]) -> int:
    """Return how many rows (or groups of rows) a batch has dropped for being late, as Spark reports it."""
    return sum(int(operator.get("numRowsDroppedByWatermark") or 0) for operator in progress.get("stateOperators") or ())


def late_selects(
    select: Select | None, inner: Sequence[Select], timed: Sequence[tuple[str, str]], deduplicated: Container[str] = ()
) -> list[str] | None:
    """Return the SELECTs of all rows that a query reads, with the time by which each is late; None if not known.

    `inner` are the SELECTs of the views it reads, `timed` its streams with their time columns, and `deduplicated` those
    whose duplicates are removed before anything else.
    """
    windowed = [part for part in (select, *inner) if part is not None and _has_window(part.tokens)]
    # A stream without duplicates drops late rows by their own time, whatever follows.
    if not windowed or (len(timed) == 1 and timed[0][0] in deduplicated):
        return [own_time_select(stream, time) for stream, time in timed]
    # Of a join's rows the other side may have come with another batch.
    if windowed != [select] or len(timed) != 1 or select is None:
        return None
    rows = rows_select(select)
    return None if rows is None else [rows]


def rows_select(select: Select) -> str | None:
    """Return the SELECT of all rows that a grouped SELECT reads, with the end of their window; None for another shape.

    What stands between FROM and GROUP BY is taken as it is written, so rows that WHERE leaves out are not late.
    """
    tokens = select.tokens
    depths = nesting_depths(tokens)
    outer = [index for index, token in enumerate(tokens) if not depths[index]]
    sources = [index for index in outer if tokens[index].matches("FROM")]
    groups = [index for index in outer if tokens[index].matches("GROUP")]
    if not tokens or not tokens[0].matches("SELECT") or len(sources) != 1 or len(groups) != 1 or sources[0] > groups[0]:
        return None
    end = _window_end(select, tokens)
    # The window of a subquery is of rows that the outer FROM does not have.
    if end is None or _has_window(tokens[sources[0] : groups[0]]):
        return None
    body = _text(select, tokens[sources[0]], tokens[groups[0] - 1])
    return f"SELECT *, {end} AS {END} {body}"


def own_time_select(stream: str, time: str) -> str:
    """Return the SELECT of all rows of a stream with their own time as the end."""
    return f"SELECT *, {quote_name(time)} AS {END} FROM {quote_name(stream)}"  # noqa: S608 - names are quoted


def _has_window(tokens: Sequence[Token]) -> bool:
    return any(
        token.matches("WINDOW", "SESSION_WINDOW", "WINDOW_TIME") and following.matches("(")
        for token, following in pairwise(tokens)
    )


def _window_end(select: Select, tokens: Sequence[Token]) -> str | None:
    for index, token in enumerate(tokens[:-1]):
        if not token.matches("WINDOW", "SESSION_WINDOW") or not tokens[index + 1].matches("("):
            continue
        close = closing_index(tokens, index + 1)
        if token.matches("WINDOW"):
            return f"{_text(select, token, tokens[close])}.end"
        # A session may not be used outside of a GROUP BY; without other rows it ends a gap after the row.
        inside = tokens[index + 2 : close]
        commas = [position for position, part in enumerate(inside) if part.matches(",")]
        if len(commas) != 1 or not inside[-1].text.startswith("'"):
            return None
        time = _text(select, inside[0], inside[commas[0] - 1])
        return f"({time} + cast({inside[-1].text} AS INTERVAL))"
    return None


def _text(select: Select, first: Token, last: Token) -> str:
    # Offsets of tokens are those of the file.
    return select.text[first.start - select.offset : last.start - select.offset + len(last.text)]
