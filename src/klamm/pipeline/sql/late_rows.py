"""Counts the late rows of running queries, keeps samples, and writes them to a topic if one is set.

Spark has dropped them when it reports a batch; the batch is then read once more, in a thread of its own, and only when
Spark reports that it dropped something. A topic gets the rows of a batch under the batch's number, so once.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.pipeline.sql.checkpoint_files import PlannedBatch, parse_planned
from klamm.pipeline.sql.core.late_rows import END, ROW, SAMPLES_MAX
from klamm.pipeline.sql.core.value_parsing import literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from klamm.pipeline.sql.core.query_totals import QueryTotals
    from klamm.pipeline.sql.engine import Engine, Query

_log = logging.getLogger(__name__)
_PENDING_MAX: Final = 100
"""As many batches as Spark keeps positions of."""


class LateRows(NamedTuple):
    """The rows of one batch that were late."""

    rows: int
    samples: list[str]


class _LateBatch(NamedTuple):
    query: Query
    batch: int
    dropped: int
    """How many rows, or groups of rows, Spark has dropped."""
    totals: QueryTotals


class LateRowsWatch:
    """Examines batches one after the other, in a thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pending: queue.Queue[_LateBatch | None] = queue.Queue(_PENDING_MAX)
        self._thread = threading.Thread(target=self._run, name="late-rows", daemon=True)

    def add(self, query: Query, batch: int, dropped: int, totals: QueryTotals) -> None:
        """Examine a batch that has dropped rows; `totals` get the number of rows and samples of them."""
        try:
            self._pending.put_nowait(_LateBatch(query, batch, dropped, totals))
        except queue.Full:
            totals.add_uncounted(dropped)
            _log.warning("late rows not counted query=%s batch=%d: too many batches wait", query.name, batch)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the thread while the block runs."""
        self._thread.start()
        try:
            yield
        finally:
            self.finish()

    def finish(self) -> None:
        """Examine what is pending, then end the thread; a second call does nothing."""
        if self._thread.is_alive():
            self._pending.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (pending := self._pending.get()) is not None:
            try:
                late = examine_batch(self._engine, pending.query, pending.batch)
            except Exception as error:  # noqa: BLE001 - counting must not end a pipeline that runs
                _log.warning("late rows not counted query=%s batch=%d: %s", pending.query.name, pending.batch, error)
                late = None
            if late is None:
                pending.totals.add_uncounted(pending.dropped)
            else:
                pending.totals.add_late(*late)


def examine_batch(engine: Engine, query: Query, batch: int) -> LateRows | None:
    """Read a batch again and return its late rows; None when it can no longer be read, or is not understood."""
    planned, before = _find_planned(query, batch), _find_planned(query, batch - 1)
    if planned is None or before is None:
        _log.warning("late rows not counted query=%s batch=%d: its checkpoint has no plan of it", query.name, batch)
        return None
    # Spark compares rows with the watermark of the batch before: its own moves only state out.
    late = engine.find_late_rows(query.node, _positions(before), _positions(planned), before.watermark_ms)
    if late is None:
        return None
    late = late.persist()
    try:
        count = late.count()
        newest = late.orderBy(END, ascending=False).limit(SAMPLES_MAX)
        samples = [row[ROW] for row in newest.collect()]
        if count:
            _write(engine, query, late, batch, before.watermark_ms)
    finally:
        late.unpersist()
    return LateRows(count, samples)


def _find_planned(query: Query, batch: int) -> PlannedBatch | None:
    """Return a planned batch of the query's checkpoint, on this machine or on a file system that Spark reaches."""
    checkpoint = query.ledger.checkpoint()
    plan = None if checkpoint is None else checkpoint.plan(batch)
    return None if plan is None else parse_planned(plan)


def _positions(planned: PlannedBatch) -> list[Any]:
    return [end for end in planned.ends if end]


def _write(engine: Engine, query: Query, late: DataFrame, batch: int, watermark_ms: int) -> None:
    """Write late rows to the query's late_topic, if it has one."""
    headers = (
        f"array(named_struct('key', 'late.query', 'value', cast({literal(query.name)} AS BINARY)), named_struct("
        f"'key', 'late.watermark', 'value', cast(cast(timestamp_millis({watermark_ms}) AS STRING) AS BINARY)))"
    )
    records = late.selectExpr("cast(NULL AS STRING) AS key", f"{ROW} AS value", f"{headers} AS headers")
    engine.write_late(query.node, records, batch)
