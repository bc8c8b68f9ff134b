"""The identity of a pipeline's checkpoints, and what a changed file means for them.

Spark keeps a query's position and state in a folder that only the same query can use. The identity, stored beside it,
describes each query in a form that can be compared.

    continues           the query continues; new rows are computed by the new statement
    continues from now  a lake sink has another place, which lacks the rows of the one before
    rebuild             its state was computed by the old statement: it must read its topics from the beginning
    incompatible        its topic holds rows that contradict the new statement: it needs another topic

An input is described with all its declared columns, but compared by those that the query reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.sql.core.graph import DEAD_LETTERS, GraphNode, Pipeline
from klamm.pipeline.sql.core.query_sources import normalize_select
from klamm.pipeline.sql.core.read_columns import (
    ALL,
    Names,
    called_functions,
    is_only_aggregated,
    is_wider_integer,
    read_columns,
)
from klamm.pipeline.sql.core.read_cost import ReadCost
from klamm.pipeline.sql.core.secrets import is_secret, mask_secrets
from klamm.pipeline.sql.core.statement_options import SINGLE
from klamm.pipeline.sql.core.statements import SINK, TABLE

SAME: Final = "same"
NEW: Final = "new"
CONTINUES: Final = "continues"
FROM_NOW: Final = "continues from now"
REBUILD: Final = "rebuild"
INCOMPATIBLE: Final = "incompatible"
REMOVED: Final = "removed"
VERSION: Final = 2
_READABLE_VERSIONS: Final = (1, 2)
_EVERY_COLUMN: Final = "*"
PLACE_OPTIONS: Final = ("path", "table", "option.catalog", "option.type", "option.uri", "option.warehouse")
_TUNING_OPTIONS: Final = frozenset(
    {
        *("trigger", "max_records", "partitions", "replication", "bad_records", "dead_letter_topic", "late_topic"),
        "on_data_loss",
        *("batch_size", "fetch_size", "delay", "driver", "driver_jar", "user", "url", "registry"),
    }
)
"""Options that change how a query runs, but not its rows."""


@dataclass(frozen=True, slots=True)
class QueryChange:
    """What a changed file means for one query."""

    name: str
    verdict: str
    reason: str = ""
    cost: ReadCost | None = None
    """Of reading its topics from the beginning, where that is known and may be needed."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """What an adopted generation begins with."""

    continues: bool = False
    """Whether its checkpoint has batches; without them it would write the rows of older generations again."""
    position: str = ""
    """Where the output of older generations ends, as a `BatchPosition` has it; empty for a checkpoint with state."""


@dataclass(frozen=True, slots=True)
class QueryIdentity:
    """The pipeline that a folder belongs to: its id, and a description and a generation of each query."""

    id: str
    name: str
    queries: Mapping[str, Mapping[str, Any]]
    generations: Mapping[str, int]
    named: bool = True
    """Whether streams number their batches under the pipeline's id; identities of older versions use Spark's."""
    schemas: Mapping[str, Any] = field(default_factory=dict)
    """The types that the state of each query was computed with; see `state_schemas`."""
    adoptions: Mapping[str, Any] = field(default_factory=dict)
    """What adopted generations continue, see `adoption_of`: their sinks know it only after the first batch."""

    def encode(self) -> str:
        """Return the text of the identity file."""
        document = {
            "version": VERSION,
            "id": self.id,
            "name": self.name,
            "queries": self.queries,
            "generations": self.generations,
            "named": self.named,
            "schemas": self.schemas,
            "adoptions": self.adoptions,
        }
        return json.dumps(document, indent=2, sort_keys=True) + "\n"

    @classmethod
    def decode(cls, text: str, path: str) -> QueryIdentity:
        """Parse the text of an identity file."""
        try:
            document = json.loads(text)
            if document["version"] not in _READABLE_VERSIONS:
                raise ConfigError(f"{path} is of version {document['version']}; this Klamm supports up to {VERSION}")
            named = bool(document.get("named", False))
            schemas = document.get("schemas", {})
            adoptions = document.get("adoptions", {})
            names = document["id"], document["name"]
            return cls(*names, document["queries"], document["generations"], named, schemas, adoptions)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path} is not the identity of a pipeline: {error!r}") from None

    def generation(self, node: str, query: str) -> int:
        """Return the generation of a query; dead letters that were never rebuilt have that of their statement."""
        return self.generations.get(query, self.generations.get(node, 0))

    def with_generation(self, query: str, generation: int) -> QueryIdentity:
        """Return the identity with another generation of a query."""
        return replace(self, generations={**self.generations, query: generation})

    def with_adoption(self, query: str, generation: int, adoption: Adoption) -> QueryIdentity:
        """Return the identity with a new generation of a query, which continues what older ones have written."""
        entry = {"generation": generation, "continues": adoption.continues, "position": adoption.position}
        return replace(self.with_generation(query, generation), adoptions={**self.adoptions, query: entry})

    def adoption_of(self, node: str, query: str) -> Adoption | None:
        """Return what the generation of a query continues; None for one that was not adopted."""
        entry = self.adoptions.get(query)
        if entry is None or entry["generation"] != self.generation(node, query):
            return None
        return Adoption(bool(entry["continues"]), str(entry["position"]))

    def renew(self, pipeline: Pipeline, rebuilt: frozenset[str] = frozenset()) -> QueryIdentity:
        """Return the identity with `pipeline`'s queries; a rebuilt query gets a new generation, so a new checkpoint."""
        described = describe(pipeline)
        generations = dict(self.generations)
        for name in described:
            generations[name] = generations.get(name, 0) + (name in rebuilt)
        for name in rebuilt - described.keys():  # dead letters
            generations[name] = self.generation(name.removesuffix(DEAD_LETTERS), name) + 1
        return replace(self, queries=described, generations=generations)


