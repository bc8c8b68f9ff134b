"""The graph of a pipeline as SVG: inputs at the left, each statement one column right of what it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final
from urllib.parse import quote

from klamm.console.core.numbers import format_short
from klamm.console.core.pipeline_rows import GraphStatement, PipelineRow, QueryRow

_WIDTH: Final = 190
_HEIGHT: Final = 50
_GAP_X: Final = 64
_GAP_Y: Final = 18
_MARGIN: Final = 4
_NAME_CHARS: Final = 23
_STATEMENTS_MAX: Final = 200
"""More boxes than a person can look at; the table below has them all."""


def draw_graph(row: PipelineRow, base: str) -> str:
    """Return the picture; a statement with a topic is a link to it. Empty without a graph."""
    statements = row.statements[:_STATEMENTS_MAX]
    if not statements:
        return ""
    columns = arrange(statements)
    places = {
        name: (_MARGIN + x * (_WIDTH + _GAP_X), _MARGIN + y * (_HEIGHT + _GAP_Y))
        for x, names in enumerate(columns)
        for y, name in enumerate(names)
    }
    queries = {query.name: query for query in row.queries}
    edges = [
        _draw_edge(places[source], places[statement.name])
        for statement in statements
        for source in statement.reads
        if source in places
    ]
    boxes = [_draw_box(statement, queries.get(statement.name), places, base) for statement in statements]
    width = len(columns) * (_WIDTH + _GAP_X) - _GAP_X + 2 * _MARGIN
    height = max(map(len, columns)) * (_HEIGHT + _GAP_Y) - _GAP_Y + 2 * _MARGIN
    return (
        f'<svg class="graph" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="group"'
        f' aria-label="{escape(f"Graph of {row.name}")}">{"".join(edges)}{"".join(boxes)}</svg>'
    )


def arrange(statements: Sequence[GraphStatement]) -> list[list[str]]:
    """Return the names of each column: a statement is right of everything that it reads."""
    by_name = {statement.name: statement for statement in statements}
    columns: dict[str, int] = {}
    for statement in statements:
        _find_column(statement, by_name, columns, ())
    lists: list[list[str]] = [[] for _ in range(max(columns.values()) + 1)]
    for name, column in columns.items():
        lists[column].append(name)
    return [names for names in lists if names]


def _find_column(
    statement: GraphStatement, by_name: Mapping[str, GraphStatement], columns: dict[str, int], path: tuple[str, ...]
) -> int:
    if statement.name in columns:
        return columns[statement.name]
    # A status file is data: a cycle in it, which no pipeline has, must not end in a recursion.
    inputs = [by_name[name] for name in statement.reads if name in by_name and name not in (*path, statement.name)]
    below = (*path, statement.name)
    column = max((_find_column(source, by_name, columns, below) + 1 for source in inputs), default=0)
    columns[statement.name] = column
    return column


def _draw_edge(begin: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = begin[0] + _WIDTH, begin[1] + _HEIGHT // 2
    x2, y2 = end[0], end[1] + _HEIGHT // 2
    middle = (x1 + x2) // 2
    return f'<path class="edge" d="M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}"/>'


def _draw_box(
    statement: GraphStatement, query: QueryRow | None, places: Mapping[str, tuple[int, int]], base: str
) -> str:
    x, y = places[statement.name]
    name = statement.name if len(statement.name) <= _NAME_CHARS else statement.name[: _NAME_CHARS - 1] + "…"
    state = "" if query is None else query.state
    kind = {"running": "good", "done": "good", "failed": "bad", "restarting": "bad", "paused": "warn"}.get(state, "")
    facts = [statement.kind, state]
    if query is not None and query.rows_per_s is not None:
        facts.append(f"{format_short(query.rows_per_s)}/s")
    title = f"{statement.name}: {', '.join(filter(None, facts))}"
    box = (
        f'<g class="node {kind}"><title>{escape(title)}</title>'
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="9"/>'
        f'<text x="{x + 12}" y="{y + 21}" class="name">{escape(name)}</text>'
        f'<text x="{x + 12}" y="{y + 39}" class="facts">{escape(" · ".join(filter(None, facts)))}</text></g>'
    )
    if statement.topic is None:
        return box
    topic = quote(statement.topic, safe="")
    return f'<a href="{escape(base)}/topics/{topic}">{box}</a>'
