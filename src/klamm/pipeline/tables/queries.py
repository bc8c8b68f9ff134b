"""Queries in DuckDB that can only read, and that end: one SELECT, with limits on rows, time and memory.

The database is opened without access to files, network and extensions, and its configuration is locked. A statement
is parsed first, and only a SELECT is run, in a transaction that is read-only.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from klamm.model.errors import ConfigError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa  # type: ignore[import-untyped]

_FETCH_ROWS: Final = 2048
_SQL_CHARS_MAX: Final = 100_000
"""DuckDB's parser recurses: a text of a million parentheses must not reach it."""
_ACCEPTED_MAX: Final = 1000
"""Texts of queries that are remembered as reading only: programs send the same few with other parameters."""
_ACCEPTED_CHARS_MAX: Final = 4000


_SCALARS: Final = frozenset(
    {
        *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
        *("FLOAT", "DOUBLE", "VARCHAR", "BLOB", "DATE", "TIME", "TIMESTAMP"),
    }
)
"""Types whose values DuckDB gives to Python as Arrow does."""
_ZONED: Final = "TIMESTAMP WITH TIME ZONE"


class QueryError(ConfigError):
    """Raised for a query that is refused or that fails, with what to do instead."""

    http_status = 400


class LimitExceeded(QueryError):
    """Raised for a query that was ended because it took more time or memory than it may."""

    http_status = 422


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """What one query may take; `memory_bytes` is that of the whole database, tables in memory among it."""

    rows: int = 10_000
    time_s: float = 30.0
    memory_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if self.rows < 1 or self.time_s <= 0 or self.memory_bytes < 16 << 20:
            raise ConfigError("limits of queries: at least one row, some time and 16 MiB of memory")


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of a query; `truncated` says that there are more than the limit."""

    table: pa.Table
    types: tuple[str, ...]
    truncated: bool

    @property
    def columns(self) -> list[dict[str, str]]:
        """Names and types (as DuckDB names them) of the columns."""
        return [{"name": name, "type": kind} for name, kind in zip(self.table.column_names, self.types, strict=True)]


@dataclass(frozen=True, slots=True)
class RowAnswer:
    """Rows of a query as values of Python; `truncated` says that there are more than the limit."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    truncated: bool

    @property
    def columns(self) -> list[dict[str, str]]:
        """Names and types (as DuckDB names them) of the columns."""
        return [{"name": name, "type": kind} for name, kind in zip(self.names, self.types, strict=True)]


@cache
def _reads_zoned_times() -> bool:
    # DuckDB makes times with a zone by means of it, and does not require it.
    return find_spec("pytz") is not None


def _is_scalar(kind: str) -> bool:
    return kind in _SCALARS or kind.startswith("DECIMAL(") or (kind == _ZONED and _reads_zoned_times())


def open_database(path: str | None, limits: QueryLimits) -> duckdb.DuckDBPyConnection:
    """Open a database, in memory or in a file, that reaches nothing else; duckdb.Error for a damaged file."""
    try:
        import duckdb  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise ConfigError("duckdb is not installed: pip install 'klamm[sql]'") from None
    config = {
        "enable_external_access": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
        "python_enable_replacements": "false",
        "memory_limit": f"{limits.memory_bytes // 1024}KiB",
        # Without a folder to spill to, the memory limit is a limit, and disks do not fill.
        "temp_directory": "",
        "checkpoint_threshold": "256MiB",
    }
    try:
        connection = duckdb.connect(path or ":memory:", config=config)
    except duckdb.IOException as error:
        if "lock" in str(error).lower():
            raise ConfigError(f"{path} is in use by another process") from None
        raise
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    return connection


def lock_database(connection: duckdb.DuckDBPyConnection) -> None:
    """Let no statement change the configuration from now on."""
    connection.execute("SET GLOBAL lock_configuration = true")


def fetch_row(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[Any] = ()
) -> tuple[Any, ...] | None:
    """Return the first row of a statement; all are fetched, because an unfinished result blocks the connection."""
    rows = connection.execute(sql, list(parameters)).fetchall()
    return rows[0] if rows else None


