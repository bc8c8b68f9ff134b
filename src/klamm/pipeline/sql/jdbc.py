"""Tables of databases into topics: `CREATE SOURCE ... WITH (connector = 'jdbc', ...)`, each row once.

Spark has no streaming source for databases, so this is a loop in the driver. A batch is a range of the cursor column.
Its range is written to the checkpoint before it is read, its rows go to the topic as a numbered write, which happens
once, and then it is marked as done. Whoever starts again after a crash does the last range again if it has no mark.
"""

# ruff: noqa: S608 - whoever writes the file may name any table and say any query: it is theirs

from __future__ import annotations

import datetime as dt
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from klamm.model.errors import ConfigError, ErrorCode, KlammError
from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.graph import Node, Pipeline
from klamm.pipeline.sql.core.jdbc_cursors import INTEGER, TIMESTAMP, CursorRange, StablePositions, choose_width, literal
from klamm.pipeline.sql.core.row_expressions import ddl
from klamm.pipeline.sql.core.secrets import expand, is_secret, mask_secrets
from klamm.pipeline.sql.core.statement_options import duration_ms
from klamm.pipeline.sql.jdbc_positions import Positions
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = get_logger("pipeline")
DEFAULT_BATCH: Final = 10_000
DEFAULT_DELAY: Final = "1 second"
DEFAULT_FETCH: Final = "1000"
"""Rows at a time: some drivers hold a whole answer in memory unless they are told."""
_POLL_S: Final = 1.0
_REMEMBERED: Final = 100
_CAUSES_MAX: Final = 50
_NO_DRIVER: Final = ("No suitable driver", "java.lang.ClassNotFoundException", "DriverWrapper")
_MOMENT_S: Final = 2.0
_STOP_S: Final = 60.0
_WHOLE: Final = ("byte", "short", "integer", "long")
Save = Callable[["DataFrame", int], None]


class JdbcError(KlammError):
    """What the database or its driver said, without secrets."""

    def __init__(self, words: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, words)


class Database:
    """One table or query of a database, as a source's options name it."""

    def __init__(self, spark: SparkSession, node: Node, environment: Mapping[str, str] | None = None) -> None:
        known = os.environ if environment is None else environment
        self.spark = spark
        self.node = node
        given = {name: expand(each.text, known, name) for name, each in node.create.options.items()}
        self._secrets = [given[name] for name in given if is_secret(name)]
        self.cursor = given["cursor"]
        query = given.get("query")
        self._relation = f"({query.strip().rstrip(';')}) klamm_rows" if query else given["table"]
        self._options = {
            "url": given["url"],
            "preferTimestampNTZ": "true",
            **{name: given[name] for name in ("driver", "user", "password") if name in given},
            "fetchsize": given.get("fetch_size", DEFAULT_FETCH),
            **{name.removeprefix("option."): each for name, each in given.items() if name.startswith("option.")},
        }
        self._kind: str | None = None

    def _ask(self, query: str) -> DataFrame:
        return self.spark.read.format("jdbc").options(**self._options).option("query", query).load()

    def told(self, error: Exception) -> JdbcError:
        """An error in words that may be shown: what Spark says, and what the driver did at the root of it."""
        words = _first_line(str(error)) or type(error).__name__
        root = _root(error)
        if root is not None and root not in words:
            words = root if words.startswith("An error occurred while calling") else f"{words}: {root}"
        if any(each in words for each in _NO_DRIVER):
            words += "; name its class by driver and its jar by driver_jar, or SET spark.jars.packages"
        return JdbcError(f"{self.node.name}: {mask_secrets(words, self._secrets)}")

    def name_jobs(self, group: str) -> None:
        """Jobs of this thread are of this session and of this group from now on."""
        # A thread of the JVM takes over the session of some other one, which may not know what this one registered.
        self.spark._get_j_spark_session_class(self.spark._jvm).setActiveSession(self.spark._jsparkSession)
        self.spark.sparkContext.setJobGroup(group, self.node.name)

    def interrupt(self, group: str) -> None:
        """Cancel the jobs of a group."""
        self.spark.sparkContext.cancelJobGroup(group)

    def shape(self) -> DataFrame:
        """A frame with the columns of the source, which is never computed."""
        columns = self.node.create.columns
        if columns:
            return self.spark.createDataFrame([], ddl(columns))
        try:
            return _in_utc(self._ask(f"SELECT * FROM {self._relation}"))
        except Exception as error:  # noqa: BLE001 - drivers raise what they like
            raise self.told(error) from None

    def rows(self, wanted: CursorRange) -> DataFrame:
        """The rows of a range in the order of the cursor: one task reads them, so that they stay in it."""
        frame = self._ask(f"SELECT * FROM {self._relation} WHERE {wanted.condition(self.cursor)}")
        name = _column(self.cursor, frame.columns)
        frame = frame.sortWithinPartitions(quote_name(name))
        columns = self.node.create.columns
        if not columns:
            return _in_utc(frame)
        there = {column.lower() for column in frame.columns}
        missing = [column.name for column in columns if column.name.lower() not in there]
        if missing:
            raise ConfigError(f"{self.node.name}: the database has no column {missing[0]}: {', '.join(frame.columns)}")
        return frame.selectExpr(
            *(f"cast({quote_name(column.name)} AS {column.type}) AS {quote_name(column.name)}" for column in columns)
        )

    def bounds(self, start: int | None) -> tuple[int, int] | None:
        """The least and the greatest position from `start` on; None when there is no row."""
        where = f"{self.cursor} IS NOT NULL" if start is None else self._from(start)
        least, most = f"MIN({self.cursor}) AS klamm_least", f"MAX({self.cursor}) AS klamm_most"
        found = self._positions(f"SELECT {least}, {most} FROM {self._relation} WHERE {where}")
        return None if found is None or found[0] is None else (int(found[0]), int(found[1]))

    def count(self, start: int, width: int) -> int:
        """How many rows there are in the first `width` positions."""
        condition = CursorRange(self.kind, start, start + width).condition(self.cursor)
        (row,) = self._ask(f"SELECT COUNT(*) AS klamm_rows FROM {self._relation} WHERE {condition}").collect()
        return int(row[0])

    @property
    def kind(self) -> str:
        """What positions are: known once the database was asked for bounds."""
        assert self._kind is not None
        return self._kind

    def _from(self, start: int) -> str:
        if self._kind is None:  # the first question after a restart: the column's type says how positions are written
            self._kind = self._kind_of(
                self._ask(f"SELECT MAX({self.cursor}) AS klamm_most FROM {self._relation}").schema.fields[0]
            )
        return f"{self.cursor} >= {literal(self.kind, start)}"

    def _positions(self, query: str) -> Any:
        frame = self._ask(query)
        self._kind = self._kind_of(frame.schema.fields[0])
        shape = "cast({} AS DECIMAL(38, 0))" if self._kind == INTEGER else "unix_micros(cast({} AS TIMESTAMP))"
        return frame.selectExpr(*(shape.format(quote_name(column)) for column in frame.columns)).first()

    def _kind_of(self, field: Any) -> str:
        name = field.dataType.typeName()
        if name in _WHOLE or (name == "decimal" and field.dataType.scale == 0) or _is_number(field.dataType):
            return INTEGER
        if name == "timestamp_ntz":
            return TIMESTAMP
        words = f"the cursor {self.cursor} is {field.dataType.simpleString()}; it must be a whole number or a timestamp"
        if name == "timestamp":
            words += " without a time zone: convert it in query = 'SELECT ...'"
        raise ConfigError(f"{self.node.name}: {words}")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _root(error: Exception) -> str | None:
    """What the innermost exception of the JVM says; None when there is none."""
    found: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(_CAUSES_MAX):
        cause = found.getCause() if found is not None else None
        if cause is None:
            break
        found = cause
    return None if found is None else _first_line(str(found.toString()))


