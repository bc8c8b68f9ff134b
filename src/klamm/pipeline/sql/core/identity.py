"""What a checkpoint was made by, and what a changed file means for it.

Spark keeps a query's position and state in a folder that only the same query understands. The identity is kept beside
it: what matters of each query, in words that can be compared.

    continues       goes on where it stopped; rows from now on are made by the new words
    rebuild         its state was made by other words: it must be read again from the beginning of its topics
    incompatible    its topic holds rows that the new words cannot live with: give it another topic
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.sql.core.graph import Node, Pipeline
from klamm.pipeline.sql.core.query_sources import normalize_select
from klamm.pipeline.sql.core.secrets import is_secret, mask_secrets

SAME: Final = "same"
NEW: Final = "new"
CONTINUES: Final = "continues"
REBUILD: Final = "rebuild"
INCOMPATIBLE: Final = "incompatible"
REMOVED: Final = "removed"
VERSION: Final = 1
_TUNING: Final = frozenset(
    {
        *("trigger", "max_records", "partitions", "replication", "bad_records", "dead_letter_topic"),
        *("batch_size", "fetch_size", "delay", "driver", "driver_jar", "user", "url", "registry"),
    }
)
"""Options that change how fast or how safe, not what."""


@dataclass(frozen=True, slots=True)
class QueryChange:
    """What becomes of one query."""

    name: str
    verdict: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a folder was made by: the pipeline's id, and a description and a generation for each query."""

    id: str
    name: str
    queries: Mapping[str, Mapping[str, Any]]
    generations: Mapping[str, int]

    def encode(self) -> str:
        """As text for a file."""
        whole = {
            "version": VERSION,
            "id": self.id,
            "name": self.name,
            "queries": self.queries,
            "generations": self.generations,
        }
        return json.dumps(whole, indent=2, sort_keys=True) + "\n"

    @classmethod
    def decode(cls, text: str, where: str) -> Identity:
        """From a file's text."""
        try:
            whole = json.loads(text)
            if whole["version"] != VERSION:
                raise ConfigError(f"{where} is of version {whole['version']}; this Klamm knows {VERSION}")
            return cls(whole["id"], whole["name"], whole["queries"], whole["generations"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{where} is no identity of a pipeline: {error!r}") from None

    def renewed(self, pipeline: Pipeline, rebuilt: frozenset[str] = frozenset()) -> Identity:
        """The identity once `pipeline` runs here; queries that are rebuilt begin a new generation."""
        described = describe(pipeline)
        generations = dict(self.generations)
        for name in described:
            generations[name] = generations.get(name, 0) + (name in rebuilt)
        return Identity(self.id, self.name, described, generations)


def describe(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """What matters of each query."""
    return {query.name: _described(pipeline, query) for query in pipeline.queries}


def _described(pipeline: Pipeline, node: Node) -> dict[str, Any]:
    inputs = {name: _input(pipeline.node(name)) for name in (*node.streams, *node.tables)}
    views = sorted(
        " ".join((view.name, *normalize_select(view.create.select)))
        for view in _views(pipeline, node)
        if view.create.select is not None
    )
    options = {
        name: mask_secrets(value.text)
        for name, value in node.create.options.items()
        if name not in _TUNING and not is_secret(name)
    }
    return {
        "kind": node.kind,
        "select": " ".join(normalize_select(node.create.select)) if node.create.select else "",
        "views": views,
        "inputs": inputs,
        "topic": node.topic if node.has_topic else "",
        "format": node.format,
        "key": [*node.key, "text" if node.key_format == "string" else node.key_format],
        "stateful": node.stateful or any(pipeline.node(stream).option("deduplicate") for stream in node.streams),
        "recomputed": node.recomputed,
        "columns": _columns(node),
        "options": {
            name: text
            for name, text in sorted(options.items())
            if name not in ("topic", "format", "key", "key_format", "timestamp", "watermark", "deduplicate", "starting")
        },
    }


def _input(node: Node) -> dict[str, Any]:
    """What a reader depends on of what it reads."""
    return {
        "topic": node.topic,
        "kind": node.kind,
        "format": node.format,
        "columns": _columns(node),
        "time": [node.option("timestamp") or "", node.option("watermark") or "", node.option("deduplicate") or ""],
    }


def _columns(node: Node) -> list[str]:
    """Declared columns; those of a registry change when somebody registers a schema, and say nothing of this file."""
    if node.create.resolved:
        return []
    return [f"{column.name} {column.type} {column.metadata or ''}".strip() for column in node.create.columns]


def _views(pipeline: Pipeline, node: Node) -> list[Node]:
    found: dict[str, Node] = {}
    waiting = list(node.inputs)
    while waiting:
        each = pipeline.node(waiting.pop())
        if each.kind == "view" and each.name not in found:
            found[each.name] = each
            waiting.extend(each.inputs)
    return list(found.values())


def compare(stored: Identity | None, pipeline: Pipeline) -> list[QueryChange]:
    """What running `pipeline` on a folder would mean, query by query."""
    described = describe(pipeline)
    before = stored.queries if stored else {}
    found = [
        QueryChange(name, NEW) if name not in before else _compared(name, before[name], now)
        for name, now in described.items()
    ]
    found.extend(QueryChange(name, REMOVED, "its state and its topic stay") for name in before if name not in described)
    return found


def _compared(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> QueryChange:
    if before == now:
        return QueryChange(name, SAME)
    for part, words in (
        ("kind", "was a {} before"),
        ("format", "its topic holds {}"),
        ("key", "its topic has the key {}"),
    ):
        if before[part] != now[part] and before["topic"] == now["topic"]:
            was = before[part] if isinstance(before[part], str) else ", ".join(before[part][:-1])
            return QueryChange(name, INCOMPATIBLE, words.format(was or "nothing"))
    if before["topic"] != now["topic"]:
        return QueryChange(name, REBUILD, f"writes to {now['topic']} instead of {before['topic']}")
    if _topics(before) != _topics(now):
        gone, come = _topics(before) - _topics(now), _topics(now) - _topics(before)
        told = [f"reads {each} as well" for each in sorted(come)] + [f"reads {each} no more" for each in sorted(gone)]
        return QueryChange(name, CONTINUES if now["recomputed"] else REBUILD, ", ".join(told))
    for each in ("connector", "table", "query", "cursor"):
        was, told = before["options"].get(each), now["options"].get(each)
        if was != told and "connector" in before["options"]:
            return QueryChange(name, REBUILD, f"{each} is {told or 'not said'} instead of {was or 'nothing'}")
    reason = _differences(before, now)
    stateful = before["stateful"] or now["stateful"]
    if stateful:
        return QueryChange(name, REBUILD, f"{reason}, and its state was made by the old words")
    return QueryChange(name, CONTINUES, reason)


def _topics(description: Mapping[str, Any]) -> set[str]:
    return {each["topic"] for each in description["inputs"].values()}


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    words = {
        "select": "its SELECT changed",
        "views": "a view it reads changed",
        "inputs": "what it reads is declared otherwise",
        "columns": "its columns changed",
        "options": "its options changed",
    }
    found = [text for part, text in words.items() if before.get(part) != now.get(part)]
    return " and ".join(found) or "it changed"
