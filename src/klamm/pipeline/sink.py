"""`format("klamm")` for writing: what Spark asks of writers, carried out by `writing`.

A writer is made anew for every purpose: one in the planner, copies in the tasks, another one to commit. Only what a
task returns gets from there to the commit, so it names the sink as well.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from klamm.client import loop_thread
from klamm.model.errors import ConfigError
from klamm.pipeline.core.connector_options import WriteOptions, write_options
from klamm.pipeline.core.sink_commits import SinkError, TaskTransaction
from klamm.pipeline.task_writer import TaskWriter, WriteId, abort_batch, commit_batch

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_KINDS = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}


@dataclass
class TaskResult(WriterCommitMessage):  # type: ignore[misc]
    """What a task tells the driver."""

    place: WriteId | None
    handle: TaskTransaction | None


def check_schema(fields: Mapping[str, str], topic: str | None) -> None:
    """Whether rows of these columns can be records; the sentence says what to change."""
    if "value" not in fields:
        raise ConfigError(
            f"there is no column value, only {', '.join(fields) or 'none'}; name one: select(... as value)"
        )
    if topic is None and "topic" not in fields:
        raise ConfigError("there is neither an option topic nor a column topic: where should records go?")
    for name, kinds in _KINDS.items():
        if name in fields and fields[name] not in kinds:
            raise ConfigError(f"column {name} is {fields[name]}; cast it to {' or '.join(kinds)}")


def by_target(rows: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch, str | None]]:
    """Rows by topic, and by whether a column says the partition."""
    import pyarrow.compute as pc  # type: ignore[import-untyped] # noqa: PLC0415

    names = rows.schema.names
    columns = [each for each in ("key", "value", "headers", "partition") if each in names]
    if topic is not None:
        parts = [(topic, rows)]
    else:
        column = rows.column("topic")
        if column.null_count:
            raise ConfigError("a row has no topic: null in column topic")
        topics = pc.unique(column).to_pylist()
        parts = [(name, rows if len(topics) == 1 else rows.filter(pc.equal(column, name))) for name in topics]
    for name, part in parts:
        chosen = part.select(columns)
        absent = chosen.column("partition").null_count if "partition" in columns else chosen.num_rows
        if absent == chosen.num_rows:
            yield name, chosen, None
        elif not absent:
            yield name, chosen, "partition"
        else:
            there = pc.is_valid(chosen.column("partition"))
            yield name, chosen.filter(there), "partition"
            yield name, chosen.filter(pc.invert(there)), None


class _Writes:
    """What both kinds of writers share."""

    options: WriteOptions

    def _prepare(self, options: Mapping[str, str], schema: Any) -> None:
        self.options = write_options(options)
        check_schema({field.name: field.dataType.simpleString() for field in schema.fields}, self.options.topic)

    def _write(self, iterator: Iterator[pa.RecordBatch], place: WriteId | None) -> TaskResult:
        thread = loop_thread.acquire()
        work = TaskWriter(self.options, place)
        try:
            if not thread.run(work.begin()):
                for _ in iterator:
                    pass
                return TaskResult(place, None)
            for rows in iterator:
                if rows.num_rows:
                    for topic, part, partition in by_target(rows, self.options.topic):
                        thread.run(work.send(topic, part, partition))
            return TaskResult(place, thread.run(work.finish()))
        except BaseException:
            thread.run(work.drop())
            raise
        finally:
            loop_thread.release(thread)

    def _end(self, messages: Sequence[Any], batch: int | None, *, commit: bool) -> None:
        told = [message for message in messages if message is not None and message.place is not None]
        if not told:
            return
        place = told[0].place
        if batch is not None and place.batch != batch:
            raise SinkError(f"Spark ends batch {batch}, but tasks wrote batch {place.batch}")
        handles = [each.handle for each in told if each.handle is not None]
        thread = loop_thread.acquire()
        try:
            thread.run(commit_batch(self.options, place, handles) if commit else abort_batch(self.options, place))
        finally:
            loop_thread.release(thread)


def _context() -> Any:
    found = TaskContext.get()
    if found is None:
        raise SinkError("a write outside of a Spark task")
    return found


class BatchWriter(_Writes, DataSourceArrowWriter):  # type: ignore[misc]
    """`df.write.format("klamm")`. With txnAppId and txnVersion the same write is done once, however often it is run."""

    def __init__(self, options: Mapping[str, str], schema: Any, overwrite: bool) -> None:
        self._prepare(options, schema)
        if overwrite:
            raise ConfigError('a topic is only ever appended to: write with mode("append")')
        self._sink = f"klamm-spark-{self.options.app_id or uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """One task."""
        context = _context()
        place = WriteId(self._sink, self.options.version, context.partitionId(), context.attemptNumber())
        return self._write(iterator, place if self.options.exactly_once else None)

    def commit(self, messages: Sequence[Any]) -> None:
        """All tasks have written."""
        self._end(messages, None, commit=True)

    def abort(self, messages: Sequence[Any]) -> None:
        """The job failed."""
        self._end(messages, None, commit=False)


class StreamWriter(_Writes, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """`df.writeStream.format("klamm")`: each micro-batch is one decision."""

    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        self._prepare(options, schema)
        if self.options.app_id is not None:
            raise ConfigError("txnAppId is for batch writes: a streaming query has an id, and numbers its batches")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """One task of a micro-batch; the query's id and the batch's number come with the task."""
        if not self.options.exactly_once:
            return self._write(iterator, None)
        context = _context()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise SinkError("Spark does not tell tasks their query and batch; delivery=at_least_once does without")
        place = WriteId(f"klamm-spark-{query}", int(batch), context.partitionId(), context.attemptNumber())
        return self._write(iterator, place)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All tasks have written; perhaps not for the first time."""
        self._end(messages, batchId, commit=True)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        """A task failed, or a commit did."""
        self._end(messages, batchId, commit=False)
