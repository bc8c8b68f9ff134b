"""Statements as a graph: who reads whom, in which order they can be built, and whether that makes sense.

The rules of streams and tables, checked without Spark:

- a STREAM is made of at least one stream; its rows are added and never taken back;
- a TABLE has a key; made of streams it is upserted, made of tables only it is computed anew and the difference written;
- a VIEW is a name for a SELECT and has no topic; it is what it reads: a stream, or a table;
- a SINK and a SOURCE are ends; nothing reads a SINK, a SOURCE is read as the stream of its topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from klamm.pipeline.sql.core.column_types import TIMES
from klamm.pipeline.sql.core.parser import parse
from klamm.pipeline.sql.core.problems import Problem, Source, SqlError, suggest
from klamm.pipeline.sql.core.query_sources import SelectScan, TableReference, scan_select
from klamm.pipeline.sql.core.statement_checks import check_registry, check_source, check_temporal_joins
from klamm.pipeline.sql.core.statement_options import REGISTRY_FORMATS, check_options, check_setting, name_list
from klamm.pipeline.sql.core.statements import SINK, SOURCE, STREAM, TABLE, VIEW, Create, CreateFunction, Set, Value
from klamm.pipeline.sql.core.temporal_joins import TemporalJoin, find_temporal_joins

SINGLE: Final = ("string", "raw")
"""Formats whose value is one column."""

_BY_ROW: Final = "a table is read as of a time row by row: make that a stream of its own, and group or join that one"
DEAD_LETTERS: Final = ".dead_letters"
"""What the topic of a stream's bad records is called after it."""


