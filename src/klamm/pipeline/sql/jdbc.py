"""Copies database tables into topics, each row once: `CREATE SOURCE ... WITH (connector = 'jdbc', ...)`.

Spark has no streaming source for databases, so this is a polling loop in the driver. A batch is a range of the cursor
column. Its range is written to the checkpoint before it is read, its rows go to the topic as a numbered write, which
happens once, and then it is marked as done. After a crash a range without the mark is read again, under its number.
"""

# ruff: noqa: S608 - table and query are the SQL of the pipeline's author, who may run any

from __future__ import annotations

import functools
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from klamm.model.errors import ConfigError, ErrorCode, KlammError
from klamm.pipeline.polled_query import POLL_S, PolledQuery, PolledWriter
from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
from klamm.pipeline.sql.core.jdbc_cursors import (
    BEFORE_ALL,
    INTEGER,
    TIMESTAMP,
    CursorRange,
    StablePositions,
    choose_width,
    literal,
)
from klamm.pipeline.sql.core.row_expressions import ddl
from klamm.pipeline.sql.core.secrets import expand, is_secret, mask_secrets
from klamm.pipeline.sql.core.statement_options import duration_ms
from klamm.pipeline.sql.jdbc_positions import JdbcPositions
from klamm.pipeline.sql.spark_jvm import active_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)
DEFAULT_BATCH: Final = 10_000
DEFAULT_DELAY: Final = "1 second"
DEFAULT_FETCH: Final = "1000"
"""Rows per fetch: some drivers hold a whole result in memory by default."""
_CAUSES_MAX: Final = 50
_MISSING_DRIVER: Final = ("No suitable driver", "java.lang.ClassNotFoundException", "DriverWrapper")
_INTEGER_TYPES: Final = ("byte", "short", "integer", "long")
Save = Callable[["DataFrame", int], None]


