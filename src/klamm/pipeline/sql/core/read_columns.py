"""Finds which declared columns of its inputs a query reads, without Spark.

Every name that occurs in the SELECT counts as a column of every input, which is too many and never too few. A star in a
select list passes on what the reader needs; where columns are addressed by position, or by a star inside of an
expression, all columns are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
from klamm.pipeline.sql.core.query_sources import CLAUSES, scan_select
from klamm.pipeline.sql.core.statement_options import name_list
from klamm.pipeline.sql.core.statements import VIEW, Select
from klamm.pipeline.sql.core.tokens import NAME, STRING, WORD, Token, closing_index, nesting_depths

ALL: Final = None
"""All columns, whatever their names."""
# Each of them relates columns by their position, or takes those that are not named.
_WHOLE_ROWS: Final = ("NATURAL", "PIVOT", "UNPIVOT", "TABLE", "IDENTIFIER")
_STARS_BY_POSITION: Final = ("UNION", "EXCEPT", "MINUS", "INTERSECT", "DISTINCT", "GROUP", "ORDER", "SORT")
_TYPES_WITH_LENGTH: Final = ("DECIMAL", "DEC", "NUMERIC", "CHAR", "VARCHAR", "CHARACTER")
_BETWEEN_PARENTHESES: Final = ("AND", "OR", "NOT", "IN", "OVER", "FILTER", "USING", "WITHIN", "EXISTS", "BETWEEN", "AS")
# Spark adds integers of every size up in 64 bits, and counts and averages in types of their own.
_SAME_STATE: Final = ("SUM", "COUNT", "AVG", "MEAN")
_INTEGERS: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_INTEGER_NAMES: Final = {"BYTE": "TINYINT", "SHORT": "SMALLINT", "INTEGER": "INT", "LONG": "BIGINT"}

Names = frozenset[str] | None
"""Names in lower case, or ALL."""


def read_columns(pipeline: Pipeline, node: GraphNode) -> dict[str, Names]:
    """Return the columns that a query reads of each of its streams and tables, through its views too."""
    needs: dict[str, Names] = {}
    pending: list[tuple[GraphNode, Names]] = [(node, ALL)]
    # The graph has no cycles, so this ends; a view that is reached twice is followed for each of its readers.
    while pending:
        reader, wanted = pending.pop()
        if reader.create.select is None:
            continue
        names = _select_names(reader.create.select, wanted)
        for name in reader.inputs:
            source = pipeline.node(name)
            if source.kind == VIEW:
                pending.append((source, names))
            else:
                needs[source.name] = _union(needs.get(source.name, frozenset()), _with_options(source, names))
    return needs


def called_functions(pipeline: Pipeline, node: GraphNode) -> dict[str, list[str]]:
    """Return type and target of each declared function that a query or one of its views may call."""
    names = {
        token.value.lower() for select in _selects(pipeline, node) for token in select.tokens if token.kind != STRING
    }
    return {
        function.name.lower(): [function.returns.upper(), function.target]
        for function in pipeline.functions
        if function.name.lower() in names
    }


def is_only_aggregated(pipeline: Pipeline, node: GraphNode, column: str) -> bool:
    """Whether a column's values are in no state, but only their sum, count or average.

    Joined streams keep rows, and deduplication keeps keys, with the types of their columns.
    """
    deduplicated = [pipeline.node(name).option("deduplicate") or "" for name in node.streams]
    if len(node.streams) != 1 or any(column.lower() in name.lower() for name in deduplicated):
        return False
    return all(_is_only_aggregated(select.tokens, column.lower()) for select in _selects(pipeline, node))


def is_wider_integer(before: str, after: str) -> bool:
    """Whether a type is an integer type with more bits than another."""
    sizes = [_INTEGER_NAMES.get(kind.upper(), kind.upper()) for kind in (before, after)]
    return all(size in _INTEGERS for size in sizes) and _INTEGERS.index(sizes[0]) < _INTEGERS.index(sizes[1])


def _selects(pipeline: Pipeline, node: GraphNode) -> Iterator[Select]:
    for part in (node, *pipeline.views_of(node)):
        if part.create.select is not None:
            yield part.create.select


def _union(left: Names, right: Names) -> Names:
    return ALL if left is ALL or right is ALL else left | right


def _with_options(source: GraphNode, names: Names) -> Names:
    """Add the columns that reading the input itself needs: its time, its key, and what it is deduplicated by."""
    options = [source.option(option) or "" for option in ("timestamp", "deduplicate")]
    own = {name.lower() for option in options for name in name_list(option)} | {name.lower() for name in source.key}
    return _union(names, frozenset(own))


def _select_names(select: Select, wanted: Names) -> Names:
    """Return the names that a SELECT may read of its inputs, when its reader needs `wanted` of its result."""
    tokens = select.tokens
    if _reads_whole_rows(select):
        return ALL
    # A string in double quotes is a name under one of Spark's settings.
    names = frozenset(
        token.value.lower()
        for token in tokens
        if token.kind in (WORD, NAME) or (token.kind == STRING and token.text.startswith('"'))
    )
    stars = [index for index in range(len(tokens)) if _is_star(tokens, index)]
    if not stars:
        return names
    by_position = any(token.matches(*_STARS_BY_POSITION) for token in _without_star_lists(tokens))
    if by_position or _has_column_alias_list(tokens) or not all(_is_in_select_list(tokens, index) for index in stars):
        return ALL
    return _union(names, wanted)


def _reads_whole_rows(select: Select) -> bool:
    tokens = select.tokens
    # `FROM t` alone is a query of Spark's own dialect, and `FROM t |> WHERE ...` another.
    if not tokens or not tokens[0].matches("SELECT", "WITH", "("):
        return True
    if any(token.matches("|") for token in tokens) or any(token.matches(*_WHOLE_ROWS) for token in tokens):
        return True
    starts = {token.start: index for index, token in enumerate(tokens)}
    return any(_is_renamed(tokens, starts[read.offset]) for read in scan_select(select).reads)


def _is_renamed(tokens: Sequence[Token], index: int) -> bool:
    """Whether a table has an alias with names for its columns, `payments AS p (a, b)`, which count by position."""
    index += 1
    while _matches(tokens, index, "."):
        index += 2
    if _matches(tokens, index, "AS"):
        index += 1
    return _is_alias(tokens, index) and _matches(tokens, index + 1, "(")


def _has_column_alias_list(tokens: Sequence[Token]) -> bool:
    """Whether a subquery or a WITH has names for its columns: `(SELECT ...) AS x (a, b)`, `WITH x (a) AS (...)`."""
    for index, token in enumerate(tokens):
        if token.matches(")") and _matches(tokens, index + 1, "AS") and _matches(tokens, index + 2, "("):
            return True
        start = index + 2 if _matches(tokens, index + 1, "AS") else index + 1
        if token.matches(")") and _is_alias(tokens, start) and _matches(tokens, start + 1, "("):
            return True
    return False


def _is_alias(tokens: Sequence[Token], index: int) -> bool:
    if index >= len(tokens) or tokens[index].kind not in (WORD, NAME):
        return False
    word = tokens[index].text.upper()
    return word not in CLAUSES and word not in _TYPES_WITH_LENGTH and word not in _BETWEEN_PARENTHESES


def _is_star(tokens: Sequence[Token], index: int) -> bool:
    """Whether a token is a star for columns, and neither a multiplication nor the one of count(*)."""
    if not tokens[index].matches("*"):
        return False
    if _matches(tokens, index - 1, "(") and _matches(tokens, index - 2, "COUNT") and _matches(tokens, index + 1, ")"):
        return False
    return index == 0 or tokens[index - 1].matches("SELECT", "ALL", "DISTINCT", ",", "(", ".")


def _is_in_select_list(tokens: Sequence[Token], star: int) -> bool:
    """Whether a star stands in the list of a SELECT whose rows are the result, a subquery of FROM, or a WITH."""
    depths = nesting_depths(tokens)
    if not depths[star]:
        return True
    opening = max(index for index in range(star) if depths[index] < depths[star] and tokens[index].matches("("))
    # The first token at a smaller depth going back is the parenthesis around the star.
    return _matches(tokens, opening + 1, "SELECT") and (
        opening == 0 or tokens[opening - 1].matches("FROM", "JOIN", "AS")
    )


def _without_star_lists(tokens: Sequence[Token]) -> Iterable[Token]:
    """Leave out the EXCEPT of `* EXCEPT (a, b)`, which is no set operation."""
    index = 0
    while index < len(tokens):
        if tokens[index].matches("EXCEPT") and _matches(tokens, index - 1, "*") and _matches(tokens, index + 1, "("):
            if _matches(tokens, index + 2, "SELECT", "("):
                yield tokens[index]
            index = closing_index(tokens, index + 1)
        else:
            yield tokens[index]
        index += 1


def _is_only_aggregated(tokens: Sequence[Token], column: str) -> bool:
    if any(_is_star(tokens, index) for index in range(len(tokens))):
        return False
    for index, token in enumerate(tokens):
        if token.kind not in (WORD, NAME) or token.value.lower() != column:
            continue
        start = index - 2 if _matches(tokens, index - 1, ".") else index
        if not (
            _matches(tokens, start - 1, "(")
            and _matches(tokens, start - 2, *_SAME_STATE)
            and _matches(tokens, index + 1, ")")
        ):
            return False
    return True


def _matches(tokens: Sequence[Token], index: int, *words: str) -> bool:
    return 0 <= index < len(tokens) and tokens[index].matches(*words)