@dataclass(frozen=True, slots=True)
class Node:
    """A statement in its place."""

    create: Create
    scan: SelectScan | None
    inputs: tuple[str, ...]
    """Names it reads, as they are declared."""
    streams: tuple[str, ...]
    """Streams it reads in the end, through views."""
    tables: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name."""
        return self.create.name

    @property
    def kind(self) -> str:
        """stream, table, view, sink or source."""
        return self.create.kind

    @property
    def runs(self) -> bool:
        """Whether it is a query of its own."""
        return self.kind in (SINK, SOURCE) or (self.create.select is not None and self.kind != VIEW)

    @property
    def has_topic(self) -> bool:
        """Whether its rows live in a topic."""
        return self.kind in (STREAM, TABLE, SOURCE)

    @property
    def is_table(self) -> bool:
        """Whether readers see the newest row of each key."""
        return self.kind == TABLE or (self.kind == VIEW and not self.streams)

    @property
    def recomputed(self) -> bool:
        """A table made of tables only."""
        return self.kind == TABLE and self.create.select is not None and not self.streams

    def option(self, name: str, default: str | None = None) -> str | None:
        """The text of an option."""
        found = self.create.options.get(name)
        return default if found is None else found.text

    @property
    def topic(self) -> str:
        """Its topic: its name, unless told otherwise."""
        return self.option("topic") or self.name

    @property
    def format(self) -> str:
        """The format of its values."""
        return (self.option("format") or "json").lower()

    @property
    def key_format(self) -> str:
        """The format of its key: what is said, JSON for several columns, text for one."""
        return (self.option("key_format") or ("json" if len(self.key) > 1 else "string")).lower()

    @property
    def registered(self) -> bool:
        """Whether its values name schemas of a registry."""
        return self.format in REGISTRY_FORMATS and self.has_topic

    @property
    def key_registered(self) -> bool:
        """Whether its keys do."""
        return self.key_format in REGISTRY_FORMATS and self.has_topic and bool(self.key)

    @property
    def connector(self) -> str:
        """Of a source, what it reads."""
        return (self.option("connector") or "").lower()

    @property
    def temporal_joins(self) -> tuple[TemporalJoin, ...]:
        """Tables it reads as of a time."""
        return find_temporal_joins(self.create.select) if self.create.select is not None else ()

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of its key: those said, or a table's plain GROUP BY."""
        said = self.option("key")
        if said is not None:
            return name_list(said)
        if self.kind == TABLE and self.scan is not None and self.scan.group_names:
            return self.scan.group_names
        return ()

    @property
    def final(self) -> bool:
        """Whether rows are written once, when their window has closed; otherwise at every change."""
        said = self.option("emit")
        if said is not None:
            return said.lower() == "final"
        if self.kind != TABLE:
            return True
        reading = self.scan
        return reading is not None and (reading.session or (reading.joined and len(self.streams) > 1))

    @property
    def stateful(self) -> bool:
        """Whether its query remembers rows between batches."""
        reading = self.scan
        if reading is None:
            return False
        several = reading.joined and len(self.streams) > 1
        return bool(self.streams) and (reading.grouped or reading.distinct or several)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A file that makes sense; nodes in an order in which each comes after what it reads."""

    source: Source
    nodes: tuple[Node, ...]
    settings: Mapping[str, str]
    functions: tuple[CreateFunction, ...] = ()
    warnings: tuple[Problem, ...] = ()
    _by_name: dict[str, Node] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {node.name.lower(): node for node in self.nodes})

    def node(self, name: str) -> Node:
        """The statement of a name; KeyError when there is none."""
        return self._by_name[name.lower()]

    @property
    def queries(self) -> tuple[Node, ...]:
        """Those that run."""
        return tuple(node for node in self.nodes if node.runs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The topics it writes."""
        return tuple(node.topic for node in self.nodes if node.runs and node.has_topic)

    def policy(self, node: Node) -> str:
        """What happens to bad records; in our own results there are none, and if there are we stop."""
        if node.runs:
            return "fail"
        return (node.option("bad_records") or self.settings.get("bad_records") or "dead_letter").lower()

    def source_policy(self, node: Node) -> str:
        """What happens to rows that a source cannot read; only files have such."""
        if node.connector != "files":
            return "fail"
        parsed = (node.option("file_format") or "json").lower() in ("json", "csv")
        if not parsed and all(column.nullable for column in node.create.columns):
            return "fail"
        return (node.option("bad_records") or self.settings.get("bad_records") or "dead_letter").lower()

    def looks_up(self, node: Node) -> bool:
        """Whether it takes each row of one stream to tables and remembers nothing: then every batch looks anew."""
        if node.kind not in (STREAM, TABLE) or len(node.streams) != 1 or not node.tables:
            return False
        views = self.views_of(node)
        flowing = {stream.lower() for stream in node.streams} | {view.name.lower() for view in views if view.streams}
        readings = [each.scan for each in (node, *views) if each.scan is not None]
        return not any(
            reading.grouped
            or reading.distinct
            or reading.limited
            or sum(some.name.lower() in flowing for some in reading.reads) > 1
            for reading in readings
        )

    def views_of(self, node: Node) -> list[Node]:
        """The views it reads, and those they read."""
        found: dict[str, Node] = {}
        waiting = list(node.inputs)
        while waiting:
            each = self.node(waiting.pop())
            if each.kind == VIEW and each.name not in found:
                found[each.name] = each
                waiting.extend(each.inputs)
        return list(found.values())

    @property
    def dead_letters(self) -> dict[str, str]:
        """The topics of bad records, by the name of the stream, table or source they are of."""
        read = {name for node in self.nodes for name in node.inputs}
        return {
            node.name: node.option("dead_letter_topic")
            or self.settings.get("dead_letter_topic")
            or f"{node.topic}{DEAD_LETTERS}"
            for node in self.nodes
            if (node.has_topic and node.name in read and self.policy(node) == "dead_letter")
            or (node.kind == SOURCE and self.source_policy(node) == "dead_letter")
        }


def compile_text(text: str, name: str = "pipeline.sql", overrides: Mapping[str, str] | None = None) -> Pipeline:
    """A pipeline from its text, `overrides` over its SETs; SqlError with all that is wrong with it."""
    source = Source(text, name)
    statements, problems = parse(text)
    unread = bool(problems)
    settings: dict[str, str] = {}
    for statement in statements:
        if isinstance(statement, Set):
            problems.extend(check_setting(statement))
            settings[statement.name] = statement.value.text
    for setting, value in (overrides or {}).items():
        wrong = list(check_setting(Set(setting, Value(value, 0, 0))))
        problems.extend(Problem(0, f"--set: {each.words}") for each in wrong)
        settings[setting] = value
    creates: dict[str, Create] = {}
    functions = [statement for statement in statements if isinstance(statement, CreateFunction)]
    for statement in statements:
        if not isinstance(statement, Create):
            continue
        if statement.name.lower() in creates:
            line, _ = source.position(creates[statement.name.lower()].offset)
            problems.append(Problem(statement.offset, f"there is a {statement.name} already, in line {line}"))
            continue
        creates[statement.name.lower()] = statement
        problems.extend(check_options(statement))
    nodes, wrong_names = _resolve(creates, unread=unread)
    problems.extend(wrong_names)
    for node in nodes:
        problems.extend(_check(node))
        problems.extend(check_registry(node, settings))
        problems.extend(check_temporal_joins(node, creates))
    problems.extend(_shared_topics(nodes))
    if not creates and not problems:
        problems.append(Problem(0, "there is nothing in it: write CREATE STREAM ..."))
    errors = [problem for problem in problems if not problem.warning]
    found = Pipeline(source, tuple(nodes), settings, tuple(functions), tuple(sorted(problems)))
    if not errors:
        errors = [
            Problem(moment.offset, _BY_ROW)
            for node in nodes
            for moment in node.temporal_joins
            if not found.looks_up(node)
        ]
    if errors:
        raise SqlError(source, errors)
    return found


