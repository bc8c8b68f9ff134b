"""Tables as they were: `JOIN customers FOR SYSTEM_TIME AS OF p.at AS c`, made into what Spark understands. Pure.

A table's topic holds versions of its rows. Each is valid from its own time until the next version of the key, or a
deletion, comes. A reference with a moment becomes a lateral subquery over these versions, which Spark turns into a join
with two more conditions:

    LATERAL (SELECT id, owner FROM `customers versions` WHERE _from <= p.at AND (_until IS NULL OR p.at < _until)) AS c
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.problems import ParseError
from klamm.pipeline.sql.core.query_sources import CLAUSES
from klamm.pipeline.sql.core.statements import Select
from klamm.pipeline.sql.core.tokens import NAME, WORD, Token

FROM: Final = "_from"
UNTIL: Final = "_until"


@dataclass(frozen=True, slots=True)
class TemporalJoin:
    """A table that is read as of a time; `start` and `end` are where in the SELECT's text that is said."""

    name: str
    time: str
    start: int
    end: int
    offset: int
    """Where in the file."""
    named: bool
    """Whether an alias follows."""


@dataclass(frozen=True, slots=True)
class RewrittenSelect:
    """A SELECT for Spark, and how places in it are found in the SELECT that was written."""

    text: str
    _edits: tuple[tuple[int, int, int], ...] = ()
    """Of each change: where it begins in the old text, the length of the old words and of the new ones."""

    def original(self, offset: int) -> int:
        """A place in this text as one in the old; inside of what was changed, where the change begins."""
        shift = 0
        for start, old, new in self._edits:
            begins = start + shift
            if offset < begins:
                break
            if offset < begins + new:
                return start
            shift += new - old
        return offset - shift


def versions_view(name: str) -> str:
    """What the relation of a table's versions is called."""
    return f"{name} versions"


def find_temporal_joins(select: Select) -> tuple[TemporalJoin, ...]:
    """The tables a SELECT reads as of a time; Refused where that cannot be read."""
    tokens = select.tokens
    found: list[TemporalJoin] = []
    for place, token in enumerate(tokens):
        if not (token.says("FOR") and _words(tokens, place, "FOR", "SYSTEM_TIME", "AS", "OF")):
            continue
        if not place or tokens[place - 1].kind not in (WORD, NAME):
            raise ParseError(token.start, "a table's name belongs before FOR SYSTEM_TIME AS OF")
        first, behind = place + 4, _behind(tokens, place + 4)
        if behind == first:
            raise ParseError(token.start, "FOR SYSTEM_TIME AS OF takes a column, or an expression in parentheses")
        begin, end = tokens[first].start - select.offset, tokens[behind - 1].end - select.offset
        table = tokens[place - 1]
        found.append(
            TemporalJoin(
                table.value,
                select.text[begin:end],
                table.start - select.offset,
                end,
                table.start,
                _alias(tokens, behind),
            )
        )
    return tuple(found)


def rewrite_select(select: Select, columns: Callable[[str], Sequence[str]]) -> RewrittenSelect:
    """A SELECT as Spark reads it; `columns` names those of a table."""
    parts: list[str] = []
    edits: list[tuple[int, int, int]] = []
    done = 0
    for moment in find_temporal_joins(select):
        names = ", ".join(map(quote_name, columns(moment.name)))
        valid = f"{FROM} <= {moment.time} AND ({UNTIL} IS NULL OR {moment.time} < {UNTIL})"
        new = f"LATERAL (SELECT {names} FROM {quote_name(versions_view(moment.name))} WHERE {valid})"  # noqa: S608 - as written
        new += "" if moment.named else f" AS {quote_name(moment.name)}"
        parts += [select.text[done : moment.start], new]
        edits.append((moment.start, moment.end - moment.start, len(new)))
        done = moment.end
    return RewrittenSelect("".join([*parts, select.text[done:]]), tuple(edits))


def _words(tokens: Sequence[Token], place: int, *words: str) -> bool:
    return len(tokens) > place + len(words) and all(tokens[place + at].says(each) for at, each in enumerate(words))


def _behind(tokens: Sequence[Token], place: int) -> int:
    """The place behind `a.b.c` or `( ... )`."""
    if tokens[place].says("("):
        depth = 0
        for each in range(place, len(tokens)):
            depth += tokens[each].says("(") - tokens[each].says(")")
            if not depth:
                return each + 1
        return place
    if tokens[place].kind not in (WORD, NAME):
        return place
    place += 1
    while place + 1 < len(tokens) and tokens[place].says(".") and tokens[place + 1].kind in (WORD, NAME):
        place += 2
    return place


def _alias(tokens: Sequence[Token], place: int) -> bool:
    if place >= len(tokens):
        return False
    token = tokens[place]
    return token.kind == NAME or (token.kind == WORD and token.text.upper() not in CLAUSES)
