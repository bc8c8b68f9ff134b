"""Compiles statements to a graph: which reads which, the order to build them in, and whether they are valid.

The rules of streams and tables, checked without Spark:

- a STREAM reads at least one stream; its rows are appended and never changed;
- a TABLE has a key; one of streams is upserted, one of tables is computed again and the difference written;
- a VIEW is a name for a SELECT and has no topic; it is a stream or a table as what it reads is;
- nothing reads a SINK; a SOURCE is read as the stream of its topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from klamm.pipeline.sql.core import ksql_spelling
from klamm.pipeline.sql.core.captured_tables import POSTGRES, capture_of, check_captured, split_captured
from klamm.pipeline.sql.core.column_checks import check_columns
from klamm.pipeline.sql.core.parser import parse
from klamm.pipeline.sql.core.problems import SqlError, SqlProblem, SqlSource, suggest
from klamm.pipeline.sql.core.query_sources import SelectScan, TableReference, scan_select
from klamm.pipeline.sql.core.statement_checks import (
    check_changes,
    check_registry,
    check_sink,
    check_source,
    check_temporal_joins,
    check_upsert,
)
from klamm.pipeline.sql.core.statement_options import (
    REGISTRY_FORMATS,
    check_options,
    check_setting,
    name_list,
    with_defaults,
)
from klamm.pipeline.sql.core.statements import SINK, SOURCE, STREAM, TABLE, VIEW, Create, CreateFunction, Set, Value
from klamm.pipeline.sql.core.temporal_joins import TemporalJoin, find_temporal_joins

_BY_ROW: Final = (
    "a table is read as of a time row by row: do that in a stream of its own, and group or join that stream"
)
DEAD_LETTERS: Final = ".dead_letters"
"""The suffix of the topic of a stream's bad records."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A statement and what it reads."""

    create: Create
    scan: SelectScan | None
    inputs: tuple[str, ...]
    """Names it reads, as declared."""
    streams: tuple[str, ...]
    """Streams it reads, directly or through views."""
    tables: tuple[str, ...]

    @property
    def name(self) -> str:
        """The statement's name."""
        return self.create.name

    @property
    def kind(self) -> str:
        """stream, table, view, sink or source."""
        return self.create.kind

    @property
    def runs(self) -> bool:
        """Whether it runs as a query."""
        return self.kind in (SINK, SOURCE) or (self.create.select is not None and self.kind != VIEW)

    @property
    def has_topic(self) -> bool:
        """Whether its rows are in a topic."""
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
        """Return the text of an option."""
        value = self.create.options.get(name)
        return default if value is None else value.text

    @property
    def topic(self) -> str:
        """Its topic: the option, or its name."""
        return self.option("topic") or self.name

    @property
    def format(self) -> str:
        """The format of its values."""
        default = "debezium" if self.connector == POSTGRES else "json"
        return (self.option("format") or default).lower()

    @property
    def key_format(self) -> str:
        """The format of its key: the option, or JSON for several columns and text for one."""
        has_json_key = len(self.key) > 1 or self.format == "debezium"
        return (self.option("key_format") or ("json" if has_json_key else "string")).lower()

    @property
    def registered(self) -> bool:
        """Whether its values have a schema in a registry."""
        return self.format in REGISTRY_FORMATS and self.has_topic

    @property
    def key_registered(self) -> bool:
        """Whether its keys have a schema in a registry."""
        return self.key_format in REGISTRY_FORMATS and self.has_topic and bool(self.key)

    @property
    def connector(self) -> str:
        """The connector of a source."""
        return (self.option("connector") or "").lower()

    @property
    def temporal_joins(self) -> tuple[TemporalJoin, ...]:
        """The tables it reads as of a time."""
        return find_temporal_joins(self.create.select) if self.create.select is not None else ()

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of its key: the option, or those of a table's plain GROUP BY."""
        option = self.option("key")
        if option is not None:
            return name_list(option)
        if self.kind == TABLE and self.scan is not None and self.scan.group_names:
            return self.scan.group_names
        return ()

    @property
    def final(self) -> bool:
        """Whether rows are written once, when their window has closed, and not at every change."""
        emit = self.option("emit")
        if emit is not None:
            return emit.lower() == "final"
        if self.kind != TABLE:
            return True
        scan = self.scan
        # Rows of session windows and joined streams are emitted once: Spark supports all of them in append mode only.
        return scan is not None and (scan.session or (scan.joined and len(self.streams) > 1))

    @property
    def upserts(self) -> bool:
        """Whether a sink changes rows of its table by their key."""
        return self.kind == SINK and (self.option("mode") or "").lower() == "upsert"

    @property
    def stateful(self) -> bool:
        """Whether its query keeps state between batches."""
        scan = self.scan
        if scan is None:
            return False
        several = scan.joined and len(self.streams) > 1
        return bool(self.streams) and (scan.grouped or scan.distinct or several)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A valid file; each node comes after those it reads."""

    source: SqlSource
    nodes: tuple[GraphNode, ...]
    settings: Mapping[str, str]
    functions: tuple[CreateFunction, ...] = ()
    warnings: tuple[SqlProblem, ...] = ()
    _by_name: dict[str, GraphNode] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {node.name.lower(): node for node in self.nodes})

    def node(self, name: str) -> GraphNode:
        """Return the statement of a name; KeyError when there is none."""
        return self._by_name[name.lower()]

    @property
    def queries(self) -> tuple[GraphNode, ...]:
        """The statements that run as queries."""
        return tuple(node for node in self.nodes if node.runs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The topics it writes."""
        return tuple(node.topic for node in self.nodes if node.runs and node.has_topic)

    def policy(self, node: GraphNode) -> str:
        """Return what happens to bad records. The pipeline's own results must have none, so they fail the query."""
        if node.runs:
            return "fail"
        return (node.option("bad_records") or self.settings.get("bad_records") or "dead_letter").lower()

    def source_policy(self, node: GraphNode) -> str:
        """Return what happens to bad rows of a source; only files have any."""
        if node.connector != "files":
            return "fail"
        # Parquet and ORC have types: a row can only be bad by a null.
        parsed = (node.option("file_format") or "json").lower() in ("json", "csv")
        if not parsed and all(column.nullable for column in node.create.columns):
            return "fail"
        return (node.option("bad_records") or self.settings.get("bad_records") or "dead_letter").lower()

    def looks_up(self, node: GraphNode) -> bool:
        """Whether it joins rows of one stream with tables, without state: then every batch reads the tables again."""
        if node.kind not in (STREAM, TABLE) or len(node.streams) != 1 or not node.tables:
            return False
        views = self.views_of(node)
        stream_names = {stream.lower() for stream in node.streams} | {
            view.name.lower() for view in views if view.streams
        }
        # What relates rows of different batches needs Spark's state, which a join batch by batch does not have.
        scans = [part.scan for part in (node, *views) if part.scan is not None]
        return not any(
            scan.grouped
            or scan.distinct
            or scan.limited
            or sum(reference.name.lower() in stream_names for reference in scan.reads) > 1
            for scan in scans
        )

    def readers_of_capture(self, node: GraphNode) -> list[GraphNode]:
        """Return the table or stream that a capture of a database is the source of."""
        return [reader for reader in self.nodes if node.connector == POSTGRES and capture_of(reader.name) == node.name]

    def views_of(self, node: GraphNode) -> list[GraphNode]:
        """Return the views it reads, directly or through other views."""
        views: dict[str, GraphNode] = {}
        pending = list(node.inputs)
        while pending:
            candidate = self.node(pending.pop())
            if candidate.kind == VIEW and candidate.name not in views:
                views[candidate.name] = candidate
                pending.extend(candidate.inputs)
        return list(views.values())

    @property
    def late_topics(self) -> dict[str, str]:
        """The topics of rows that were late, by the name of the query that has left them out."""
        return {node.name: topic for node in self.queries if (topic := node.option("late_topic"))}

    @property
    def refused_rows(self) -> dict[str, str]:
        """The topics of rows that do not fit the registry's schema, by the name of what writes them.

        A schema that was derived from the columns takes every row; one that the registry had may forbid a null. A table
        of tables compares rows with its topic, so there a row that does not fit fails the query.
        """
        if (self.settings.get("bad_records") or "dead_letter").lower() != "dead_letter":
            return {}
        return {
            node.name: self.settings.get("dead_letter_topic") or f"{node.topic}{DEAD_LETTERS}"
            for node in self.nodes
            if node.runs
            and node.registered
            and not node.recomputed
            and (node.option("schema") or "derive").lower() == "latest"
        }

    @property
    def dead_letters(self) -> dict[str, str]:
        """The dead-letter topics, by the name of the stream, table or source."""
        # A topic that no SELECT reads is not decoded, so it has no bad records.
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
    """Compile a pipeline's text, with `overrides` of its SETs; SqlError has all problems of the text."""
    rewritten, problems = ksql_spelling.rewrite(text)
    source = SqlSource(text, name, rewritten)
    statements, syntax_problems = parse(rewritten.text)
    problems.extend(syntax_problems)
    has_unparsed = bool(problems)
    settings: dict[str, str] = {}
    set_values: dict[str, Value] = {}
    for statement in statements:
        if isinstance(statement, Set):
            problems.extend(check_setting(statement))
            settings[statement.name] = statement.value.text
            set_values[statement.name] = statement.value
    # After the file's own SETs, so that they win; they have no position in the text.
    for setting, value in (overrides or {}).items():
        setting_problems = list(check_setting(Set(setting, Value(value, 0, 0))))
        problems.extend(SqlProblem(0, f"--set: {problem.message}") for problem in setting_problems)
        settings[setting] = value
        set_values[setting] = Value(value, 0, 0)
    creates: dict[str, Create] = {}
    functions = [statement for statement in statements if isinstance(statement, CreateFunction)]
    for statement in statements:
        if not isinstance(statement, Create):
            continue
        if statement.name.lower() in creates:
            line, _ = source.position(creates[statement.name.lower()].offset)
            problems.append(SqlProblem(statement.offset, f"{statement.name} is declared already, in line {line}"))
            continue
        # All problems are collected, so that a file is corrected in one go.
        problems.extend(check_captured(statement))
        for part in split_captured(statement):
            creates[part.name.lower()] = with_defaults(part, set_values)
            problems.extend(check_options(part))
    nodes, name_problems = _resolve(creates, has_unparsed=has_unparsed)
    problems.extend(name_problems)
    for node in nodes:
        problems.extend(_check(node))
        problems.extend([*check_registry(node, settings), *check_changes(node)])
        problems.extend([*check_temporal_joins(node, creates), *check_upsert(node, nodes)])
    problems.extend(_shared_topics(nodes))
    if not creates and not problems:
        problems.append(SqlProblem(0, "the file has no statement: write CREATE STREAM ..."))
    errors = [problem for problem in problems if not problem.warning]
    pipeline = Pipeline(source, tuple(nodes), settings, tuple(functions), tuple(sorted(problems)))
    # Only for a valid graph: `looks_up` follows names that a wrong file may not declare.
    if not errors:
        errors = [
            SqlProblem(moment.offset, _BY_ROW)
            for node in nodes
            for moment in node.temporal_joins
            if not pipeline.looks_up(node)
        ]
    if errors:
        raise SqlError(source, errors)
    return pipeline