def _resolve(creates: Mapping[str, Create], *, unread: bool) -> tuple[list[Node], list[Problem]]:
    """Nodes in order, unknown names and circles; with `unread` statements a name may be one of theirs."""
    problems: list[Problem] = []
    readings = {name: scan_select(each.select) for name, each in creates.items() if each.select is not None}
    order: list[str] = []
    state: dict[str, int] = {}

    def visit(name: str, path: list[tuple[str, TableReference]]) -> None:
        state[name] = 1
        for read in readings[name].reads if name in readings else ():
            target = read.name.lower()
            if target not in creates:
                if not unread:
                    hint = suggest(read.name, [create.name for create in creates.values() if create.kind != SINK])
                    problems.append(Problem(read.offset, f"there is no stream or table {read.name}{hint}"))
            elif creates[target].kind == SINK:
                problems.append(Problem(read.offset, f"{read.name} is a sink: nothing can be read from it"))
            elif state.get(target) == 1:
                names = [each for each, _ in path] + [name]
                ring = [creates[each].name for each in names[names.index(target) :]]
                words = " reads ".join([*ring, creates[target].name])
                problems.append(Problem(read.offset, f"statements go round in a circle: {words}"))
            elif target not in state:
                visit(target, [*path, (name, read)])
        state[name] = 2
        order.append(name)

    for name in creates:
        if name not in state:
            visit(name, [])
    nodes: dict[str, Node] = {}
    for name in order:
        reading = readings.get(name)
        inputs = [creates[each.lower()].name for each in (reading.names if reading else ()) if each.lower() in nodes]
        streams: dict[str, None] = {}
        tables: dict[str, None] = {}
        for fromkey in dict.fromkeys(inputs):
            node = nodes[fromkey.lower()]
            if node.kind == VIEW:
                streams |= dict.fromkeys(node.streams)
                tables |= dict.fromkeys(node.tables)
            else:
                (tables if node.kind == TABLE else streams)[fromkey] = None
        nodes[name] = Node(creates[name], reading, tuple(dict.fromkeys(inputs)), tuple(streams), tuple(tables))
    return list(nodes.values()), problems


def _check(node: Node) -> Iterator[Problem]:
    create = node.create
    here = create.offset
    if create.select is not None:
        yield from _check_derived(node)
    elif create.kind in (VIEW, SINK):
        yield Problem(here, f"a {create.kind} needs AS SELECT ...")
    elif create.kind in (STREAM, TABLE) and not create.columns and not node.registered:
        yield Problem(here, f"{create.name} has neither columns nor AS SELECT: write ({create.name} columns) first")
    if create.kind == TABLE and not node.key:
        example = create.columns[0].name if create.columns else "id"
        yield Problem(here, f"a table needs a key: WITH (key = '{example}')")
    if create.kind == SOURCE:
        yield from check_source(node)
    if create.columns:
        yield from check_columns(node)
    if node.option("watermark") is not None and node.option("timestamp") is None:
        yield Problem(create.options["watermark"].name_offset, "a watermark needs timestamp = 'column' beside it")


