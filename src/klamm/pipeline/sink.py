"""`format("klamm")` for writing: the classes that Spark calls, over `task_writer`.

Spark makes several copies of a writer: one for planning, one per task, another one to commit. The commit gets nothing
but the commit messages of tasks, so each message names the sink and the batch as well.
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
from klamm.pipeline.core.sink_commits import SinkError, TaskTransaction, name_sink
from klamm.pipeline.task_writer import TaskWriter, WriteId, abort_batch, commit_batch

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_COLUMN_TYPES = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}


@dataclass
class TaskCommitMessage(WriterCommitMessage):  # type: ignore[misc]
    """What a task returns to the driver: the write it was, and its prepared transaction."""

    write_id: WriteId | None
    transaction: TaskTransaction | None


def check_schema(fields: Mapping[str, str], topic: str | None) -> None:
    """Raise ConfigError unless rows of these columns can be records."""
    if "value" not in fields:
        raise ConfigError(
            f"there is no column value, only {', '.join(fields) or 'none'}; name one: select(... as value)"
        )
    if topic is None and "topic" not in fields:
        raise ConfigError("there is neither an option topic nor a column topic: one of them names where records go")
    for name, types in _COLUMN_TYPES.items():
        if name in fields and fields[name] not in types:
            raise ConfigError(f"column {name} is {fields[name]}; cast it to {' or '.join(types)}")


def split_by_target(rows: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch, str | None]]:
    """Yield rows by topic, and by whether a column names the partition."""
    import pyarrow.compute as pc  # type: ignore[import-untyped] # noqa: PLC0415

    # Spark has checked the columns on the driver; here they only have to be picked.
    names = rows.schema.names
    columns = [name for name in ("key", "value", "headers", "partition") if name in names]
    if topic is not None:
        topic_rows = [(topic, rows)]
    else:
        column = rows.column("topic")
        # pc.unique would yield a null topic, and the filter below drop its rows.
        if column.null_count:
            raise ConfigError("a row has no topic: null in column topic")
        topics = pc.unique(column).to_pylist()
        topic_rows = [(name, rows if len(topics) == 1 else rows.filter(pc.equal(column, name))) for name in topics]
    for name, part in topic_rows:
        chosen = part.select(columns)
        absent = chosen.column("partition").null_count if "partition" in columns else chosen.num_rows
        if absent == chosen.num_rows:
            yield name, chosen, None
        elif not absent:
            yield name, chosen, "partition"
        else:
            # send_arrow takes a partition for all rows of a call or for none.
            named = pc.is_valid(chosen.column("partition"))
            yield name, chosen.filter(named), "partition"
            yield name, chosen.filter(pc.invert(named)), None


class _TopicWriter:
    """The part that batch and stream writers share."""

    options: WriteOptions

    def _read_options(self, options: Mapping[str, str], schema: Any, *, streaming: bool) -> None:
        self.options = write_options(options, streaming=streaming)
        check_schema({field.name: field.dataType.simpleString() for field in schema.fields}, self.options.topic)

    def _write(self, iterator: Iterator[pa.RecordBatch], write_id: WriteId | None) -> TaskCommitMessage:
        thread = loop_thread.acquire()
        writer = TaskWriter(self.options, write_id)
        try:
            if not thread.run(writer.begin()):
                # Spark's worker protocol expects the rows to be read, even if none of them is written.
                for _ in iterator:
                    pass
                return TaskCommitMessage(write_id, None)
            for rows in iterator:
                if rows.num_rows:
                    for topic, part, partition in split_by_target(rows, self.options.topic):
                        thread.run(writer.send(topic, part, partition))
            return TaskCommitMessage(write_id, thread.run(writer.prepare()))
        except BaseException:
            thread.run(writer.abort())
            raise
        finally:
            loop_thread.release(thread)

    def _commit_or_abort(self, messages: Sequence[Any], batch: int | None, *, commit: bool) -> None:
        # Spark passes None for a task that failed.
        task_messages = [message for message in messages if message is not None and message.write_id is not None]
        # Without a message there is no write id, so nothing can be ended here. Transactions that such tasks left open
        # are aborted by the sink's next commit, or time out.
        if not task_messages:
            return
        write_id = task_messages[0].write_id
        # The batch number comes from a task property that is not documented; a wrong one must not commit anything.
        if batch is not None and write_id.batch != batch:
            raise SinkError(f"Spark ends batch {batch}, but tasks wrote batch {write_id.batch}")
        transactions = [message.transaction for message in task_messages if message.transaction is not None]
        thread = loop_thread.acquire()
        try:
            if commit:
                thread.run(commit_batch(self.options, write_id, transactions))
            else:
                thread.run(abort_batch(self.options, write_id))
        finally:
            loop_thread.release(thread)


def _task_context() -> Any:
    context = TaskContext.get()
    if context is None:
        raise SinkError("a write outside of a Spark task")
    return context


class BatchWriter(_TopicWriter, DataSourceArrowWriter):  # type: ignore[misc]
    """`df.write.format("klamm")`. With txnAppId and txnVersion a write that is repeated is done once."""

    def __init__(self, options: Mapping[str, str], schema: Any, overwrite: bool) -> None:
        self._read_options(options, schema, streaming=False)
        if overwrite:
            raise ConfigError('a topic is only ever appended to: write with mode("append")')
        # Without an app id the sink is new with every write, so nothing can be recognized as done before.
        self._sink = name_sink(self.options.app_id or uuid.uuid4().hex)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        """Write the rows of one task."""
        context = _task_context()
        write_id = WriteId(self._sink, self.options.version, context.partitionId(), context.attemptNumber())
        return self._write(iterator, write_id if self.options.exactly_once else None)

    def commit(self, messages: Sequence[Any]) -> None:
        """Commit: all tasks have written."""
        self._commit_or_abort(messages, None, commit=True)

    def abort(self, messages: Sequence[Any]) -> None:
        """Abort: the job failed."""
        self._commit_or_abort(messages, None, commit=False)


class StreamWriter(_TopicWriter, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """`df.writeStream.format("klamm")`: each micro-batch is committed by one decision."""

    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        self._read_options(options, schema, streaming=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        """Write the rows of one task of a micro-batch; the task's properties name the query and the batch."""
        if not self.options.exactly_once:
            return self._write(iterator, None)
        context = _task_context()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise SinkError("Spark gives tasks no query id or batch id; delivery=at_least_once works without them")
        # A name survives the removal of the checkpoint, with which Spark would make up another query id.
        sink = name_sink(self.options.app_id or query)
        write_id = WriteId(sink, int(batch), context.partitionId(), context.attemptNumber())
        return self._write(iterator, write_id)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit: all tasks have written. Spark calls this again when it replays a batch."""
        self._commit_or_abort(messages, batchId, commit=True)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        """Abort: a task failed, or the commit did."""
        self._commit_or_abort(messages, batchId, commit=False)
