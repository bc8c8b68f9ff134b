"""What a SELECT reads and what it must remember, by a light scan of its words.

Spark parses SELECTs; this scan answers only what must be known without it: the names after FROM and JOIN (not those of
its own WITH, not table functions), whether there is state, and the plain names it groups by. It errs to the safe side:
a name it cannot place is reported, a query it takes for stateful is rebuilt rather than continued.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from klamm.pipeline.sql.core.statements import Select
from klamm.pipeline.sql.core.tokens import NAME, WORD, Token

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
"""Words that follow a table and are no alias of it."""
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
_OF_ALL_ROWS: Final = (
    *("LIMIT", "OFFSET", "ORDER", "SORT", "OVER", "QUALIFY", "PIVOT", "UNPIVOT"),
    *("UNION", "EXCEPT", "MINUS", "INTERSECT"),
)


@dataclass(frozen=True, slots=True)
class TableReference:
    """A name that is read, and where."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class SelectScan:
    """What the scan found."""

    reads: tuple[TableReference, ...]
    grouped: bool = False
    distinct: bool = False
    joined: bool = False
    session: bool = False
    limited: bool = False
    """Whether its rows depend on one another: LIMIT, ORDER BY, OVER, UNION and the like."""
    having: int | None = None
    group_names: tuple[str, ...] | None = ()
    """Names of a plain GROUP BY; None when it has expressions."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names once each, in the order they were written."""
        return tuple(dict.fromkeys(read.name for read in self.reads))


def scan_select(select: Select) -> SelectScan:
    """Read a SELECT's words."""
    tokens = select.tokens
    own = _own_names(tokens)
    reads: list[TableReference] = []
    grouped = distinct = joined = session = limited = False
    having: int | None = None
    group_names: tuple[str, ...] | None = ()
    depths = _depths(tokens)
    for place, token in enumerate(tokens):
        if token.says("FROM", "JOIN"):
            joined = joined or token.says("JOIN")
            if token.says("FROM") and _is_function_from(tokens, place, depths):
                continue
            reads.extend(each for each in _after(tokens, place + 1) if each.name.lower() not in own)
        elif token.says("GROUP") and _says(tokens, place + 1, "BY"):
            grouped = True
            group_names = _group_names(tokens, place + 2) if not depths[place] else group_names
        elif token.says("DISTINCT") and not _says(tokens, place - 1, "IS", "NOT", "("):
            distinct = True
        elif token.says("HAVING"):
            having = token.start
        elif token.says(*_OF_ALL_ROWS):
            limited = True
        elif token.kind == WORD and _says(tokens, place + 1, "("):
            word = token.text.upper()
            session = session or word == "SESSION_WINDOW"
            grouped = grouped or (word in _AGGREGATES and not _windowed(tokens, place + 1))
    return SelectScan(tuple(reads), grouped, distinct, joined, session, limited, having, group_names)


def normalize_select(select: Select) -> tuple[str, ...]:
    """The words of a SELECT without what does not matter: space, comments, the case of unquoted words."""
    return tuple(token.text.upper() if token.kind == WORD else token.text for token in select.tokens)


def _says(tokens: Sequence[Token], place: int, *words: str) -> bool:
    return 0 <= place < len(tokens) and tokens[place].says(*words)


def _depths(tokens: Sequence[Token]) -> list[int]:
    depth, found = 0, []
    for token in tokens:
        if token.says(")"):
            depth -= 1
        found.append(depth)
        if token.says("("):
            depth += 1
    return found


def _own_names(tokens: Sequence[Token]) -> set[str]:
    """Names that WITH gives to queries inside this one: `name AS (` or `name (columns) AS (`."""
    found: set[str] = set()
    for place, token in enumerate(tokens):
        if token.kind not in (WORD, NAME) or not _says(tokens, place - 1, "WITH", "RECURSIVE", ","):
            continue
        after = place + 1
        if _says(tokens, after, "("):
            after = _closing(tokens, after) + 1
        if _says(tokens, after, "AS") and _says(tokens, after + 1, "("):
            found.add(token.value.lower())
    return found