def _resolve(creates: Mapping[str, Create], *, has_unparsed: bool) -> tuple[list[GraphNode], list[SqlProblem]]:
    """Return nodes in build order, and problems: unknown names and cycles.

    With `has_unparsed` unknown names are no problem: a statement that could not be parsed may declare them.
    """
    problems: list[SqlProblem] = []
    scans = {name: scan_select(create.select) for name, create in creates.items() if create.select is not None}
    order: list[str] = []
    state: dict[str, int] = {}  # 1 while a name is being visited, 2 when it is done

    def visit(name: str, path: list[tuple[str, TableReference]]) -> None:
        state[name] = 1
        for read in scans[name].reads if name in scans else ():
            target = read.name.lower()
            if target not in creates:
                if not has_unparsed:
                    hint = suggest(read.name, [create.name for create in creates.values() if create.kind != SINK])
                    problems.append(SqlProblem(read.offset, f"there is no stream or table {read.name}{hint}"))
            elif creates[target].kind == SINK:
                problems.append(SqlProblem(read.offset, f"{read.name} is a sink: nothing can be read from it"))
            elif state.get(target) == 1:
                names = [step for step, _ in path] + [name]
                cycle = [creates[step].name for step in names[names.index(target) :]]
                description = " reads ".join([*cycle, creates[target].name])
                problems.append(SqlProblem(read.offset, f"statements read each other in a cycle: {description}"))
            elif target not in state:
                # Depth first: a statement comes after all that it reads.
                visit(target, [*path, (name, read)])
        state[name] = 2
        order.append(name)

    for name in creates:
        # Statements may be written in any order.
        if name not in state:
            visit(name, [])
    nodes: dict[str, GraphNode] = {}
    for name in order:
        scan = scans.get(name)
        inputs = [creates[read.lower()].name for read in (scan.names if scan else ()) if read.lower() in nodes]
        if scan is None and capture_of(name) in nodes:
            # Shown as what it reads; as an input of SELECTs it is the table of a topic, like any other.
            nodes[name] = GraphNode(creates[name], None, (creates[capture_of(name)].name,), (), ())
            continue
        streams: dict[str, None] = {}
        tables: dict[str, None] = {}
        for input_name in dict.fromkeys(inputs):
            node = nodes[input_name.lower()]
            if node.kind == VIEW:
                streams |= dict.fromkeys(node.streams)
                tables |= dict.fromkeys(node.tables)
            else:
                (tables if node.kind == TABLE else streams)[input_name] = None
        nodes[name] = GraphNode(creates[name], scan, tuple(dict.fromkeys(inputs)), tuple(streams), tuple(tables))
    return list(nodes.values()), problems


