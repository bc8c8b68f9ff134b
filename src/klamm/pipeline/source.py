"""`format("klamm")` for reading: the classes that Spark calls, over `topic_metadata` and `partition_reader`.

Spark calls a reader in several processes: a query's planner keeps one for offsets and partitions, tasks get a copy and
read. So a reader connects at its first call, and a copy has no connection.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from klamm.pipeline.core.connector_options import ReadOptions, read_options
from klamm.pipeline.core.data_loss import DataLoss
from klamm.pipeline.core.offsets import (
    Position,
    Range,
    count_lost,
    group_ranges,
    has_enough,
    limit_end,
    plan_ranges,
    split_ranges,
)
from klamm.pipeline.query_checkpoint import QueryCheckpoint
from klamm.pipeline.topic_metadata import TopicLookup

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_log = logging.getLogger(__name__)
_SMALL_TASK_ROWS = 200
"""Ranges are grouped up to so many rows: starting a task costs about ten milliseconds."""

_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
_HEADERS = "headers array<struct<key: string, value: binary>>"


def schema(options: Mapping[str, str]) -> str:
    """Return the columns of the Kafka connector; headers with includeHeaders."""
    # Only this option is read: Spark gets the schema in a process of its own, before the reader validates the options.
    include_headers = {name.lower(): value for name, value in options.items()}.get("includeheaders", "false")
    return f"{_COLUMNS}, {_HEADERS}" if include_headers.strip().lower() == "true" else _COLUMNS


class TaskRanges(InputPartition):  # type: ignore[misc]
    """The ranges that one task reads."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


def _null_absent_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with null for the headers of records that have none, as Spark's Kafka connector reads them."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # type: ignore[import-untyped] # noqa: PLC0415

    index = batch.schema.get_field_index("headers")
    headers = batch.column(index)
    has_headers = pc.greater(pc.list_value_length(headers), 0)
    nullable = pc.if_else(has_headers, headers, pa.scalar(None, headers.type))
    return batch.set_column(index, batch.schema.field(index), nullable)