def _closing(tokens: Sequence[Token], place: int) -> int:
    depth = 0
    for each in range(place, len(tokens)):
        if tokens[each].says("("):
            depth += 1
        elif tokens[each].says(")"):
            depth -= 1
            if not depth:
                return each
    return len(tokens) - 1


def _is_function_from(tokens: Sequence[Token], place: int, depths: Sequence[int]) -> bool:
    """FROM inside extract(year FROM x), trim(both FROM x), overlay, position; or in IS DISTINCT FROM."""
    if _says(tokens, place - 1, "DISTINCT") and _says(tokens, place - 2, "IS", "NOT"):
        return True
    depth = depths[place]
    if not depth:
        return False
    for each in range(place - 1, -1, -1):
        if depths[each] < depth:
            inside = tokens[each + 1] if tokens[each].says("(") else tokens[each]
            return _says(tokens, each - 1, "EXTRACT", "TRIM", "OVERLAY", "SUBSTRING", "SUBSTR") and not inside.says(
                "SELECT"
            )
    return False


def _after(tokens: Sequence[Token], place: int) -> list[TableReference]:
    """The names of `a [AS] x, b y, LATERAL ..., STREAM(c)`: those separated by commas at the depth they began with."""
    found: list[TableReference] = []
    while place < len(tokens):
        if _says(tokens, place, "LATERAL", "STREAM") and place + 1 < len(tokens):
            if tokens[place].says("LATERAL"):
                return found
            place += 1
        if _says(tokens, place, "("):
            # A query in parentheses is met by its own FROM; names in parentheses (a JOIN b) are read here.
            if not _says(tokens, place + 1, "SELECT", "WITH", "VALUES", "FROM", "(", "TABLE"):
                found.extend(_after(tokens, place + 1))
            place = _closing(tokens, place) + 1
        elif place < len(tokens) and tokens[place].kind in (WORD, NAME) and not tokens[place].says("VALUES"):
            name, offset = tokens[place].value, tokens[place].start
            place += 1
            while _says(tokens, place, ".") and place + 1 < len(tokens):
                name = f"{name}.{tokens[place + 1].value}"
                place += 2
            if _says(tokens, place, "("):
                place = _closing(tokens, place) + 1
            else:
                found.append(TableReference(name, offset))
        place = _behind_alias(tokens, place)
        if not _says(tokens, place, ","):
            return found
        place += 1
    return found


def _behind_alias(tokens: Sequence[Token], place: int) -> int:
    """Skip `AS x (a, b)`, `WATERMARK ...` and the like, up to a comma, a clause or the end of the parentheses."""
    while place < len(tokens):
        token = tokens[place]
        if token.says(",", ")", "|") or (token.kind == WORD and token.text.upper() in CLAUSES):
            return place
        place = _closing(tokens, place) + 1 if token.says("(") else place + 1
    return place


def _group_names(tokens: Sequence[Token], place: int) -> tuple[str, ...] | None:
    names: list[str] = []
    while (
        place < len(tokens) and tokens[place].kind in (WORD, NAME) and not tokens[place].says("ALL", "ROLLUP", "CUBE")
    ):
        name = tokens[place].value
        place += 1
        while _says(tokens, place, ".") and place + 1 < len(tokens):
            name = tokens[place + 1].value
            place += 2
        names.append(name)
        if not _says(tokens, place, ","):
            if place < len(tokens) and not tokens[place].says("HAVING", "ORDER", "LIMIT", ")", "UNION", "WINDOW"):
                return None
            return tuple(names)
        place += 1
    return None


def _windowed(tokens: Sequence[Token], place: int) -> bool:
    """Whether a call is followed by OVER: a window function needs no group."""
    return _says(tokens, _closing(tokens, place) + 1, "OVER")
