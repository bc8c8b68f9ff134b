"""Finds joins that need only some rows of their tables: those that equalities connect with the rows that are new. Pure.

`FROM orders o JOIN customers c ON o.customer = c.id AND c.since < o.at` needs of customers only the rows whose id is a
customer of a new order. One equality between the two is enough: rows that the rest of the condition drops may be
there. The plan has a root, which is the stream, or the table whose rows are the rows of the result, and for each other
table the equalities by which its rows are found from rows that are known.

Where a SELECT has another form, `WholeTables` has the reason, which `plan` and `show` print.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from klamm.pipeline.sql.core.change_formats import is_change_log
from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
from klamm.pipeline.sql.core.query_sources import CLAUSES, scan_select
from klamm.pipeline.sql.core.read_columns import called_functions
from klamm.pipeline.sql.core.statements import VIEW, Select
from klamm.pipeline.sql.core.tokens import NAME, STRING, WORD, Token, closing_index, nesting_depths

_EQUAL: Final = ("=", "==", "<=>")
_JOIN_WORDS: Final = ("JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "ANTI", "SEMI", "LATERAL")
# A conjunct with one of them is no plain equality; it stays in the SELECT and filters there.
_OTHER_CONDITIONS: Final = ("<", ">", "<=", ">=", "<>", "!=", "IS", "IN", "LIKE", "BETWEEN", "NOT", "RLIKE", "EXISTS")
_WORDS_IN_EXPRESSIONS: Final = (
    *("AS", "INT", "INTEGER", "BIGINT", "LONG", "SMALLINT", "SHORT", "TINYINT", "BYTE"),
    *("STRING", "DATE", "TIMESTAMP", "BINARY", "BOOLEAN", "DECIMAL"),
)
_CHANGING_FUNCTIONS: Final = (
    *("RAND", "RANDN", "RANDOM", "UUID", "SHUFFLE", "MONOTONICALLY_INCREASING_ID", "SPARK_PARTITION_ID"),
    *("NOW", "CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME", "CURDATE", "LOCALTIMESTAMP", "UNIX_TIMESTAMP"),
    "INPUT_FILE_NAME",
)
"""Functions whose result is another one at every call: a row that did not change would change."""


@dataclass(frozen=True, slots=True)
class JoinedRelation:
    """A stream or table in FROM, by the name that the SELECT gives it."""

    name: str
    alias: str


@dataclass(frozen=True, slots=True)
class JoinEdge:
    """Equalities between two relations; rows of `target` are found from rows of `source`."""

    source: int
    target: int
    pairs: tuple[tuple[str, str], ...]
    """Expressions of both sides, over the aliases."""


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """How rows are found, starting at the root; each edge comes after the one that reaches its source."""

    relations: tuple[JoinedRelation, ...]
    root: int
    edges: tuple[JoinEdge, ...]


@dataclass(frozen=True, slots=True)
class WholeTables:
    """Why a query reads its tables whole with every batch."""

    reason: str


class _UnsuitableError(Exception):
    """Raised where a SELECT has a form that needs whole tables."""


def plan_joins(pipeline: Pipeline, node: GraphNode) -> JoinPlan | WholeTables | None:
    """Return how a query finds the rows it needs of its tables; None for one that reads no tables in batches."""
    select, scan = node.create.select, node.scan
    if select is None or scan is None or not (pipeline.looks_up(node) or node.recomputed):
        return None
    try:
        _check_form(pipeline, node)
        relations, joins = _parse_from(select)
        return _connect(node, relations, joins)
    except _UnsuitableError as error:
        return WholeTables(str(error))


def _check_form(pipeline: Pipeline, node: GraphNode) -> None:
    select, scan = node.create.select, node.scan
    assert select is not None
    assert scan is not None
    if scan.grouped or scan.distinct:
        raise _UnsuitableError("it groups rows")
    if scan.limited:
        raise _UnsuitableError("its rows depend on each other")
    if node.temporal_joins:
        raise _UnsuitableError("FOR SYSTEM_TIME AS OF needs all versions")
    for name in node.inputs:
        source = pipeline.node(name)
        if source.kind == VIEW:
            raise _UnsuitableError(f"{name} is a view")
        if is_change_log(source) and source.name in node.tables:
            raise _UnsuitableError(f"{name} is a change log")
    if not select.tokens[0].matches("SELECT"):
        raise _UnsuitableError("it does not begin with SELECT")
    if node.recomputed:
        # A stream's row is written once. A table's row is computed again only when a row it is made of changes.
        words = {token.text.upper() for token in select.tokens if token.kind == WORD}
        changing = sorted(words.intersection(_CHANGING_FUNCTIONS))
        if changing:
            raise _UnsuitableError(f"{changing[0].lower()} has another result every time")
        functions = called_functions(pipeline, node)
        if functions:
            raise _UnsuitableError(f"the function {min(functions)} may have another result every time")


@dataclass(frozen=True, slots=True)
class _Join:
    kind: str
    condition: tuple[Token, ...]
    using: tuple[str, ...] = ()


def _parse_from(select: Select) -> tuple[list[JoinedRelation], list[_Join]]:
    """Parse `FROM a x JOIN b y ON ... JOIN c USING (...)`; the join at an index brings in the next relation."""
    tokens = select.tokens
    depths = nesting_depths(tokens)
    reads = scan_select(select).reads
    starts = {token.start: index for index, token in enumerate(tokens)}
    places = [starts[read.offset] for read in reads]
    for place in places:
        if depths[place] or not tokens[place - 1].matches("FROM", "JOIN"):
            raise _UnsuitableError("it has a subquery, or a list of tables with commas")
    relations: list[JoinedRelation] = []
    joins: list[_Join] = []
    for number, place in enumerate(places):
        alias, index = _parse_alias(tokens, place)
        relations.append(JoinedRelation(tokens[place].value, alias))
        last = number == len(places) - 1
        # The words of the next join's kind belong to it and not to this condition.
        end = _where(tokens, depths, index) if last else _kind_start(tokens, places[number + 1])
        if number:
            kind = _join_kind(tokens[_kind_start(tokens, place) : place - 1])
            joins.append(_parse_condition(kind, tokens[index:end]))
        elif index != end:
            raise _UnsuitableError(f"{tokens[index].text} follows the first table")
    return relations, joins


def _parse_alias(tokens: Sequence[Token], place: int) -> tuple[str, int]:
    """Return the alias of a table, which is its name when it has none, and the index behind."""
    index = place + 1
    if index < len(tokens) and tokens[index].matches("AS"):
        index += 1
    if index < len(tokens) and tokens[index].kind in (WORD, NAME):
        word = tokens[index]
        if word.kind == NAME or word.text.upper() not in CLAUSES:
            if index + 1 < len(tokens) and tokens[index + 1].matches("("):
                raise _UnsuitableError("a table's columns are renamed")
            return word.value, index + 1
    return tokens[place].value, index


def _kind_start(tokens: Sequence[Token], place: int) -> int:
    """Return the index at which the words before a joined table begin: `LEFT OUTER JOIN table`."""
    index = place - 1
    while index and tokens[index - 1].matches("INNER", "LEFT", "RIGHT", "FULL", "OUTER", "CROSS", "SEMI", "ANTI"):
        index -= 1
    if index and tokens[index - 1].matches("NATURAL"):
        raise _UnsuitableError("a NATURAL JOIN does not name its columns")
    return index


def _join_kind(words: Sequence[Token]) -> str:
    names = [word.text.upper() for word in words if not word.matches("OUTER", "INNER")]
    if names in ([], ["LEFT"], ["RIGHT"]):
        return names[0] if names else "INNER"
    if names and names[-1] in ("SEMI", "ANTI"):
        return "LEFT"
    raise _UnsuitableError(f"{' '.join(names)} JOIN keeps rows of both sides")


def _where(tokens: Sequence[Token], depths: Sequence[int], index: int) -> int:
    """Return the index of WHERE, or of the end."""
    while index < len(tokens):
        if not depths[index] and tokens[index].matches("WHERE"):
            return index
        index += 1
    return index


def _parse_condition(kind: str, tokens: Sequence[Token]) -> _Join:
    if tokens and tokens[0].matches("USING") and len(tokens) > 1 and closing_index(tokens, 1) == len(tokens) - 1:
        return _Join(kind, (), tuple(token.value for token in tokens[2:-1] if not token.matches(",")))
    if not tokens or not tokens[0].matches("ON"):
        raise _UnsuitableError("a join has no condition")
    for index, depth in enumerate(nesting_depths(tokens)):
        # left(x, 1) is a function.
        is_function = index + 1 < len(tokens) and tokens[index + 1].matches("(")
        if not depth and tokens[index].matches(*_JOIN_WORDS) and not is_function:
            raise _UnsuitableError(f"{tokens[index].text} follows a join")
    return _Join(kind, tuple(tokens[1:]))


def _connect(node: GraphNode, relations: Sequence[JoinedRelation], joins: Sequence[_Join]) -> JoinPlan:
    """Choose the root, and find the equalities that reach every other relation from it."""
    aliases = [relation.alias.lower() for relation in relations]
    if len(set(aliases)) < len(aliases):
        raise _UnsuitableError("a table is joined twice under one name")
    root = _root(node, relations, joins)
    select = node.create.select
    assert select is not None
    pairs: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for number, join in enumerate(joins, start=1):
        for name in join.using:
            # The merged column of several USING is that of the first table.
            first, second = (f"{quote_name(relations[place].alias)}.{quote_name(name)}" for place in (0, number))
            pairs.setdefault((0, number), []).append((first, second))
        for left, right in _equalities(join.condition):
            first_place, second_place = _only_alias(left, aliases), _only_alias(right, aliases)
            if first_place is None or second_place is None or first_place == second_place:
                continue
            texts = (_text(select, left), _text(select, right))
            if first_place < second_place:
                pairs.setdefault((first_place, second_place), []).append(texts)
            else:
                pairs.setdefault((second_place, first_place), []).append((texts[1], texts[0]))
    edges: list[JoinEdge] = []
    reached = {root}
    while len(reached) < len(relations):
        edge = _next_edge(pairs, reached)
        if edge is None:
            missing = next(relation for place, relation in enumerate(relations) if place not in reached)
            example = f"{relations[root].alias}.column = {missing.alias}.column"
            raise _UnsuitableError(f"no equality such as {example} finds rows of {missing.name}")
        edges.append(edge)
        reached.add(edge.target)
    return JoinPlan(tuple(relations), root, tuple(edges))


def _root(node: GraphNode, relations: Sequence[JoinedRelation], joins: Sequence[_Join]) -> int:
    kinds = {join.kind for join in joins}
    if "RIGHT" in kinds and len(joins) > 1:
        raise _UnsuitableError("RIGHT JOIN is one of several joins")
    outer = 1 if "RIGHT" in kinds else 0
    if not node.streams:
        return outer
    streams = {name.lower() for name in node.streams}
    (place,) = (index for index, relation in enumerate(relations) if relation.name.lower() in streams)
    if kinds - {"INNER"} and place != outer:
        raise _UnsuitableError("the stream is on the side of an outer join that may be missing")
    return place


def _next_edge(pairs: dict[tuple[int, int], list[tuple[str, str]]], reached: set[int]) -> JoinEdge | None:
    """Return the edge with the most equalities from a reached relation to one that is not."""
    candidates = [
        JoinEdge(first, second, tuple(equalities))
        if first in reached
        else JoinEdge(second, first, tuple((right, left) for left, right in equalities))
        for (first, second), equalities in pairs.items()
        if (first in reached) != (second in reached)
    ]
    return max(candidates, key=_selectivity, default=None)


def _selectivity(edge: JoinEdge) -> int:
    return len(edge.pairs)


def _equalities(condition: Sequence[Token]) -> Iterator[tuple[Sequence[Token], Sequence[Token]]]:
    """Yield both sides of each equality of a condition's conjuncts."""
    depths = nesting_depths(condition)
    if any(token.matches("OR", "CASE") for token, depth in zip(condition, depths, strict=True) if not depth):
        return
    conjuncts: list[list[Token]] = [[]]
    for token, depth in zip(condition, depths, strict=True):
        if not depth and token.matches("AND"):
            conjuncts.append([])
        else:
            conjuncts[-1].append(token)
    for conjunct in conjuncts:
        inner = nesting_depths(conjunct)
        outside = [index for index, depth in enumerate(inner) if not depth]
        signs = [index for index in outside if conjunct[index].matches(*_EQUAL)]
        # The AND of BETWEEN splits it in two parts of which neither is an equality.
        if len(signs) != 1 or any(conjunct[index].matches(*_OTHER_CONDITIONS) for index in outside):
            continue
        yield conjunct[: signs[0]], conjunct[signs[0] + 1 :]


def _only_alias(side: Sequence[Token], aliases: Sequence[str]) -> int | None:
    """Return the one relation that an expression names; None when there are several, none, or names without alias."""
    named: set[int] = set()
    for index, token in enumerate(side):
        follows_dot = index > 0 and side[index - 1].matches(".")
        if token.kind == STRING and token.text.startswith('"'):
            return None
        if token.kind not in (WORD, NAME) or follows_dot:
            continue
        if index + 1 < len(side) and side[index + 1].matches("."):
            if token.value.lower() not in aliases:
                return None
            named.add(aliases.index(token.value.lower()))
        elif index + 1 < len(side) and side[index + 1].matches("("):
            if token.matches(*_CHANGING_FUNCTIONS):
                return None
        elif not token.matches(*_WORDS_IN_EXPRESSIONS):
            return None
    return named.pop() if len(named) == 1 else None


def _text(select: Select, tokens: Sequence[Token]) -> str:
    return select.text[tokens[0].start - select.offset : tokens[-1].end - select.offset]
