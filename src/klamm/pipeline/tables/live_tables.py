"""The tables of a pipeline file, followed and queried: `open_tables("bank.sql")`.

    with open_tables("bank.sql") as tables:
        tables.query("SELECT * FROM balances WHERE balance > ?", [100])     # an Arrow table
        tables.get("balances", "ada")                                       # a row as a dict, or None
        for change in tables.watch("SELECT * FROM balances"): ...           # rows that come and go

A client of the cluster: it needs neither Spark nor the process that runs the pipeline.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from klamm.model.errors import ConfigError
from klamm.pipeline.sql.core.graph import GraphNode, Pipeline, compile_text
from klamm.pipeline.sql.core.problems import suggest
from klamm.pipeline.sql.core.statement_options import CDC_OPTIONS
from klamm.pipeline.sql.core.statements import TABLE
from klamm.pipeline.sql.registry_schemas import resolve
from klamm.pipeline.tables.core.answer_changes import CAME, Change, compare_answers
from klamm.pipeline.tables.core.field_types import quote_identifier
from klamm.pipeline.tables.core.inferred_columns import InferredColumns
from klamm.pipeline.tables.core.text_values import BadValue, from_text
from klamm.pipeline.tables.follower import FollowedTable, TopicFollower
from klamm.pipeline.tables.queries import (
    Answer,
    QueryError,
    QueryLimits,
    QueryRunner,
    RowAnswer,
    bind_table_names,
    check_statement,
)
from klamm.pipeline.tables.record_reader import make_record_reader
from klamm.pipeline.tables.store import TableStore
from klamm.pipeline.tables.table_columns import known_columns

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

WATCH_PAUSE_S: Final = 0.1
"""The least time between two looks of a push query: changes in between are seen together."""


def open_tables(
    file: str | os.PathLike[str] | Pipeline,
    *,
    tables: Iterable[str] | None = None,
    bootstrap: str | None = None,
    store: str | os.PathLike[str] | None = None,
    limits: QueryLimits | None = None,
    client: Mapping[str, Any] | None = None,
    settings: Mapping[str, str] | None = None,
    wait: bool = True,
    timeout_s: float | None = None,
    report: Callable[[int], None] | None = None,
) -> LiveTables:
    """Follow the tables of a pipeline file, all of them or those named; returns when they are caught up.

    `store` is a folder to keep rows and positions in, so that the next start continues there; without it rows are in
    memory. `client` are settings of the consumer, `settings` override SETs of the file. With `wait=False` it returns
    at once, and answers are of what was read so far. `report` is called with the number of records still to be read.
    """
    pipeline = file if isinstance(file, Pipeline) else _compile(os.fspath(file), bootstrap, settings)
    live = LiveTables(pipeline, tables, store, limits or QueryLimits(), client or {}, bootstrap)
    try:
        live.start()
        if wait:
            live.catch_up(timeout_s, report)
    except BaseException:
        live.close()
        raise
    return live


def _compile(path: str, bootstrap: str | None, settings: Mapping[str, str] | None) -> Pipeline:
    with open(path, encoding="utf-8") as handle:
        text = handle.read()
    overrides = dict(settings or {})
    if bootstrap is not None:
        overrides["bootstrap"] = bootstrap
    return compile_text(text, path, overrides)


class LiveTables:
    """Tables that are followed until `close`; methods may be called from any thread."""

    def __init__(
        self,
        pipeline: Pipeline,
        names: Iterable[str] | None,
        store: str | os.PathLike[str] | None,
        limits: QueryLimits,
        client: Mapping[str, Any],
        bootstrap: str | None = None,
    ) -> None:
        self._pipeline = resolve(pipeline)
        self._client = {**client, **({} if bootstrap is None else {"bootstrap.servers": bootstrap})}
        self._nodes = {node.name.lower(): node for node in _choose(self._pipeline, names)}
        self.limits = limits
        self._store = TableStore(None if store is None else os.fspath(store), limits)
        try:
            self._runner = QueryRunner(self._store.connection, limits)
            self._followed = {key: self._follow_node(node) for key, node in self._nodes.items()}
            self._store.lock()
            self._follower = TopicFollower(
                self._followed.values(), self._store, consumer_settings(self._pipeline, client, bootstrap), self._notify
            )
        except BaseException:
            self._store.close()
            raise
        self._changed = threading.Condition()
        self._versions: dict[str, int] = dict.fromkeys((table.name for table in self._followed.values()), 0)
        self._goals: Mapping[Any, int] | None = None
        self._ready = False
        self._closed = False

    def _follow_node(self, node: GraphNode) -> FollowedTable:
        columns = known_columns(self._pipeline, node, self._client)
        inferred = None
        if columns is None:
            inferred = InferredColumns(self._store.inferred_types(node.name))
            columns = ()
        reader = make_record_reader(self._pipeline, node, columns, inferred)
        self._store.add_table(node.name, node.topic, node.key, reader.columns, _describe(node, columns))
        return FollowedTable(node.name, node.topic, reader)

    # Life

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Connect and begin to follow."""
        self._follower.start()

    def close(self) -> None:
        """Stop following and close the store; push queries end."""
        if self._closed:
            return
        self._closed = True
        with self._changed:
            self._changed.notify_all()
        self._follower.close()
        self._runner.close()
        self._store.close()

    def _notify(self, names: frozenset[str]) -> None:
        with self._changed:
            for name in names:
                self._versions[name] += 1
            self._changed.notify_all()

    def catch_up(self, timeout_s: float | None = None, report: Callable[[int], None] | None = None) -> None:
        """Wait until everything that is in the topics now was read; KafkaTimeoutError after `timeout_s`."""
        self._follower.wait_for(self._follower.ends(), timeout_s, report)
        self._ready = True

    @property
    def ready(self) -> bool:
        """Whether the tables were caught up with their topics once."""
        if not self._ready and not self._closed and self._follower.error is None:
            self._goals = self._goals or self._follower.ends()
            self._ready = not self._follower.behind(self._goals)
        return self._ready

    @property
    def error(self) -> BaseException | None:
        """Why tables are not followed now; answers are of what was read before."""
        return self._follower.error

    # Pull queries

    @property
    def names(self) -> list[str]:
        """The tables that are followed."""
        return [node.name for node in self._nodes.values()]

    def query(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), *, max_rows: int | None = None
    ) -> pa.Table:
        """Return the answer to a SELECT as an Arrow table; QueryError when it is refused, or cut at the row limit."""
        answer = self.answer(sql, parameters, max_rows=max_rows)
        if answer.truncated and max_rows is None:
            raise QueryError(f"the answer has more than {self.limits.rows} rows: use LIMIT, or raise the row limit")
        return answer.table

    def answer(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), *, max_rows: int | None = None
    ) -> Answer:
        """Return the answer to a SELECT, at most so many rows of it."""
        self._check_open()
        try:
            return self._runner.run(sql, parameters, max_rows=max_rows)
        except QueryError as error:
            raise self._explain(error) from None

    def answer_rows(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), *, max_rows: int | None = None
    ) -> RowAnswer:
        """Return the answer to a SELECT as values of Python, at most so many rows of it."""
        self._check_open()
        try:
            return self._runner.run_rows(sql, parameters, max_rows=max_rows)
        except QueryError as error:
            raise self._explain(error) from None

    def get(self, table: str, key: Any) -> dict[str, Any] | None:
        """Return the row of a key; None when there is none.

        The key of several columns is a dict or a sequence. Text is parsed as the column's type.
        """
        node = self._node(table)
        parts = [key[name] for name in node.key] if isinstance(key, Mapping) else key
        values = list(parts) if isinstance(parts, list | tuple) else [parts]
        if len(values) != len(node.key):
            raise QueryError(f"the key of {node.name} is {', '.join(node.key)}: {len(node.key)} values")
        types = {name.lower(): kind for name, kind in self._followed[node.name.lower()].reader.columns}
        for index, name in enumerate(node.key):
            if isinstance(values[index], str):
                try:
                    values[index] = from_text(values[index], types[name.lower()])
                except BadValue as error:
                    raise QueryError(f"{name}: {error}") from None
        condition = " AND ".join(f"{quote_identifier(name)} = ?" for name in node.key)
        answer = self.answer_rows(f"SELECT * FROM {quote_identifier(node.name)} WHERE {condition}", values)
        return dict(zip(answer.names, answer.rows[0], strict=True)) if answer.rows else None

    def _node(self, name: str) -> GraphNode:
        node = self._nodes.get(name.lower())
        if node is None:
            raise _unknown_table(name, self.names)
        return node

    def _check_open(self) -> None:
        if self._closed:
            raise QueryError("the tables are closed")

    def _explain(self, error: QueryError) -> QueryError:
        """Say of a name that is no table what it is in the file."""
        for node in self._pipeline.nodes:
            if f"Table with name {node.name} does not exist" in str(error) and node.name.lower() not in self._nodes:
                if node.kind == TABLE:
                    return QueryError(f"{node.name} is not followed here: only {', '.join(self.names)}")
                return QueryError(f"{node.name} is a {node.kind}, no table: `klamm sql` reads its topic")
        return error

    # Push queries

    def open_watch(self, sql: str, *, snapshot: bool = True) -> Watch:
        """Begin a push query; QueryError when it is refused."""
        self._check_open()
        return Watch(self, sql, snapshot=snapshot)

    def watch(self, sql: str, *, snapshot: bool = True) -> Iterator[Change]:
        """Yield the rows of the answer, and then those that come and go; ends when the tables are closed."""
        watch = self.open_watch(sql, snapshot=snapshot)
        while (changes := watch.next_changes(1.0)) is not None:
            yield from changes

    def version_of(self, names: Iterable[str]) -> tuple[int, ...]:
        """Return a value that changes with the rows of these tables."""
        with self._changed:
            return tuple(self._versions[name] for name in names)

    def wait_for_change(
        self, names: Sequence[str], version: tuple[int, ...], timeout_s: float, ended: threading.Event
    ) -> bool:
        """Wait until the rows of these tables are newer than `version`; False after `timeout_s`, or when closed.

        Who sets `ended` calls `wake_watches`, and the wait returns False.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while tuple(self._versions[name] for name in names) == version:
                left = deadline - time.monotonic()
                if left <= 0 or self._closed or ended.is_set():
                    return False
                self._changed.wait(left)
        return not self._closed

    def wake_watches(self) -> None:
        """Let push queries look whether they have ended."""
        with self._changed:
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def tables_in(self, sql: str) -> list[str]:
        """Return the tables that a query reads; all of them when DuckDB does not say."""
        names = {name.lower() for name in self._store.table_names(sql)}
        return [node.name for key, node in self._nodes.items() if key in names] or self.names

    def status(self) -> list[dict[str, Any]]:
        """Return what is known of each table."""
        try:
            ends = {} if self.error is not None else self._follower.ends()
        except Exception:  # noqa: BLE001 - the lag is not known while the cluster does not answer
            ends = {}
        rows = self._store.row_counts()
        status = []
        for key, node in self._nodes.items():
            followed = self._followed[key]
            lag = sum(
                max(end - followed.positions.get(where.partition, 0), 0)
                for where, end in ends.items()
                if where.topic == followed.topic
            )
            status.append(
                {
                    "table": node.name,
                    "topic": node.topic,
                    "key": list(node.key),
                    "columns": {name: str(kind) for name, kind in followed.reader.columns},
                    "rows": rows.get(node.name, 0),
                    "records": followed.records,
                    "bad_records": self._store.bad_count(node.name),
                    "last_error": followed.bad_samples[-1].error if followed.bad_samples else None,
                    "lag_records": lag if ends else None,
                }
            )
        return status


class Watch:
    """A push query: its last answer, and what has changed since. Only `close` is safe across threads."""

    def __init__(self, tables: LiveTables, sql: str, *, snapshot: bool) -> None:
        self._tables = tables
        self._sql = sql
        self._reads = tables.tables_in(sql)
        self._version = tables.version_of(self._reads)
        self._rows, self.names = self._read_rows()
        self._pending = [Change(CAME, row) for row in self._rows] if snapshot else []
        self._looked = time.monotonic()
        self._ended = threading.Event()

    def _read_rows(self) -> tuple[list[tuple[Any, ...]], list[str]]:
        answer = self._tables.answer(self._sql)
        if answer.truncated:
            raise QueryError(
                f"a watched answer has at most {self._tables.limits.rows} rows: narrow it, or raise the row limit"
            )
        columns = [column.to_pylist() for column in answer.table.columns]
        return list(zip(*columns, strict=True)), answer.table.column_names

    def next_changes(self, timeout_s: float) -> list[Change] | None:
        """Return the next changes, none of them after `timeout_s`; None when it or the tables were closed."""
        if self._pending:
            pending, self._pending = self._pending, []
            return pending
        if not self._tables.wait_for_change(self._reads, self._version, timeout_s, self._ended):
            return None if self._tables.closed or self._ended.is_set() else []
        # Many small batches are one read: the pause bounds what a busy table costs.
        time.sleep(max(self._looked + WATCH_PAUSE_S - time.monotonic(), 0.0))
        self._version = self._tables.version_of(self._reads)
        try:
            rows, _ = self._read_rows()
        except QueryError:
            if self._tables.closed:
                return None
            raise
        self._looked = time.monotonic()
        changes = compare_answers(self._rows, rows)
        self._rows = rows
        return changes

    def close(self) -> None:
        """End it, also while another thread waits for changes."""
        self._ended.set()
        self._tables.wake_watches()


def _choose(pipeline: Pipeline, names: Iterable[str] | None) -> list[GraphNode]:
    tables = [node for node in pipeline.nodes if node.kind == TABLE]
    if names is None:
        if not tables:
            raise ConfigError(f"{pipeline.source.name} has no table")
        return tables
    by_name = {node.name.lower(): node for node in pipeline.nodes}
    chosen = []
    for name in names:
        node = by_name.get(name.lower())
        if node is None:
            raise _unknown_table(name, [table.name for table in tables])
        if node.kind != TABLE:
            raise QueryError(f"{node.name} is a {node.kind}, no table: `klamm sql` reads its topic")
        chosen.append(node)
    return chosen


def _unknown_table(name: str, known: Iterable[str]) -> QueryError:
    """Return the error of a name that the file does not have, with a similar one or with all that it has."""
    names = sorted(known)
    known_names = f"; the file has {', '.join(names)}" if names else ""
    return QueryError(f"there is no table {name}{suggest(name, names) or known_names}")


def consumer_settings(pipeline: Pipeline, client: Mapping[str, Any], bootstrap: str | None) -> dict[str, Any]:
    """Return the settings of the consumer: the file's `kafka.*` and `bootstrap` win over those given, as in a run."""
    from klamm.pipeline.sql.topics import ClusterTopics  # noqa: PLC0415 - imports the sinks of lakes

    given = {**client, **({"bootstrap.servers": bootstrap} if bootstrap is not None else {})}
    return ClusterTopics(pipeline, given).consumer_settings()


def tables_of_query(sql: str) -> list[str]:
    """Return the names that a query reads, without a store; QueryError when it is no SELECT."""
    from klamm.pipeline.tables.queries import open_database  # noqa: PLC0415

    connection = open_database(None, QueryLimits())
    try:
        return bind_table_names(connection, check_statement(connection, sql))
    finally:
        connection.close()


def _describe(node: GraphNode, columns: Sequence[Any]) -> str:
    """Return what stored rows depend on: with another description a store is built anew."""
    described = [f"{column.name} {column.type} {column.metadata or ''} {column.nullable}" for column in columns]
    options = [f"{name}={value.text}" for name, value in sorted(node.create.options.items()) if name in _DECODING]
    return "; ".join([node.topic, node.format, node.key_format, ",".join(node.key), *described, *options])


_DECODING: Final = ("subject", "key_subject", "message", "timestamp_format", "json", *CDC_OPTIONS)
"""Options that decide what a record's columns are."""