def _is_number(kind: Any) -> bool:
    """Oracle's NUMBER without a size, as Spark shows it."""
    return bool(kind.typeName() == "decimal" and (kind.precision, kind.scale) == (38, 10))


def _in_utc(frame: DataFrame) -> DataFrame:
    """Times that have no zone are taken for UTC, as everywhere in a pipeline."""
    times = {field.name for field in frame.schema.fields if field.dataType.typeName() == "timestamp_ntz"}
    shape = "cast({0} AS TIMESTAMP) AS {0}"
    return frame.selectExpr(
        *(shape.format(quote_name(column)) if column in times else quote_name(column) for column in frame.columns)
    )


def _column(cursor: str, names: list[str]) -> str:
    """The frame's column of a cursor that is written in the database's SQL, perhaps quoted."""
    bare = cursor.rsplit(".", 1)[-1].strip('"`[]').lower()
    for name in names:
        if name.lower() == bare:
            return name
    raise ConfigError(f"the cursor {cursor} is no column of what is read: {', '.join(names)}")


class JdbcPoller:
    """A running source. It has what Spark's own queries have, so that it is watched and stopped like them."""

    def __init__(
        self,
        name: str,
        database: Database,
        positions: Positions,
        save: Save,
        *,
        once: bool,
        interval_s: float = _POLL_S,
    ) -> None:
        node = database.node
        self.name = name
        self._database = database
        self._positions = positions
        self._save = save
        self._once = once
        self._interval_s = interval_s
        self._batch = int(node.option("batch_size") or DEFAULT_BATCH)
        self._latest = (node.option("starting") or "earliest").lower() == "latest"
        self._settled = StablePositions((duration_ms(node.option("delay") or DEFAULT_DELAY) or 0) / 1000)
        self._width = self._batch
        self._stopping = threading.Event()
        self._group = f"klamm-jdbc-{name}-{uuid.uuid4().hex}"
        self._busy = False
        self._error: Exception | None = None
        self._progress: deque[dict[str, Any]] = deque(maxlen=_REMEMBERED)
        self._thread = threading.Thread(target=self._run, name=f"klamm-jdbc-{name}", daemon=True)

    def start(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's names, here and below
        """Whether it runs."""
        return self._thread.is_alive()

    @property
    def status(self) -> dict[str, Any]:
        """What it does."""
        return {"message": "reading" if self._busy else "waiting", "isTriggerActive": self._busy}

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802
        """The last batches."""
        return list(self._progress)

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        """The last batch."""
        return self._progress[-1] if self._progress else None

    def exception(self) -> Exception | None:
        """What it ended with."""
        return None if self.isActive else self._error

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        """Wait for the end; raises what it ended with."""
        self._thread.join(timeout)
        if self._error is not None and not self.isActive:
            raise self._error
        return not self.isActive

    def stop(self) -> None:
        """End, after the batch if it ends soon; a batch that is cut off is done again by the next start."""
        self._stopping.set()
        self._thread.join(_MOMENT_S)
        if self.isActive:
            self._database.interrupt(self._group)
            self._thread.join(_STOP_S)

    # The loop

    def _run(self) -> None:
        try:
            self._database.name_jobs(self._group)
            self._loop()
        except (KlammError, ConfigError) as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - drivers and Spark raise what they like
            self._error = self._database.told(error)

    def _loop(self) -> None:
        goal: int | None = None
        number, start = self._recover()
        while not self._stopping.is_set():
            bounds = self._database.bounds(start)
            if self._once:
                goal = bounds[1] if goal is None and bounds is not None else goal
                if bounds is None or (goal is not None and bounds[0] > goal):
                    return
            believed = self._settled.look(time.monotonic(), bounds and bounds[1])
            if bounds is not None and believed is not None and bounds[0] <= believed:
                number += 1
                start = self._batch_of(number, start, bounds[0], believed)
                continue
            waiting_s = self._settled.wait_s(time.monotonic())
            self._stopping.wait(waiting_s if waiting_s and self._once else self._interval_s)

    def _recover(self) -> tuple[int, int | None]:
        """Finish what was begun; returns the number of the last batch and where the next one begins."""
        found = self._positions.last()
        if found is None:
            if not self._latest:
                return -1, None
            bounds = self._database.bounds(None)
            if bounds is None:
                return -1, None
            first = CursorRange(self._database.kind, bounds[1] + 1, bounds[1] + 1)
            self._positions.begin(0, first)
            self._positions.done(0)
            return 0, first.end
        number, wanted, done = found
        if not done:
            _log.info("a range is read again", source=self.name, batch=number, start=wanted.start, end=wanted.end)
            self._do(number, wanted, begun=True)
        return number, wanted.end

    def _batch_of(self, number: int, start: int | None, low: int, high: int) -> int:
        width, rows = choose_width(low, high, self._batch, self._width, lambda some: self._database.count(low, some))
        self._width = width
        wanted = CursorRange(self._database.kind, start, low + width, rows)
        self._do(number, wanted, begun=False)
        return wanted.end

    def _do(self, number: int, wanted: CursorRange, *, begun: bool) -> None:
        self._busy = True
        began = time.monotonic()
        try:
            if not begun:
                self._positions.begin(number, wanted)
            if wanted.start != wanted.end:
                self._save(self._database.rows(wanted), number)
            self._positions.done(number)
        finally:
            self._busy = False
        took_ms = max(int((time.monotonic() - began) * 1000), 1)
        told = {
            "name": self.name,
            "timestamp": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
            "batchId": number,
            "numInputRows": wanted.rows,
            "processedRowsPerSecond": wanted.rows * 1000 / took_ms,
            "durationMs": {"triggerExecution": took_ms, "addBatch": took_ms},
            "sources": [{"description": "jdbc", "startOffset": wanted.start, "endOffset": wanted.end}],
        }
        self._progress.append(told)


class JdbcWriter:
    """How the engine starts a source: the steps of Spark's writers, ending in a `Polling`."""

    def __init__(self, database: Database, save: Save) -> None:
        self._database = database
        self._save = save
        self._name = ""
        self._folder = ""
        self._once = False
        self._interval_s = _POLL_S

    def queryName(self, name: str) -> Self:  # noqa: N802 - Spark's names, here and below
        """What it is called."""
        self._name = name
        return self

    def option(self, name: str, value: Any) -> Self:
        """Where its positions are kept."""
        if name == "checkpointLocation":
            self._folder = str(value)
        return self

    def trigger(self, *, availableNow: bool = False, processingTime: str | None = None) -> Self:  # noqa: N803
        """Over what is there now, or how often to look."""
        self._once = availableNow
        if processingTime is not None:
            self._interval_s = (duration_ms(processingTime) or 0) / 1000 or _POLL_S
        return self

    def start(self) -> JdbcPoller:
        """Begin."""
        positions = Positions.at(self._database.spark, self._folder)
        return JdbcPoller(
            self._name, self._database, positions, self._save, once=self._once, interval_s=self._interval_s
        ).start()


def driver_jars(pipeline: Pipeline, said: Mapping[str, str]) -> dict[str, str]:
    """Spark's setting that has the jars of drivers in it, beside those that are `said` already."""
    found = [each for node in pipeline.nodes for each in (node.option("driver_jar") or "").split(",") if each.strip()]
    jars = dict.fromkeys(each.strip() for each in [*said.get("spark.jars", "").split(","), *found] if each.strip())
    return {"spark.jars": ",".join(jars)} if found else {}
