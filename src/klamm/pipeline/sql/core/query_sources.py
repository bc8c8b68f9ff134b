"""Scans a SELECT for the tables it reads and the state it needs, without Spark.

Spark parses SELECTs; this scan finds only what is needed before: the names after FROM and JOIN (not those of its
own WITH, not table functions), whether it has state, and the plain names of GROUP BY. It errs on the safe side: an
unknown name is reported, and a query that seems stateful is rebuilt rather than continued.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from klamm.pipeline.sql.core.statements import Select
from klamm.pipeline.sql.core.tokens import NAME, WORD, Token, closing_index, nesting_depths

CLAUSES: Final = frozenset(
    [
        "WHERE",
        "GROUP",
        "ORDER",
        "HAVING",
        "LIMIT",
        "JOIN",
        "INNER",
        "LEFT",
        "RIGHT",
        "FULL",
        "CROSS",
        "NATURAL",
        "ANTI",
        "SEMI",
        "ON",
        "USING",
        "UNION",
        "EXCEPT",
        "MINUS",
        "INTERSECT",
        "LATERAL",
        "WINDOW",
        "PIVOT",
        "UNPIVOT",
        "TABLESAMPLE",
        "SORT",
        "CLUSTER",
        "DISTRIBUTE",
        "OFFSET",
        "QUALIFY",
        "SET",
        "SELECT",
        "FROM",
    ]
)
"""Words that may follow a table and are not its alias."""
# Matters only without GROUP BY: then a query is stateful if it calls one of these.
_AGGREGATES: Final = frozenset(
    [
        "COUNT",
        "SUM",
        "AVG",
        "MEAN",
        "MIN",
        "MAX",
        "FIRST",
        "LAST",
        "ANY_VALUE",
        "COLLECT_LIST",
        "COLLECT_SET",
        "ARRAY_AGG",
        "COUNT_IF",
        "BOOL_AND",
        "BOOL_OR",
        "EVERY",
        "SOME",
        "STDDEV",
        "VARIANCE",
        "MAX_BY",
        "MIN_BY",
        "APPROX_COUNT_DISTINCT",
        "PERCENTILE",
        "MEDIAN",
        "MODE",
        "LISTAGG",
        "STRING_AGG",
    ]
)
_ACROSS_ROWS: Final = (
    *("LIMIT", "OFFSET", "ORDER", "SORT", "OVER", "QUALIFY", "PIVOT", "UNPIVOT"),
    *("UNION", "EXCEPT", "MINUS", "INTERSECT"),
)


@dataclass(frozen=True, slots=True)
class TableReference:
    """A name that a SELECT reads, and its offset."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class SelectScan:
    """The result of a scan."""

    reads: tuple[TableReference, ...]
    grouped: bool = False
    distinct: bool = False
    joined: bool = False
    session: bool = False
    limited: bool = False
    """Whether its rows depend on each other: LIMIT, ORDER BY, OVER, UNION and the like."""
    having: int | None = None
    group_names: tuple[str, ...] | None = ()
    """Names of a plain GROUP BY; None when it has expressions."""

    @property
    def names(self) -> tuple[str, ...]:
        """The distinct names, in the order of the text."""
        return tuple(dict.fromkeys(read.name for read in self.reads))


def scan_select(select: Select) -> SelectScan:
    """Scan a SELECT's tokens."""
    tokens = select.tokens
    cte_names = _cte_names(tokens)
    reads: list[TableReference] = []
    grouped = distinct = joined = session = limited = False
    having: int | None = None
    group_names: tuple[str, ...] | None = ()
    depths = nesting_depths(tokens)
    for index, token in enumerate(tokens):
        if token.matches("FROM", "JOIN"):
            joined = joined or token.matches("JOIN")
            if token.matches("FROM") and _is_function_from(tokens, index, depths):
                continue
            reads.extend(
                reference
                for reference in _table_references(tokens, index + 1)
                if reference.name.lower() not in cte_names
            )
        elif token.matches("GROUP") and _matches_at(tokens, index + 1, "BY"):
            grouped = True
            # Of the outermost SELECT only: its groups are the rows of the result.
            group_names = _group_names(tokens, index + 2) if not depths[index] else group_names
        # IS DISTINCT FROM compares, and count(DISTINCT x) is an aggregate anyway.
        elif token.matches("DISTINCT") and not _matches_at(tokens, index - 1, "IS", "NOT", "("):
            distinct = True
        elif token.matches("HAVING"):
            having = token.start
        elif token.matches(*_ACROSS_ROWS):
            limited = True
        elif token.kind == WORD and _matches_at(tokens, index + 1, "("):
            word = token.text.upper()
            session = session or word == "SESSION_WINDOW"
            grouped = grouped or (word in _AGGREGATES and not _has_over(tokens, index + 1))
    return SelectScan(tuple(reads), grouped, distinct, joined, session, limited, having, group_names)