def describe(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """Return a comparable description of each query."""
    return {query.name: _describe_query(pipeline, query) for query in pipeline.queries}


def _describe_query(pipeline: Pipeline, node: GraphNode) -> dict[str, Any]:
    read_names = read_columns(pipeline, node)
    inputs = {
        name: {
            **_describe_input(pipeline.node(name)),
            **_describe_reading(pipeline, node, name, read_names.get(name, ALL)),
        }
        for name in (*node.streams, *node.tables)
    }
    views = sorted(
        " ".join((view.name, *normalize_select(view.create.select)))
        for view in _views(pipeline, node)
        if view.create.select is not None
    )
    options = {
        name: mask_secrets(value.text)
        for name, value in node.create.options.items()
        # A new password, or a faster trigger, is no other query.
        if name not in _TUNING_OPTIONS and not is_secret(name)
    }
    return {
        "kind": node.kind,
        "select": " ".join(normalize_select(node.create.select)) if node.create.select else "",
        "views": views,
        "functions": called_functions(pipeline, node),
        "inputs": inputs,
        "topic": node.topic if node.has_topic else "",
        "format": node.format,
        # Stored identities have "text" for this format.
        "key": [*node.key, "text" if node.key_format == "string" else node.key_format],
        # Deduplication keeps the keys it has seen as state of the reading query.
        "stateful": node.stateful or any(pipeline.node(stream).option("deduplicate") for stream in node.streams),
        "recomputed": node.recomputed,
        "columns": _columns(node),
        "options": {
            name: text
            for name, text in sorted(options.items())
            if name not in ("topic", "format", "key", "key_format", "timestamp", "watermark", "deduplicate", "starting")
        },
    }


def _describe_input(node: GraphNode) -> dict[str, Any]:
    """Return what a reader depends on of one of its inputs."""
    parsing = [node.option(name) or "" for name in ("parsing", "timestamp_format")]
    return {
        # Only where it is set: identities that were stored before have no such part.
        **({"parsing": parsing} if any(parsing) else {}),
        "topic": node.topic,
        "kind": node.kind,
        "format": node.format,
        "columns": _columns(node),
        "time": [node.option("timestamp") or "", node.option("watermark") or "", node.option("deduplicate") or ""],
    }


def _describe_reading(pipeline: Pipeline, reader: GraphNode, name: str, names: Names) -> dict[str, Any]:
    """Return which columns of an input a query reads, and those of them whose values are in no state."""
    node = pipeline.node(name)
    # The value of these formats is the one column beside the key, whichever that is.
    if names is ALL or node.format in SINGLE:
        return {"read": _EVERY_COLUMN}
    declared = [column.name.lower() for column in node.create.columns]
    aggregated = [column for column in declared if column in names and is_only_aggregated(pipeline, reader, column)]
    # All names, and not those of declared columns: a column that is no longer declared was read, too.
    return {"read": sorted(names), "aggregated": sorted(aggregated)}


def _columns(node: GraphNode) -> list[str]:
    """Return the declared columns; not those of a registry, which change without a change of the file."""
    if node.create.resolved:
        return []
    return [f"{column.name} {column.type} {column.metadata or ''}".strip() for column in node.create.columns]


def _views(pipeline: Pipeline, node: GraphNode) -> list[GraphNode]:
    views: dict[str, GraphNode] = {}
    pending = list(node.inputs)
    while pending:
        candidate = pipeline.node(pending.pop())
        if candidate.kind == "view" and candidate.name not in views:
            views[candidate.name] = candidate
            pending.extend(candidate.inputs)
    return list(views.values())


def compare(stored: QueryIdentity | None, pipeline: Pipeline) -> list[QueryChange]:
    """Return what running `pipeline` on a folder means for each query."""
    described = describe(pipeline)
    before = stored.queries if stored else {}
    changes = [
        QueryChange(name, NEW) if name not in before else _compare_query(name, before[name], now)
        for name, now in described.items()
    ]
    changes.extend(
        QueryChange(name, REMOVED, "its state and its topic stay") for name in before if name not in described
    )
    return changes


def _compare_query(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> QueryChange:
    moved = bool(_location(now)) and _location(before) != _location(now)
    before, now = _comparable(before, now), _comparable(now, now)
    if before == now and not moved:
        return QueryChange(name, SAME)
    # From the strictest verdict to the mildest: the first difference decides.
    for part, template in (
        ("kind", "was a {} before"),
        ("format", "its topic holds {}"),
        ("key", "its topic has the key {}"),
    ):
        is_sink_format = part == "format" and now["kind"] == SINK
        if before[part] != now[part] and before["topic"] == now["topic"] and not is_sink_format:
            # The last entry of a key is its format.
            previous = before[part] if isinstance(before[part], str) else ", ".join(before[part][:-1])
            return QueryChange(name, INCOMPATIBLE, template.format(previous or "nothing"))
    if before["topic"] != now["topic"]:
        return QueryChange(name, REBUILD, f"writes to {now['topic']} instead of {before['topic']}")
    if _input_topics(before) != _input_topics(now):
        removed, added = _input_topics(before) - _input_topics(now), _input_topics(now) - _input_topics(before)
        differences = [f"now reads {topic}" for topic in sorted(added)]
        differences += [f"no longer reads {topic}" for topic in sorted(removed)]
        # A table of tables reads them whole with every batch, so an added one is complete at once.
        return QueryChange(name, CONTINUES if now["recomputed"] else REBUILD, ", ".join(differences))
    for option in ("connector", "table", "query", "cursor", "slot"):
        previous, current = before["options"].get(option), now["options"].get(option)
        # Positions of a database source are values of its cursor: they mean nothing in another table.
        if previous != current and "connector" in before["options"]:
            return QueryChange(name, REBUILD, f"{option} is {current or 'not set'} instead of {previous or 'nothing'}")
    # Either is enough: state that is new is missing, state that is old is of the wrong shape.
    stateful = before["stateful"] or now["stateful"]
    if stateful and _state_parts(before, now) != _state_parts(now, now):
        reason = _differences(before, now)
        return QueryChange(name, REBUILD, f"{reason}, and its state was computed by the old statement")
    if moved:
        rows = f"the rows that are in {_location(before)}" if _location(before) else "all rows until now"
        return QueryChange(name, FROM_NOW, f"{_location(now)} lacks {rows}")
    return QueryChange(name, CONTINUES, _differences(before, now))


def _location(description: Mapping[str, Any]) -> str:
    """Return where a sink keeps its rows; nothing for a console, or a query that writes to a topic."""
    options = description["options"]
    if description["kind"] != SINK:
        return ""
    # A table is found by all of these: another catalog has another table of the same name.
    places = [options[name] for name in PLACE_OPTIONS if options.get(name)]
    return f"{description['format']} at {', '.join(places)}" if places else ""


def _comparable(description: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a description that a query depends on, for comparison with the description of `now`.

    What is read is decided by the new statement for both: a stored identity of version 1 has all declared columns.
    """
    comparable = {part: value for part, value in description.items() if part != "functions"}
    # Joined streams keep their rows as state, in the order of their columns, and Spark compares only the types.
    is_ordered = now["stateful"] and sum(source["kind"] != TABLE for source in now["inputs"].values()) > 1
    inputs = {}
    for name, source in description["inputs"].items():
        read = now["inputs"].get(name, {}).get("read", _EVERY_COLUMN)
        columns = [
            # Fields of CSV are found by their position.
            f"{column} in field {field}" if source["format"] == "csv" else column
            for field, column in enumerate(source["columns"], 1)
            if read == _EVERY_COLUMN or _is_named(column, read)
        ]
        rest = {part: value for part, value in source.items() if part not in ("columns", "read", "aggregated")}
        is_sorted = read != _EVERY_COLUMN and not is_ordered
        inputs[name] = {**rest, "columns": sorted(columns) if is_sorted else columns}
    # An identity of version 1 has no functions: they count as unchanged.
    functions = description.get("functions", now.get("functions", {}))
    return {**comparable, "inputs": inputs, "functions": functions, "aggregated": _list_aggregated(now)}


def _list_aggregated(description: Mapping[str, Any]) -> dict[str, list[str]]:
    return {name: source.get("aggregated", []) for name, source in description["inputs"].items()}


def _is_named(column: str, names: list[str]) -> bool:
    # Columns are stored as "name type"; a name with a space may be taken for a longer one, which only reads more.
    return any(column.lower().startswith(f"{name} ") for name in names)


def _state_parts(description: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a description that its state depends on; of the columns with the types of `now` if wider."""
    inputs = {}
    for name, source in description["inputs"].items():
        current = now["inputs"].get(name, {}).get("columns", [])
        columns = [
            _find_widened(column, current, description["aggregated"].get(name, [])) for column in source["columns"]
        ]
        inputs[name] = {**source, "columns": columns}
    parts = ("kind", "select", "views", "columns", "stateful")
    # Where a sink writes, and how, is no part of its state; the options of other queries may be.
    options = {} if description["kind"] == SINK else description["options"]
    functions = {name: function[0] for name, function in description["functions"].items()}
    return {**{part: description[part] for part in parts}, "inputs": inputs, "options": options, "functions": functions}


def _find_widened(column: str, current: list[str], aggregated: list[str]) -> str:
    name, _, kind = column.partition(" ")
    for candidate in current:
        other, _, wider = candidate.partition(" ")
        if other == name and name.lower() in aggregated and is_wider_integer(kind, wider):
            return candidate
    return column


def _input_topics(description: Mapping[str, Any]) -> set[str]:
    return {source["topic"] for source in description["inputs"].values()}


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    reasons = {
        "select": "its SELECT changed",
        "views": "a view it reads changed",
        "functions": "a function it calls changed",
        "columns": "its columns changed",
        "format": "its format changed",
        "options": "its options changed",
    }
    changed = [text for part, text in reasons.items() if before.get(part) != now.get(part)]
    for name, source in now["inputs"].items():
        previous = before["inputs"].get(name)
        if previous is not None and previous != source:
            changed.append(_input_difference(name, previous, source))
    return " and ".join(changed) or "it changed"


def _input_difference(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return what is different in an input's declaration; of several columns the first."""
    types, types_now = (
        {column: kind for column, _, kind in (text.partition(" ") for text in source["columns"])}
        for source in (before, now)
    )
    for column, kind in types_now.items():
        if column not in types:
            return f"{name} now has {column}"
        if types[column] != kind:
            return f"{name}.{column} is {kind} instead of {types[column]}"
    for column in types:
        if column not in types_now:
            return f"{name} no longer has {column}"
    for part, text in (("time", "time, watermark or deduplication"), ("parsing", "parsing"), ("format", "format")):
        if before.get(part) != now.get(part):
            return f"the {text} of {name} changed"
    return f"the declaration of {name} changed"