class JdbcError(KlammError):
    """Raised for an error of the database or its driver, with secrets masked."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, message)


class Database:
    """One table or query of a database, as a source's options name it."""

    def __init__(self, spark: SparkSession, node: GraphNode, environment: Mapping[str, str] | None = None) -> None:
        variables = os.environ if environment is None else environment
        self.spark = spark
        self.node = node
        options = {name: expand(option.text, variables, name) for name, option in node.create.options.items()}
        self._secrets = [options[name] for name in options if is_secret(name)]
        self.cursor = options["cursor"]
        query = options.get("query")
        self._relation = f"({query.strip().rstrip(';')}) klamm_rows" if query else options["table"]
        self._options = {
            "url": options["url"],
            # Otherwise Spark shifts timestamps by the session's time zone.
            "preferTimestampNTZ": "true",
            **{name: options[name] for name in ("driver", "user", "password") if name in options},
            "fetchsize": options.get("fetch_size", DEFAULT_FETCH),
            **{name.removeprefix("option."): option for name, option in options.items() if name.startswith("option.")},
        }
        self._kind: str | None = None

    def _query(self, query: str) -> DataFrame:
        return self.spark.read.format("jdbc").options(**self._options).option("query", query).load()

    def wrap_error(self, error: Exception) -> JdbcError:
        """Return an error that may be shown: Spark's message and the driver's root cause, without secrets."""
        message = _first_line(str(error)) or type(error).__name__
        cause = _root_cause(error)
        if cause is not None and cause not in message:
            message = cause if message.startswith("An error occurred while calling") else f"{message}: {cause}"
        if any(sign in message for sign in _MISSING_DRIVER):
            message += "; name its class by driver and its jar by driver_jar, or SET spark.jars.packages"
        return JdbcError(f"{self.node.name}: {mask_secrets(message, self._secrets)}")

    @contextmanager
    def named_jobs(self, group: str) -> Iterator[None]:
        """Run jobs of this thread in this session, under a job group that can be cancelled."""
        # A new JVM thread inherits the session of another one, which may lack the functions that this one registered.
        with active_session(self.spark):
            self.spark.sparkContext.setJobGroup(group, self.node.name)
            yield

    def interrupt(self, group: str) -> None:
        """Cancel the jobs of a group."""
        self.spark.sparkContext.cancelJobGroup(group)

    def shape(self) -> DataFrame:
        """Return a frame with the columns of the source, which is never computed."""
        columns = self.node.create.columns
        if columns:
            return self.spark.createDataFrame([], ddl(columns))
        try:
            return _in_utc(self._query(f"SELECT * FROM {self._relation}"))
        except Exception as error:  # noqa: BLE001 - drivers raise any exception
            raise self.wrap_error(error) from None

    def rows(self, wanted: CursorRange) -> DataFrame:
        """Return the rows of a range in the order of the cursor. One task reads them, which keeps the order."""
        frame = self._query(f"SELECT * FROM {self._relation} WHERE {wanted.condition(self.cursor)}")
        name = _find_column(self.cursor, frame.columns)
        # Not ORDER BY in the database: a subquery's order is not guaranteed there.
        frame = frame.sortWithinPartitions(quote_name(name))
        columns = self.node.create.columns
        if not columns:
            return _in_utc(frame)
        existing = {column.lower() for column in frame.columns}
        missing = [column.name for column in columns if column.name.lower() not in existing]
        if missing:
            raise ConfigError(f"{self.node.name}: the database has no column {missing[0]}: {', '.join(frame.columns)}")
        return frame.selectExpr(
            *(f"cast({quote_name(column.name)} AS {column.type}) AS {quote_name(column.name)}" for column in columns)
        )

    def bounds(self, start: int | None) -> tuple[int, int] | None:
        """Return the smallest and the greatest position from `start` on; None when there is no row."""
        where = f"{self.cursor} IS NOT NULL" if start is None else self._from(start)
        minimum, maximum = f"MIN({self.cursor}) AS klamm_least", f"MAX({self.cursor}) AS klamm_most"
        # One query for both: the table may change between two.
        row = self._positions(f"SELECT {minimum}, {maximum} FROM {self._relation} WHERE {where}")
        return None if row is None or row[0] is None else (int(row[0]), int(row[1]))

    def count(self, start: int, width: int) -> int:
        """Return how many rows are in the `width` positions from `start` on."""
        condition = CursorRange(self.kind, start, start + width).condition(self.cursor)
        (row,) = self._query(f"SELECT COUNT(*) AS klamm_rows FROM {self._relation} WHERE {condition}").collect()
        return int(row[0])

    @property
    def kind(self) -> str:
        """The type of positions: known after the first `bounds`."""
        assert self._kind is not None
        return self._kind

    def _from(self, start: int) -> str:
        if self._kind is None:  # the first query after a restart: the column's type decides how a position is written
            self._kind = self._kind_of(
                self._query(f"SELECT MAX({self.cursor}) AS klamm_most FROM {self._relation}").schema.fields[0]
            )
        return f"{self.cursor} >= {literal(self.kind, start)}"

    def _positions(self, query: str) -> Any:
        frame = self._query(query)
        self._kind = self._kind_of(frame.schema.fields[0])
        shape = "cast({} AS DECIMAL(38, 0))" if self._kind == INTEGER else "unix_micros(cast({} AS TIMESTAMP))"
        return frame.selectExpr(*(shape.format(quote_name(column)) for column in frame.columns)).first()

    def _kind_of(self, field: Any) -> str:
        name = field.dataType.typeName()
        if (
            name in _INTEGER_TYPES
            or (name == "decimal" and field.dataType.scale == 0)
            or _is_unsized_number(field.dataType)
        ):
            return INTEGER
        if name == "timestamp_ntz":
            return TIMESTAMP
        message = (
            f"the cursor {self.cursor} is {field.dataType.simpleString()}; it must be a whole number or a timestamp"
        )
        if name == "timestamp":
            message += " without a time zone: convert it in query = 'SELECT ...'"
        raise ConfigError(f"{self.node.name}: {message}")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _root_cause(error: Exception) -> str | None:
    """Return the message of the innermost JVM exception; None when there is none."""
    exception: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    # Bounded: a chain of causes may be circular.
    for _ in range(_CAUSES_MAX):
        cause = exception.getCause() if exception is not None else None
        if cause is None:
            break
        exception = cause
    return None if exception is None else _first_line(str(exception.toString()))


def _is_unsized_number(kind: Any) -> bool:
    """Whether a type is Oracle's NUMBER without a size, as Spark maps it."""
    return bool(kind.typeName() == "decimal" and (kind.precision, kind.scale) == (38, 10))


def _in_utc(frame: DataFrame) -> DataFrame:
    """Return the frame with timestamps without a zone taken as UTC, as everywhere in a pipeline."""
    times = {field.name for field in frame.schema.fields if field.dataType.typeName() == "timestamp_ntz"}
    shape = "cast({0} AS TIMESTAMP) AS {0}"
    return frame.selectExpr(
        *(shape.format(quote_name(column)) if column in times else quote_name(column) for column in frame.columns)
    )


def _find_column(cursor: str, names: list[str]) -> str:
    """Return the frame's column of a cursor, which is written in the database's SQL and may be quoted."""
    bare = cursor.rsplit(".", 1)[-1].strip('"`[]').lower()
    for name in names:
        if name.lower() == bare:
            return name
    raise ConfigError(f"the cursor {cursor} is not a column of the rows read: {', '.join(names)}")


