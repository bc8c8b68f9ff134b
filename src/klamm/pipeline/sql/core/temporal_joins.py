"""Temporal joins: rewrites `JOIN customers FOR SYSTEM_TIME AS OF p.at AS c` to SQL that Spark understands. Pure.

A table's topic holds the versions of its rows. Each is valid from its own time until the next version of the key, or
its deletion. A reference with a time becomes a lateral subquery over these versions, which Spark turns into a join with
two more conditions:

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
    """A table that is read as of a time; `start` and `end` are its position in the SELECT's text."""

    name: str
    time: str
    start: int
    end: int
    offset: int
    """Its position in the file."""
    named: bool
    """Whether an alias follows."""


@dataclass(frozen=True, slots=True)
class RewrittenSelect:
    """A SELECT for Spark, which maps positions in it to the SELECT that was written."""

    text: str
    _edits: tuple[tuple[int, int, int], ...] = ()
    """Of each edit: its start in the old text, the length of the old text and of the new one."""

    def original(self, offset: int) -> int:
        """Return the position in the old text of a position in this one; inside of an edit, the edit's start."""
        shift = 0
        # Edits are in the order of the text, so the shift accumulates.
        for start, old, new in self._edits:
            begins = start + shift
            if offset < begins:
                break
            if offset < begins + new:
                return start
            shift += new - old
        return offset - shift


def versions_view(name: str) -> str:
    """Return the name of the view of a table's versions."""
    return f"{name} versions"


def find_temporal_joins(select: Select) -> tuple[TemporalJoin, ...]:
    """Return the tables that a SELECT reads as of a time; ParseError where the syntax is wrong."""
    tokens = select.tokens
    joins: list[TemporalJoin] = []
    for index, token in enumerate(tokens):
        # The syntax of SQL:2011 and Flink. Spark's own form takes no column, and works for tables of a catalog only.
        if not (token.matches("FOR") and _matches_words(tokens, index, "FOR", "SYSTEM_TIME", "AS", "OF")):
            continue
        if not index or tokens[index - 1].kind not in (WORD, NAME):
            raise ParseError(token.start, "expected a table's name before FOR SYSTEM_TIME AS OF")
        first, next_index = index + 4, _skip_time(tokens, index + 4)
        if next_index == first:
            raise ParseError(token.start, "FOR SYSTEM_TIME AS OF takes a column, or an expression in parentheses")
        # Tokens have positions in the file; edits are made in the SELECT's text.
        start, end = tokens[first].start - select.offset, tokens[next_index - 1].end - select.offset
        table = tokens[index - 1]
        joins.append(
            TemporalJoin(
                table.value,
                select.text[start:end],
                table.start - select.offset,
                end,
                table.start,
                _has_alias(tokens, next_index),
            )
        )
    return tuple(joins)


def rewrite_select(select: Select, columns: Callable[[str], Sequence[str]]) -> RewrittenSelect:
    """Return a SELECT in Spark's syntax; `columns` returns the column names of a table."""
    parts: list[str] = []
    edits: list[tuple[int, int, int]] = []
    copied = 0
    for join in find_temporal_joins(select):
        names = ", ".join(map(quote_name, columns(join.name)))
        valid = f"{FROM} <= {join.time} AND ({UNTIL} IS NULL OR {join.time} < {UNTIL})"
        replacement = f"LATERAL (SELECT {names} FROM {quote_name(versions_view(join.name))} WHERE {valid})"  # noqa: S608 - as written
        # Without an alias the table's own name has to stay valid in the SELECT.
        replacement += "" if join.named else f" AS {quote_name(join.name)}"
        parts += [select.text[copied : join.start], replacement]
        edits.append((join.start, join.end - join.start, len(replacement)))
        copied = join.end
    return RewrittenSelect("".join([*parts, select.text[copied:]]), tuple(edits))


def _matches_words(tokens: Sequence[Token], start: int, *words: str) -> bool:
    return len(tokens) > start + len(words) and all(
        tokens[start + index].matches(word) for index, word in enumerate(words)
    )


def _skip_time(tokens: Sequence[Token], start: int) -> int:
    """Return the index behind `a.b.c` or `( ... )`; `start` itself when neither is there."""
    if tokens[start].matches("("):
        depth = 0
        for index in range(start, len(tokens)):
            depth += tokens[index].matches("(") - tokens[index].matches(")")
            if not depth:
                return index + 1
        return start
    if tokens[start].kind not in (WORD, NAME):
        return start
    start += 1
    while start + 1 < len(tokens) and tokens[start].matches(".") and tokens[start + 1].kind in (WORD, NAME):
        start += 2
    return start


def _has_alias(tokens: Sequence[Token], index: int) -> bool:
    if index >= len(tokens):
        return False
    token = tokens[index]
    return token.kind == NAME or (token.kind == WORD and token.text.upper() not in CLAUSES)