def normalize_select(select: Select) -> tuple[str, ...]:
    """Return the tokens of a SELECT without differences in space, comments and the case of unquoted words."""
    return tuple(token.text.upper() if token.kind == WORD else token.text for token in select.tokens)


def _matches_at(tokens: Sequence[Token], index: int, *words: str) -> bool:
    return 0 <= index < len(tokens) and tokens[index].matches(*words)


def _cte_names(tokens: Sequence[Token]) -> set[str]:
    """Return the names of common table expressions: `name AS (` or `name (columns) AS (`."""
    names: set[str] = set()
    for index, token in enumerate(tokens):
        if token.kind not in (WORD, NAME) or not _matches_at(tokens, index - 1, "WITH", "RECURSIVE", ","):
            continue
        next_index = index + 1
        if _matches_at(tokens, next_index, "("):
            next_index = closing_index(tokens, next_index) + 1
        if _matches_at(tokens, next_index, "AS") and _matches_at(tokens, next_index + 1, "("):
            names.add(token.value.lower())
    return names


def _is_function_from(tokens: Sequence[Token], from_index: int, depths: Sequence[int]) -> bool:
    """Whether a FROM belongs to extract(year FROM x), trim(both FROM x) and the like, or to IS DISTINCT FROM."""
    if _matches_at(tokens, from_index - 1, "DISTINCT") and _matches_at(tokens, from_index - 2, "IS", "NOT"):
        return True
    depth = depths[from_index]
    if not depth:
        return False
    for index in range(from_index - 1, -1, -1):
        if depths[index] < depth:
            inside = tokens[index + 1] if tokens[index].matches("(") else tokens[index]
            return _matches_at(
                tokens, index - 1, "EXTRACT", "TRIM", "OVERLAY", "SUBSTRING", "SUBSTR"
            ) and not inside.matches("SELECT")
    return False


def _table_references(tokens: Sequence[Token], index: int) -> list[TableReference]:
    """Return the names of `a [AS] x, b y, LATERAL ..., STREAM(c)`, separated by commas at the depth of the first."""
    references: list[TableReference] = []
    while index < len(tokens):
        if _matches_at(tokens, index, "LATERAL", "STREAM") and index + 1 < len(tokens):
            # LATERAL VIEW has no table, and a lateral subquery has a FROM of its own.
            if tokens[index].matches("LATERAL"):
                return references
            index += 1
        if _matches_at(tokens, index, "("):
            # A subquery is found by its own FROM; names in parentheses (a JOIN b) are read here.
            if not _matches_at(tokens, index + 1, "SELECT", "WITH", "VALUES", "FROM", "(", "TABLE"):
                references.extend(_table_references(tokens, index + 1))
            index = closing_index(tokens, index) + 1
        elif index < len(tokens) and tokens[index].kind in (WORD, NAME) and not tokens[index].matches("VALUES"):
            name, offset = tokens[index].value, tokens[index].start
            index += 1
            while _matches_at(tokens, index, ".") and index + 1 < len(tokens):
                name = f"{name}.{tokens[index + 1].value}"
                index += 2
            if _matches_at(tokens, index, "("):
                index = closing_index(tokens, index) + 1
            else:
                # Not a table function, which has parentheses after its name.
                references.append(TableReference(name, offset))
        index = _skip_alias(tokens, index)
        if not _matches_at(tokens, index, ","):
            return references
        index += 1
    return references


def _skip_alias(tokens: Sequence[Token], index: int) -> int:
    """Skip `AS x (a, b)`, `WATERMARK ...` and the like, up to a comma, a clause or the end of the parentheses."""
    while index < len(tokens):
        token = tokens[index]
        if token.matches(",", ")", "|") or (token.kind == WORD and token.text.upper() in CLAUSES):
            return index
        index = closing_index(tokens, index) + 1 if token.matches("(") else index + 1
    return index


def _group_names(tokens: Sequence[Token], index: int) -> tuple[str, ...] | None:
    names: list[str] = []
    while (
        index < len(tokens)
        and tokens[index].kind in (WORD, NAME)
        and not tokens[index].matches("ALL", "ROLLUP", "CUBE")
    ):
        name = tokens[index].value
        index += 1
        while _matches_at(tokens, index, ".") and index + 1 < len(tokens):
            name = tokens[index + 1].value
            index += 2
        # Of a.b only the last part: it is the name of the result's column.
        names.append(name)
        if not _matches_at(tokens, index, ","):
            if index < len(tokens) and not tokens[index].matches("HAVING", "ORDER", "LIMIT", ")", "UNION", "WINDOW"):
                return None
            return tuple(names)
        index += 1
    return None


def _has_over(tokens: Sequence[Token], index: int) -> bool:
    """Whether a call is followed by OVER: a window function needs no group."""
    return _matches_at(tokens, closing_index(tokens, index) + 1, "OVER")
