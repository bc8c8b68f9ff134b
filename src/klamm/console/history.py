"""24 hours of samples in SQLite, so that charts survive a restart.

One row holds an hour of a series: sixty floats, one a minute. A day of 10,000 topics is 240,000 rows of 240 bytes;
series that stay at 0 have no row. The collector's thread writes once a minute, pages read.
"""

from __future__ import annotations

import array
import itertools
import math
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from klamm.console.core.charts import ChartPoint
from klamm.console.core.samples import ClusterSample

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
KEPT_MS: Final = 24 * HOUR_MS
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, cluster TEXT, name TEXT, UNIQUE (cluster, name));
CREATE TABLE IF NOT EXISTS hours (series INTEGER, hour INTEGER, minutes BLOB, PRIMARY KEY (series, hour)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS resets (
    id INTEGER PRIMARY KEY AUTOINCREMENT, cluster TEXT, name TEXT, time_ms INTEGER, person TEXT, offsets TEXT,
    undone INTEGER DEFAULT 0
);
"""
_FIND_HOUR: Final = """
SELECT series.id, minutes FROM series LEFT JOIN hours ON hours.series = series.id AND hour = ?
WHERE cluster = ? AND name = ?
"""
_DROP_SERIES: Final = "DELETE FROM series WHERE NOT EXISTS (SELECT 1 FROM hours WHERE hours.series = series.id)"
_SLICE: Final = 1000
_EMPTY: Final = array.array("f", [math.nan] * 60)

_UNKNOWN: Final = -1.0
"""Kept where a value exists but could not be read: a minute without a value counts 0."""

RATE: Final = "rate"
BYTE_RATE: Final = "byte_rate"
LAG: Final = "lag"


def topic_series(topic: str) -> str:
    """The name of the series of a topic's rate."""
    return f"topic/{topic}"


def group_series(group: str) -> str:
    """The name of the series of a group's lag."""
    return f"group/{group}"


def group_age_series(group: str) -> str:
    """The name of the series of the age of a group's oldest unread record, in seconds."""
    return f"group-age/{group}"


class SampleHistory:
    """The file, or memory with the path `:memory:`."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        with self._lock:
            # A crash may lose the last minute, never the file. Readers of a write-ahead log do not wait for its writer.
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(_SCHEMA)
        # A page must not wait while the samples of 10,000 topics are written. Memory has one connection only.
        in_memory = path == ":memory:"
        self._reader_lock = self._lock if in_memory else threading.Lock()
        self._reader = self._connection if in_memory else sqlite3.connect(path, check_same_thread=False)
        self._first_hour = 0
        self._last_minute: dict[str, int] = {}
        self._last_time_ms: dict[str, int] = {}
        self._means: dict[str, _RateMeans] = {}

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection; to be used with `lock`."""
        return self._connection

    @property
    def lock(self) -> threading.Lock:
        """Held while the connection is used."""
        return self._lock

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()
        self._reader.close()

    def record(self, cluster: str, sample: ClusterSample) -> None:
        """Keep a minute: lags of its first sample, and the mean of the rates of all samples since the minute before."""
        if sample.collected_s == 0 or not sample.topics:
            return
        last_ms = self._last_time_ms.get(cluster, sample.time_ms - 1)
        self._last_time_ms[cluster] = sample.time_ms
        # The first sample after a start has no rates yet: charts would fall to zero there.
        if not sample.rates:
            return
        means = self._means.setdefault(cluster, _RateMeans())
        means.add(sample, sample.time_ms - last_ms)
        minute = sample.time_ms // MINUTE_MS
        if self._last_minute.get(cluster) == minute:
            return
        self._last_minute[cluster] = minute
        del self._means[cluster]
        self._write_values(cluster, sample.time_ms, _list_values(sample, means))

    def write(self, cluster: str, time_ms: int, values: Mapping[str, float]) -> None:
        """Keep the values of one minute, and drop what is older than a day."""
        self._write_values(cluster, time_ms, values.items())

    def _write_values(self, cluster: str, time_ms: int, values: Iterable[tuple[str, float]]) -> None:
        hour, minute = time_ms // HOUR_MS, time_ms % HOUR_MS // MINUTE_MS
        left = iter(values)
        # In slices, so that a reset, which uses the same connection, waits for one of them at most.
        while part := list(itertools.islice(left, _SLICE)):
            with self._lock:
                self._connection.execute("BEGIN")
                self._write_slice(cluster, hour, minute, part)
                self._connection.execute("COMMIT")
        self._drop_hours((time_ms - KEPT_MS) // HOUR_MS)

    def _drop_hours(self, first: int) -> None:
        # Once an hour: it reads all rows.
        if first > self._first_hour:
            self._first_hour = first
            with self._lock:
                self._connection.execute("BEGIN")
                self._connection.execute("DELETE FROM hours WHERE hour < ?", (first,))
                # Of topics and groups that are gone, or idle: their names would stay for ever.
                self._connection.execute(_DROP_SERIES)
                self._connection.execute("COMMIT")

    def _write_slice(self, cluster: str, hour: int, minute: int, values: list[tuple[str, float]]) -> None:
        rows = []
        for name, value in values:
            # Ids are not kept in memory: those of 10,000 topics and 15,000 groups would be ten megabytes.
            stored = self._connection.execute(_FIND_HOUR, (hour, cluster, name)).fetchone()
            series, old = self._add_series(cluster, name) if stored is None else stored
            minutes = array.array("f", _EMPTY if old is None else old)
            minutes[minute] = value
            rows.append((series, hour, minutes.tobytes()))
        self._connection.executemany("INSERT OR REPLACE INTO hours VALUES (?, ?, ?)", rows)

    def _add_series(self, cluster: str, name: str) -> tuple[int | None, None]:
        cursor = self._connection.execute("INSERT INTO series (cluster, name) VALUES (?, ?)", (cluster, name))
        return cursor.lastrowid, None

    def read(self, cluster: str, names: Iterable[str], begin_ms: int, end_ms: int) -> dict[str, list[ChartPoint]]:
        """Return the points of series, one a minute; None in minutes without a sample.

        A minute in which the console took a sample but the series has no value counts 0: idle series have no rows.
        """
        wanted = list(names)
        stored = self._load(cluster, [*wanted, RATE], begin_ms // HOUR_MS, end_ms // HOUR_MS)
        minutes = range(begin_ms // MINUTE_MS, end_ms // MINUTE_MS + 1)
        sampled = stored.get(RATE, {})
        series = {}
        for name in wanted:
            hours = stored.get(name, {})
            points = []
            for minute in minutes:
                value = _at(hours, minute)
                if value is None and _at(sampled, minute) is not None:
                    value = 0.0
                if value == _UNKNOWN:
                    value = None
                points.append(ChartPoint(minute * MINUTE_MS, value))
            series[name] = points
        return series

    def _load(
        self, cluster: str, names: Sequence[str], first: int, last: int
    ) -> dict[str, dict[int, array.array[float]]]:
        loaded: dict[str, dict[int, array.array[float]]] = {}
        marks = ",".join("?" * len(names))
        with self._reader_lock:
            rows = self._reader.execute(
                "SELECT name, hour, minutes FROM hours JOIN series ON hours.series = series.id"  # noqa: S608 - marks
                f" WHERE cluster = ? AND name IN ({marks}) AND hour BETWEEN ? AND ?",
                (cluster, *names, first, last),
            ).fetchall()
        for name, hour, blob in rows:
            loaded.setdefault(name, {})[hour] = array.array("f", blob)
        return loaded


def _list_values(sample: ClusterSample, means: _RateMeans) -> Iterator[tuple[str, float]]:
    """Yield the series of a sample that have a value, one at a time: there are 40,000 of a large cluster."""
    lags = sample.lags
    yield RATE, means.rate
    yield BYTE_RATE, means.byte_rate
    yield LAG, float(sum(lag or 0 for lag in lags.values()))
    for name, rate in means.topic_rates():
        yield topic_series(name), rate
    for name, lag in lags.items():
        if lag:
            yield group_series(name), float(lag)
    for name, age_ms in sample.lags_ms.items():
        if age_ms or lags[name]:
            yield group_age_series(name), _UNKNOWN if age_ms is None else age_ms / 1000


class _RateMeans:
    """Rates of several samples, each weighted with the time that it covers."""

    def __init__(self) -> None:
        self._weight = 0
        self._byte_weight = 0
        self._bytes = 0.0
        self._topics: dict[str, float] = {}

    def add(self, sample: ClusterSample, covered_ms: int) -> None:
        """Add a sample."""
        # The rate of the first sample after an outage covers all of it, and would outweigh the minute.
        weight = min(max(covered_ms, 1), MINUTE_MS)
        self._weight += weight
        for name, rate in sample.rates.items():
            if rate:
                self._topics[name] = self._topics.get(name, 0.0) + rate * weight
        # A sample with other log dirs than the one before has no byte rates: it is no minute without bytes.
        if sample.byte_rates:
            self._byte_weight += weight
            self._bytes += sum(sample.byte_rates.values()) * weight

    @property
    def rate(self) -> float:
        """Records per second of all topics."""
        return sum(self._topics.values()) / self._weight

    @property
    def byte_rate(self) -> float:
        """Bytes per second of all topics; 0 when no sample has any."""
        return self._bytes / self._byte_weight if self._byte_weight else 0.0

    def topic_rates(self) -> Iterator[tuple[str, float]]:
        """Yield the records per second of each topic that has any."""
        for name, total in self._topics.items():
            yield name, total / self._weight


def _at(hours: Mapping[int, array.array[float]], minute: int) -> float | None:
    values = hours.get(minute // 60)
    if values is None or math.isnan(values[minute % 60]):
        return None
    return values[minute % 60]