class _TopicReader:
    """The part that batch and stream readers share."""

    options: ReadOptions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if not isinstance(partition, TaskRanges):
            return  # Spark runs one task for a read without partitions: the topics are empty
        # Only tasks read: the process that plans a query's batches starts faster without the consumer.
        from klamm.pipeline.partition_reader import read_range  # noqa: PLC0415

        options = self.options
        for range_ in partition.ranges:
            batches = read_range(
                range_,
                options.client,
                headers=options.include_headers,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            yield from map(_null_absent_headers, batches) if options.include_headers else batches

    def _split_for_tasks(self, ranges: list[Range]) -> list[TaskRanges]:
        options = self.options
        pieces = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
        explicit = options.min_partitions is not None or options.max_records_per_partition is not None
        return [TaskRanges(group) for group in group_ranges(pieces, 1 if explicit else _SMALL_TASK_ROWS)]

    def _report_losses(self, losses: list[str]) -> None:
        """Raise DataLoss; with failOnDataLoss=false log the losses instead."""
        if losses and self.options.fail_on_data_loss:
            raise DataLoss("; ".join(losses))
        for loss in losses:
            _log.warning("data loss: %s", loss)


class BatchReader(_TopicReader, DataSourceReader):  # type: ignore[misc]
    """A bounded read: its offsets are looked up once, when it is planned."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = read_options(options, streaming=False)

    def partitions(self) -> Sequence[TaskRanges]:
        """Return the ranges from the starting to the ending offsets."""
        options = self.options
        with TopicLookup(options.client, options.choice) as lookup:
            start = lookup.at(options.start, "startingOffsets", late_is_latest=options.late_start_is_latest)
            end = lookup.at(options.end, "endingOffsets", late_is_latest=True)
            earliest = lookup.earliest(end.offsets)
        ranges, lost = plan_ranges(start, end, earliest)
        self._report_losses(lost)
        return self._split_for_tasks(ranges)


class StreamReader(_TopicReader, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """An unbounded read: the position is kept in Spark's checkpoint."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = read_options(options, streaming=True)
        self._opened: TopicLookup | None = None
        self._upto: Position | None = None
        self._ends: Position | None = None
        self._committed_offsets: Mapping[Any, int] = {}
        self._late_loss: tuple[Mapping[Any, int], int] = ({}, 0)
        """Where a batch ends that lost records after its end was planned, and how many: the next end counts them."""
        # In the past, so that the first batch does not wait for minOffsetsPerTrigger.
        self._last_batch_s = float("-inf")

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader for its tasks, and a connection cannot be pickled.
        return {**self.__dict__, "_opened": None}

    @property
    def _lookup(self) -> TopicLookup:
        if self._opened is None:
            self._opened = TopicLookup(self.options.client, self.options.choice)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a query without batches begins.

        Spark asks again at every start until a batch is planned. The first answer is stored where that is possible:
        `latest` is somewhere else at the next start, and the records between would be skipped.
        """
        options = self.options
        checkpoint = QueryCheckpoint.at(options.checkpoint)
        name = options.choice.describe()
        stored = json.loads(options.start_position) if options.start_position else None
        if stored is None and checkpoint is not None:
            stored = checkpoint.starts().get(name)
        if stored is not None:
            position = Position.from_json(stored)
        else:
            position = self._lookup.at(options.start, "startingOffsets", late_is_latest=options.late_start_is_latest)
            if checkpoint is not None:
                checkpoint.record_starts({**checkpoint.starts(), name: position.to_json()})
        return replace(position, start=position.offsets).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a batch in the options; with both limits, `latestOffset` applies the lower one."""
        options = self.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the read at the current end offsets."""
        self._upto = self._lookup.ends()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the end offsets for Spark's progress report, as `latestOffset` last saw them."""
        return (self._upto or self._ends or self._lookup.ends(missing_ok=True)).to_json()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends. Records before `start` are processed, so the group's offsets move there."""
        position = Position.from_json(start)
        self._commit_progress(position)
        end = self._ends = self._upto or self._lookup.ends(missing_ok=not self.options.fail_on_data_loss)
        read = {where: position.offsets[where] for where in end.offsets if where in position.offsets}
        # Offsets of a deleted topic mean nothing in the topic that replaced it: read from its beginning.
        recreated = {where for where in read if position.is_recreated(end, where.topic)}
        unread = [where for where in end.offsets if where not in read or where in recreated]
        start_offsets = {**read, **self._lookup.earliest(dict.fromkeys(unread, 0))} if unread else read
        if isinstance(limit, ReadAllAvailable):
            return self._with_lost(position, end).to_json()
        options = self.options
        min_rows = options.min_offsets_per_trigger
        waited_s = time.monotonic() - self._last_batch_s
        may_wait = self._upto is None and waited_s < options.max_trigger_delay_s
        if min_rows is not None and may_wait and not has_enough(start_offsets, end.offsets, min_rows):
            return dict(start)  # Spark skips a batch that ends where it starts
        self._last_batch_s = time.monotonic()
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_offsets_per_trigger
        if max_rows is not None:
            end = Position(limit_end(start_offsets, end.offsets, max_rows), end.ids)
        return self._with_lost(position, end).to_json()

    def _with_lost(self, start: Position, end: Position) -> Position:
        """Return the end of a batch with the number of records lost so far, which are counted with the position."""
        if end.offsets == start.offsets:
            # The same text as the start's, by which Spark recognizes that there is nothing to do.
            return replace(end, lost=start.lost, start=start.start)
        # Also where losses are not allowed: the batch fails when it is read, and a restart with on_data_loss =
        # 'continue' runs the batch as it was planned here.
        lost = count_lost(start, end, self._lookup.earliest(end.offsets))
        first = start.start if start.is_initial() else None
        return replace(end, lost=start.lost + lost + self._late_loss_before(start), start=first)

    def _late_loss_before(self, start: Position) -> int:
        end, lost = self._late_loss
        return lost if end == start.offsets else 0

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[TaskRanges]:
        """Return the ranges of a batch; a batch that is planned again has the same ones."""
        start_position, end_position = Position.from_json(start), Position.from_json(end)
        if end_position.start is not None:
            # Of a first batch that is planned again the start was looked up again.
            start_position = replace(start_position, offsets=end_position.start, start=end_position.start)
        if start_position == end_position:
            return []
        partitions, _ = self._lookup.partitions(missing_ok=True)
        # After a restart Spark plans the batch again that its offset log names, perhaps days later: partitions may have
        # been deleted and log start offsets may have moved meanwhile.
        remaining = {where: offset for where, offset in end_position.offsets.items() if where in set(partitions)}
        gone = [f"{where} was deleted" for where in end_position.offsets if where not in remaining]
        # Ends of older versions do not have the start of a first batch: partitions that were added since are read by
        # the next batch.
        added = set(partitions) - end_position.offsets.keys()
        known = {where: offset for where, offset in start_position.offsets.items() if where not in added}
        start_position = replace(start_position, offsets=known)
        rest, earliest = Position(remaining, end_position.ids), self._lookup.earliest(remaining)
        ranges, lost = plan_ranges(start_position, rest, earliest)
        self._report_losses(list(dict.fromkeys([*gone, *lost])))
        counted = end_position.lost - start_position.lost - self._late_loss_before(start_position)
        self._late_loss = end_position.offsets, max(count_lost(start_position, rest, earliest) - counted, 0)
        return self._split_for_tasks(ranges)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Commit to the group that a batch is processed; Spark calls this when the next one begins."""
        self._commit_progress(Position.from_json(end))

    def _commit_progress(self, position: Position) -> None:
        group = self.options.group_id
        if group is not None and position.offsets != self._committed_offsets:
            self._lookup.commit_progress(group, position.offsets)
            self._committed_offsets = position.offsets

    def stop(self) -> None:
        """Close the connection: the query has ended."""
        lookup, self._opened = self._opened, None
        if lookup is not None:
            lookup.close()