def _check(node: GraphNode) -> Iterator[SqlProblem]:
    create = node.create
    offset = create.offset
    if create.select is not None:
        yield from _check_derived(node)
        if create.kind == SINK:
            yield from check_sink(node)
    elif create.kind in (VIEW, SINK):
        yield SqlProblem(offset, f"a {create.kind} needs AS SELECT ...")
    elif create.kind in (STREAM, TABLE) and not create.columns and not node.registered:
        yield SqlProblem(
            offset, f"{create.name} has neither columns nor AS SELECT: write ({create.name} columns) first"
        )
    if create.kind == TABLE and not node.key:
        example = create.columns[0].name if create.columns else "id"
        yield SqlProblem(offset, f"a table needs a key: WITH (key = '{example}')")
    if create.kind == SOURCE:
        yield from check_source(node)
    if create.columns:
        yield from check_columns(node)
    if node.option("watermark") is not None and node.option("timestamp") is None:
        yield SqlProblem(create.options["watermark"].name_offset, "a watermark needs timestamp = 'column' beside it")


def _check_derived(node: GraphNode) -> Iterator[SqlProblem]:
    create, scan = node.create, node.scan
    assert scan is not None
    if create.columns and create.kind != SOURCE:
        yield SqlProblem(create.columns[0].offset, "columns are those of the SELECT: leave the list out")
    if create.kind == SOURCE:
        yield SqlProblem(create.offset, "a source takes no SELECT: read its stream in another statement")
    # With an unknown name its inputs cannot be classified: only the unknown name is reported.
    known = len(node.inputs) == len({name.lower() for name in scan.names})
    if not scan.reads:
        yield SqlProblem(create.offset, f"{create.name} reads nothing: its SELECT has no FROM")
    if create.kind == STREAM and known and node.tables and not node.streams:
        yield SqlProblem(create.offset, f"{create.name} reads tables only: CREATE TABLE {create.name} AS SELECT ...")
    if create.kind == VIEW and create.options:
        yield SqlProblem(next(iter(create.options.values())).name_offset, "a view has no topic and no options")
    if create.kind == TABLE and node.streams and scan.having is not None:
        yield SqlProblem(
            scan.having,
            "a row that HAVING drops would stay in the table: use delete_when = 'condition' in WITH instead",
        )
    if create.kind == STREAM and node.option("emit") == "changes":
        yield SqlProblem(
            create.options["emit"].offset, "rows of a stream are never changed: emit = 'changes' is a table's"
        )


def _shared_topics(nodes: list[GraphNode]) -> Iterator[SqlProblem]:
    writers: dict[str, GraphNode] = {}
    for node in nodes:
        if not (node.runs and node.has_topic):
            continue
        if node.topic in writers:
            yield SqlProblem(node.create.offset, f"{writers[node.topic].name} writes to topic {node.topic} already")
        writers[node.topic] = node
    for node in nodes:
        # A capture is read by statements of its topic only.
        if node.has_topic and not node.runs and node.topic in writers and writers[node.topic].connector != POSTGRES:
            message = f"{writers[node.topic].name} writes to topic {node.topic}: read it by that name"
            yield SqlProblem(node.create.offset, message, warning=True)