class JdbcPoller(PolledQuery):
    """A running source."""

    def __init__(
        self,
        name: str,
        database: Database,
        positions: JdbcPositions,
        save: Save,
        *,
        once: bool,
        interval_s: float = POLL_S,
    ) -> None:
        super().__init__(name, once=once, interval_s=interval_s)
        node = database.node
        self._database = database
        self._positions = positions
        self._save = save
        self._batch = int(node.option("batch_size") or DEFAULT_BATCH)
        self._latest = (node.option("starting") or "earliest").lower() == "latest"
        self._stable_positions = StablePositions((duration_ms(node.option("delay") or DEFAULT_DELAY) or 0) / 1000)
        self._width = self._batch
        self._group = f"klamm-jdbc-{name}-{uuid.uuid4().hex}"

    def interrupt(self) -> None:
        """Cancel the running batch."""
        # Job groups are per thread: only this source's jobs are cancelled.
        self._database.interrupt(self._group)

    def wrap_error(self, error: Exception) -> Exception:
        """Return an error that may be shown: drivers and Spark raise any exception, with any text."""
        return error if isinstance(error, KlammError | ConfigError) else self._database.wrap_error(error)

    def run_loop(self) -> None:
        """Poll until stopped."""
        with self._database.named_jobs(self._group):
            self._loop()

    def _loop(self) -> None:
        last_position: int | None = None
        batch_number, start = self._recover()
        while not self.stopping.is_set():
            bounds = self._database.bounds(start)
            if self.once:
                # Fixed by the first query: a table that grows all the time would never be finished otherwise.
                last_position = bounds[1] if last_position is None and bounds is not None else last_position
                if bounds is None or (last_position is not None and bounds[0] > last_position):
                    return
            stable = self._stable_positions.observe(time.monotonic(), bounds and bounds[1])
            if bounds is not None and stable is not None and bounds[0] <= stable:
                batch_number += 1
                # Without a pause: there may be more rows.
                start = self._run_next_batch(batch_number, start, bounds[0], stable)
                continue
            waiting_s = self._stable_positions.wait_s(time.monotonic())
            self.stopping.wait(waiting_s if waiting_s and self.once else self.interval_s)

    def _recover(self) -> tuple[int, int | None]:
        """Finish the last batch; return its number, and where the next one begins."""
        last = self._positions.last()
        if last is None:
            if not self._latest:
                return -1, None
            bounds = self._database.bounds(None)
            position = BEFORE_ALL if bounds is None else bounds[1] + 1
            # An empty range marks where "latest" was at the first start, so that a restart does not skip rows.
            self._positions.begin(0, CursorRange(self._database.kind, position, position))
            self._positions.mark_done(0)
            return 0, None if bounds is None else position
        batch_number, wanted, done = last
        if not done:
            _log.info(
                "reading range again source=%s batch=%d start=%s end=%d",
                *(self.name, batch_number, wanted.start, wanted.end),
            )
            self._run_batch(batch_number, wanted, begun=True)
        return batch_number, None if wanted.end == BEFORE_ALL else wanted.end

    def _run_next_batch(self, batch_number: int, start: int | None, low: int, high: int) -> int:
        width, rows = choose_width(low, high, self._batch, self._width, functools.partial(self._database.count, low))
        self._width = width
        range_ = CursorRange(self._database.kind, start, low + width, rows)
        self._run_batch(batch_number, range_, begun=False)
        return range_.end

    def _run_batch(self, batch_number: int, range_: CursorRange, *, begun: bool) -> None:
        self.busy = True
        started = time.monotonic()
        try:
            if not begun:
                # The order makes it exactly once: range, rows under the batch number, mark.
                self._positions.begin(batch_number, range_)
            # The empty range that marks "latest" has no rows.
            if range_.start != range_.end:
                self._save(self._database.rows(range_), batch_number)
            self._positions.mark_done(batch_number)
        finally:
            self.busy = False
        took_ms = max(int((time.monotonic() - started) * 1000), 1)
        sources = [{"description": "jdbc", "startOffset": range_.start, "endOffset": range_.end}]
        self.report(batch_number, range_.rows, took_ms, sources=sources)


class JdbcWriter(PolledWriter):
    """Starts a source for the engine."""

    def __init__(self, database: Database, save: Save) -> None:
        super().__init__()
        self._database = database
        self._save = save

    def start(self) -> JdbcPoller:
        """Start polling."""
        positions = JdbcPositions.at(self._database.spark, self.folder)
        return JdbcPoller(
            self.name, self._database, positions, self._save, once=self.once, interval_s=self.interval_s
        ).start()


def driver_jars(pipeline: Pipeline, spark_settings: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's setting with the jars of JDBC drivers, in addition to those of `spark_settings`."""
    options = [node.option("driver_jar") or "" for node in pipeline.nodes]
    driver_paths = [path for option in options for path in option.split(",") if path.strip()]
    paths = [*spark_settings.get("spark.jars", "").split(","), *driver_paths]
    jars = dict.fromkeys(path.strip() for path in paths if path.strip())
    return {"spark.jars": ",".join(jars)} if driver_paths else {}