def check_statement(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Return the text of the one SELECT; QueryError when it is something else."""
    import duckdb  # noqa: PLC0415

    if len(sql) > _SQL_CHARS_MAX:
        raise QueryError(f"a query has at most {_SQL_CHARS_MAX} characters")
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise QueryError(_first_lines(error)) from None
    if not statements:
        raise QueryError("the query is empty: write SELECT ...")
    if len(statements) > 1:
        raise QueryError("write one SELECT: several statements are refused")
    (statement,) = statements
    if statement.type != duckdb.StatementType.SELECT:
        kind = str(statement.type).rpartition(".")[2]
        raise QueryError(f"only SELECT can be run here, this is {kind}")
    return str(statement.query)


def bind_table_names(connection: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    """Return the names that a statement reads, DESCRIBE too; QueryError for a function or file that it may not use."""
    import duckdb  # noqa: PLC0415

    try:
        return sorted(connection.get_table_names(sql))
    except duckdb.Error as error:
        raise QueryError(_first_lines(error)) from None


class QueryRunner:
    """Runs queries on one database, from any thread."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, limits: QueryLimits) -> None:
        self._connection = connection
        self.limits = limits
        self._lock = threading.Lock()
        self._idle: list[duckdb.DuckDBPyConnection] = []
        self._accepted: dict[str, str] = {}
        self._watchdog = _Watchdog(limits.time_s)

    def run(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), *, max_rows: int | None = None
    ) -> Answer:
        """Return the answer to a SELECT; QueryError when it is refused or fails, LimitExceeded when it was ended."""
        with self._reading(sql) as (cursor, text):
            return self._fetch(cursor, text, parameters, self._row_limit(max_rows))

    def run_rows(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), *, max_rows: int | None = None
    ) -> RowAnswer:
        """Return the answer to a SELECT as rows: half the time of `run` for few rows."""
        limit = self._row_limit(max_rows)
        with self._reading(sql) as (cursor, text):
            answer = self._fetch_rows(cursor, text, parameters, limit)
            if answer is not None:
                return answer
            table = self._fetch(cursor, text, parameters, limit)
        columns = [column.to_pylist() for column in table.table.columns]
        rows = list(zip(*columns, strict=True))
        return RowAnswer(tuple(table.table.column_names), table.types, rows, table.truncated)

    def _row_limit(self, max_rows: int | None) -> int:
        return min(max_rows or self.limits.rows, self.limits.rows)

    @contextmanager
    def _reading(self, sql: str) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
        """Yield a connection and the text to run on it, which has been checked."""
        accepted = self._accepted.get(sql)
        cursor = self._acquire()
        try:
            text = check_statement(cursor, sql) if accepted is None else accepted
            with self._limit(cursor, read_only=accepted is None):
                yield cursor, text
        finally:
            self._release(cursor)
        # A text that a read-only transaction has run changes nothing: the next time it needs neither the check nor such
        # a transaction, which are a third of the time of a point query.
        # Not with the function query(), whose statement may be a parameter.
        is_fixed = "query" not in text.lower()
        if is_fixed and len(text) <= _ACCEPTED_CHARS_MAX and len(self._accepted) < _ACCEPTED_MAX:
            self._accepted[sql] = text

    def _acquire(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            return self._idle.pop() if self._idle else self._connection.cursor()

    def _release(self, cursor: duckdb.DuckDBPyConnection) -> None:
        with self._lock:
            self._idle.append(cursor)

    def close(self) -> None:
        """Close the connections of queries."""
        self._watchdog.close()
        with self._lock:
            for cursor in self._idle:
                cursor.close()
            self._idle.clear()

    @contextmanager
    def _limit(self, cursor: duckdb.DuckDBPyConnection, *, read_only: bool) -> Iterator[None]:
        """Limit the time of a query, open a transaction that cannot write, and raise errors as QueryError."""
        import duckdb  # noqa: PLC0415
        import pyarrow as pa  # noqa: PLC0415

        try:
            with self._watchdog.watch(cursor):
                if read_only:
                    cursor.execute("BEGIN TRANSACTION READ ONLY")
                yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise self._explain(error) from None
        finally:
            if read_only:
                with suppress(duckdb.Error):
                    cursor.execute("ROLLBACK")

    def _explain(self, error: Exception) -> QueryError:
        """Return what went wrong; errors while rows are fetched come as Arrow's, with DuckDB's text."""
        text = str(error)
        if "INTERRUPT Error" in text:
            return LimitExceeded(
                f"the query took longer than {self.limits.time_s:g} s: narrow it, or raise the time limit"
            )
        if "Out of Memory Error" in text:
            return LimitExceeded(
                f"the query needs more than {self.limits.memory_bytes >> 20} MiB of memory:"
                " narrow it, or raise the memory limit"
            )
        return QueryError(_first_lines(error))

    def _fetch_rows(
        self, cursor: duckdb.DuckDBPyConnection, sql: str, parameters: Any, max_rows: int
    ) -> RowAnswer | None:
        """Return the rows; None if a column has values that Python gets otherwise than by Arrow."""
        cursor.execute(sql, parameters or None)
        try:
            description = cursor.description or []
            types = tuple(str(column[1]) for column in description)
            if not all(map(_is_scalar, types)):
                return None
            rows: list[tuple[Any, ...]] = []
            size = 0
            # Rows are computed as they are fetched; one more than the limit shows that there are more.
            while len(rows) <= max_rows:
                part = cursor.fetchmany(min(_FETCH_ROWS, max_rows + 1 - len(rows)))
                if not part:
                    break
                rows += part
                # DuckDB's own limit does not count single long texts.
                size += sum(len(value) for row in part for value in row if isinstance(value, str | bytes))
                if size > self.limits.memory_bytes:
                    raise self._answer_too_large()
        finally:
            # An unfinished result would keep the transaction from ending.
            cursor.abort()
        names = tuple(str(column[0]) for column in description)
        return RowAnswer(names, types, rows[:max_rows], len(rows) > max_rows)

    def _answer_too_large(self) -> LimitExceeded:
        return LimitExceeded(f"the answer has more than {self.limits.memory_bytes >> 20} MiB: narrow it")

    def _fetch(self, cursor: duckdb.DuckDBPyConnection, sql: str, parameters: Any, max_rows: int) -> Answer:
        import pyarrow as pa  # noqa: PLC0415

        relation = cursor.sql(sql, params=parameters or None)
        types = tuple(str(kind) for kind in relation.types)
        reader = relation.to_arrow_reader(_FETCH_ROWS)
        batches: list[pa.RecordBatch] = []
        rows = size = 0
        try:
            # Rows are computed as they are fetched; one more than the limit shows that there are more.
            while rows <= max_rows:
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    break
                rows += batch.num_rows
                batches.append(batch)
                # DuckDB's own limit does not count single long texts.
                size += batch.nbytes
                if size > self.limits.memory_bytes:
                    raise self._answer_too_large()
            table = pa.Table.from_batches(batches, schema=reader.schema)
        finally:
            # An open result would keep the transaction from ending.
            reader.close()
        return Answer(table.slice(0, max_rows), types, rows > max_rows)


def read_table_names(cursor: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    """Return the names that a SELECT reads and does not define itself, by DuckDB's parser."""
    row = fetch_row(cursor, "SELECT json_serialize_sql(?)", [sql])
    tree = json.loads(row[0]) if row is not None else {}
    if tree.get("error"):
        return []  # DESCRIBE and the like, which have no tree
    names: dict[str, None] = {}
    defined: set[str] = set()
    pending: list[Any] = [tree]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending.extend(part)
        elif isinstance(part, dict):
            if part.get("type") == "BASE_TABLE":
                names[part["table_name"]] = None
            defined |= {entry["key"].lower() for entry in (part.get("cte_map") or {}).get("map", ())}
            pending.extend(part.values())
    return [name for name in names if name.lower() not in defined]


class _Watchdog:
    """Interrupts queries that take too long: one thread for all of them, because starting one per query costs more
    than most queries.
    """

    def __init__(self, time_s: float) -> None:
        self._time_s = time_s
        self._changed = threading.Condition()
        # All queries have the same limit, so that the oldest, which is the first, is the next to end.
        self._running: dict[int, tuple[float, duckdb.DuckDBPyConnection]] = {}
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextmanager
    def watch(self, cursor: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """Interrupt what a connection runs inside of this context when its time is over."""
        number = next(self._numbers)
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, name="klamm-query-watchdog", daemon=True)
                self._thread.start()
            self._running[number] = time.monotonic() + self._time_s, cursor
            if len(self._running) == 1:
                self._changed.notify()
        try:
            yield
        finally:
            # Under the lock: an interrupt that comes later would hit the connection's next query.
            with self._changed:
                self._running.pop(number, None)

    def _follow(self) -> None:
        with self._changed:
            while not self._closed:
                if not self._running:
                    self._changed.wait()
                    continue
                number, (deadline, cursor) = next(iter(self._running.items()))
                left = deadline - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                del self._running[number]
                cursor.interrupt()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()


def _first_lines(error: Exception) -> str:
    """Return an error of DuckDB without what follows: suggestions from its catalog, and a picture of the statement."""
    return str(error).split("\n\n")[0].split("\nDid you mean")[0].strip()
