"""Renders a pipeline's graph as text, with what a run would do to each query's checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from klamm.model.units import pluralize
from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
from klamm.pipeline.sql.core.identity import FROM_NOW, QueryChange
from klamm.pipeline.sql.core.join_plan import WholeTables, plan_joins


def render_graph(pipeline: Pipeline, changes: Iterable[QueryChange] = ()) -> list[str]:
    """Return the lines of the graph from its inputs down; a statement that appears again is only named."""
    verdicts = {change.name: change for change in changes}
    readers: dict[str, list[GraphNode]] = {}
    for node in pipeline.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    lines: list[str] = []
    rendered: set[str] = set()

    def visit(node: GraphNode, indent: str, branch: str, below: str) -> None:
        # A node with two inputs is reached twice.
        is_repeated = node.name in rendered
        lines.append(
            indent
            + branch
            + (f"{node.name} (above)" if is_repeated else _line(pipeline, node, verdicts.get(node.name)))
        )
        if is_repeated:
            return
        rendered.add(node.name)
        children = readers.get(node.name, [])
        for index, child in enumerate(children):
            last = index == len(children) - 1
            visit(child, indent + below, "└─ " if last else "├─ ", "   " if last else "│  ")

    for node in pipeline.nodes:
        # The graph has no cycles, so every node is reached from one without inputs.
        if not node.inputs:
            visit(node, "", "", "")
    lines.extend(
        f"{verdict.name}: {verdict.verdict}, {verdict.reason}"
        for verdict in verdicts.values()
        if verdict.verdict == "removed"
    )
    return lines


def graph_rows(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Return the statements of a graph for the status: name, kind, and what each reads."""
    letters = {**pipeline.refused_rows, **pipeline.dead_letters}
    return [
        {
            "name": node.name,
            "kind": node.kind,
            "reads": list(node.inputs),
            "topic": node.topic if node.has_topic else None,
            "runs": node.runs,
            "stateful": keeps_state(pipeline, node),
            "joins": describe_joins(pipeline, node),
            "dead_letters": letters.get(node.name),
            "refused_rows": node.name in pipeline.refused_rows,
        }
        for node in pipeline.nodes
    ]


def keeps_state(pipeline: Pipeline, node: GraphNode) -> bool:
    """Whether a query keeps state: for its own SELECT, or to read a stream without duplicates."""
    deduplicated = any(pipeline.node(stream).option("deduplicate") for stream in node.streams)
    return node.stateful or (node.runs and deduplicated)


def describe_joins(pipeline: Pipeline, node: GraphNode) -> str | None:
    """Return whether a batch reads the rows it needs of its tables, or all of them and why; None without tables."""
    plan = plan_joins(pipeline, node)
    if plan is None:
        return None
    if isinstance(plan, WholeTables):
        what = "computed again at every change" if node.recomputed else "reads its tables whole with every batch"
        return f"{what}: {plan.reason}"
    return "computed for changed rows" if node.recomputed else "looks rows of its tables up"


def _line(pipeline: Pipeline, node: GraphNode, change: QueryChange | None) -> str:
    facts: list[str] = []
    if node.has_topic:
        facts.append(f"topic {node.topic}")
        facts.append(node.format)
        if node.key:
            facts.append(f"key {', '.join(node.key)}")
    if node.kind == "sink":
        facts.append(f"{node.option('format')} {node.option('path') or ''}".strip())
    if node.kind == "source":
        where = node.option("path") or node.option("table") or ("a query" if node.option("query") else "")
        facts.insert(0, f"{node.connector} {where}".strip())
    joins = describe_joins(pipeline, node)
    if joins:
        facts.append(joins)
    elif keeps_state(pipeline, node):
        facts.append("keeps state")
    line = f"{node.name}  {node.kind}"
    if facts:
        line += f" ({', '.join(facts)})"
    if change is not None:
        line += f"  [{change.verdict}{': ' + change.reason if change.reason else ''}{_describe_cost(change)}"
        line += f"{_describe_lost(node, change)}]"
    return line


def _describe_cost(change: QueryChange) -> str:
    """Return how much a query reads again, and for how long."""
    cost = change.cost
    if cost is None:
        return ""
    # A moved sink reads again only if that is chosen.
    text = f"; {'--rebuild ' if change.verdict == FROM_NOW else ''}reads {cost.offsets:,} offsets"
    if cost.rows_per_s is None or cost.duration_ms is None:
        return text
    return f"{text}, {format_seconds(cost.duration_ms)} at {cost.rows_per_s:,.0f} a second"


def _describe_lost(node: GraphNode, change: QueryChange) -> str:
    """Return what a rebuild cannot compute again, and what it needs for that."""
    if change.cost is None or not change.cost.lost:
        return ""
    gone = f"; retention has removed {pluralize(change.cost.lost, 'offset')}"
    if node.kind == "table":
        return f"{gone}, so that its values change: needs --accept-lost {node.name}"
    return f"{gone}, so that it needs another path or table"


def format_seconds(duration_ms: int) -> str:
    """Return a duration in its largest two units, at least a second."""
    seconds = max(round(duration_ms / 1000), 1)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if days:
        return f"{days}d{hours % 24}h"
    if hours:
        return f"{hours}h{minutes % 60}m"
    return f"{minutes}m{seconds % 60}s" if minutes else f"{seconds}s"