def _check_derived(node: Node) -> Iterator[Problem]:
    create, reading = node.create, node.scan
    assert reading is not None
    if create.columns and create.kind != SOURCE:
        yield Problem(create.columns[0].offset, "columns are those of the SELECT: leave the list out")
    if create.kind == SOURCE:
        yield Problem(create.offset, "a source takes no SELECT: read its stream in another statement")
    known = len(node.inputs) == len({name.lower() for name in reading.names})
    if not reading.reads:
        yield Problem(create.offset, f"{create.name} reads nothing: its SELECT has no FROM")
    if create.kind == STREAM and known and node.tables and not node.streams:
        yield Problem(create.offset, f"{create.name} reads tables only: CREATE TABLE {create.name} AS SELECT ...")
    if create.kind == SINK and known and node.tables and not node.streams:
        yield Problem(create.offset, f"{create.name} reads tables only; a sink is fed by a stream")
    if create.kind == VIEW and create.options:
        yield Problem(next(iter(create.options.values())).name_offset, "a view has no topic and no options")
    if create.kind == TABLE and node.streams and reading.having is not None:
        yield Problem(
            reading.having,
            "a row that HAVING lets go would stay in the table: use delete_when = 'condition' in WITH instead",
        )
    if create.kind == STREAM and node.option("emit") == "changes":
        yield Problem(
            create.options["emit"].offset, "rows of a stream are never changed: emit = 'changes' is a table's"
        )
    if create.kind == SINK:
        kind = (node.option("format") or "").lower()
        if not kind:
            yield Problem(create.offset, "a sink needs a format: WITH (format = 'parquet', path = '...')")
        elif kind not in ("console", "noop") and node.option("path") is None and not _has_catalog(node, kind):
            yield Problem(create.offset, f"{kind} needs a path: WITH (format = '{kind}', path = '...')")
        if "table" in create.options and kind != "iceberg":
            yield Problem(create.options["table"].name_offset, "table names an Iceberg table: format = 'iceberg'")


def _has_catalog(node: Node, kind: str) -> bool:
    """Whether an Iceberg table lies where its catalog says."""
    return kind == "iceberg" and any(each in node.create.options for each in ("option.uri", "option.catalog"))


def check_columns(node: Node) -> Iterator[Problem]:
    """What is wrong with a statement's columns."""
    create = node.create
    names = {each.name.lower(): each for each in create.columns}
    for option in ("key", "timestamp", "deduplicate"):
        value = create.options.get(option)
        for each in name_list(value.text) if value else ():
            if value and each.lower() not in names:
                hint = suggest(each, [some.name for some in create.columns])
                yield Problem(value.offset, f"{create.name} has no column {each}{hint}")
    stamp = create.options.get("timestamp")
    column = names.get(stamp.text.lower()) if stamp else None
    if stamp and column is not None and column.type not in TIMES:
        yield Problem(stamp.offset, f"{column.name} is {column.type}; a timestamp is TIMESTAMP")
    for some in create.columns:
        yield from _check_metadata(some.name, some.metadata, some.type, some.offset)
    values = [each for each in create.columns if each.metadata is None]
    if node.format in SINGLE and create.kind != SOURCE:
        value_columns = [each for each in values if each.name.lower() not in {k.lower() for k in node.key}]
        if len(value_columns) != 1:
            yield Problem(
                create.offset, f"format {node.format} has one column beside its key, not {len(value_columns)}"
            )
        elif node.format == "raw" and value_columns[0].type != "BINARY":
            yield Problem(value_columns[0].offset, "a raw value is BINARY")
    elif not values:
        yield Problem(create.offset, "there is no column for the value")


_METADATA_TYPES: Final = {
    "timestamp": TIMES,
    "offset": ("BIGINT", "LONG"),
    "partition": ("INT", "INTEGER"),
    "topic": ("STRING",),
    "key": ("STRING", "BINARY"),
    "headers": ("MAP<STRING, BINARY>",),
}


def _check_metadata(name: str, part: str | None, kind: str, offset: int) -> Iterator[Problem]:
    if part is not None and kind not in _METADATA_TYPES[part]:
        yield Problem(offset, f"{name} is {kind}; a record's {part} is {_METADATA_TYPES[part][0]}")


def _shared_topics(nodes: list[Node]) -> Iterator[Problem]:
    writers: dict[str, Node] = {}
    for node in nodes:
        if not (node.runs and node.has_topic):
            continue
        if node.topic in writers:
            yield Problem(node.create.offset, f"{writers[node.topic].name} writes to topic {node.topic} already")
        writers[node.topic] = node
    for node in nodes:
        if node.has_topic and not node.runs and node.topic in writers:
            words = f"{writers[node.topic].name} writes to topic {node.topic}: read it by that name"
            yield Problem(node.create.offset, words, warning=True)
