"""`format("klamm")` for reading: what Spark's planner and tasks ask, answered by `view` and `reading`.

Spark calls a reader in several processes: the planner of a query keeps one for its life and asks it for offsets and
partitions, tasks get a copy and read. So a reader opens its connection when it is first asked, and copies are without.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
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
from klamm.pipeline.core.offsets import Position, Range, group_ranges, has_enough, limit_end, plan_ranges, split_ranges
from klamm.pipeline.partition_reader import DataLoss, read_range
from klamm.pipeline.topic_metadata import TopicLookup
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_log = get_logger("pipeline")
_FEW = 200
"""Rows for which a task of their own is not worth its start, some ten milliseconds."""

_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
_HEADERS = "headers array<struct<key: string, value: binary>>"


def schema(options: Mapping[str, str]) -> str:
    """The columns of the Kafka connector; headers when they are asked for."""
    wanted = {name.lower(): value for name, value in options.items()}.get("includeheaders", "false")
    return f"{_COLUMNS}, {_HEADERS}" if wanted.strip().lower() == "true" else _COLUMNS


class TaskRanges(InputPartition):  # type: ignore[misc]
    """What one task reads."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class _Reads:
    """What both kinds of readers share."""

    options: ReadOptions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        if not isinstance(partition, TaskRanges):
            return  # Spark asks one task for a read that has no pieces: the topics are empty
        options = self.options
        for range_ in partition.ranges:
            yield from read_range(
                range_,
                options.client,
                headers=options.include_headers,
                fail_on_data_loss=options.fail_on_data_loss,
            )

    def _pieces(self, ranges: list[Range]) -> list[TaskRanges]:
        options = self.options
        pieces = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
        as_they_are = options.min_partitions is not None or options.max_records_per_partition is not None
        return [TaskRanges(each) for each in group_ranges(pieces, 1 if as_they_are else _FEW)]

    def _lost(self, words: list[str]) -> None:
        """Refuse, or say and go on, as failOnDataLoss tells."""
        if words and self.options.fail_on_data_loss:
            raise DataLoss("; ".join(words))
        for word in words:
            _log.warning("records are lost", reason=word)


class BatchReader(_Reads, DataSourceReader):  # type: ignore[misc]
    """A bounded read: where it begins and ends is looked up once, when it is planned."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = read_options(options, streaming=False)

    def partitions(self) -> Sequence[TaskRanges]:
        """The ranges from the starting to the ending offsets."""
        options = self.options
        with TopicLookup(options.client, options.choice) as view:
            start = view.at(options.start, "startingOffsets", late_is_latest=options.late_start_is_latest)
            end = view.at(options.end, "endingOffsets", late_is_latest=True)
            earliest = view.earliest(end.offsets)
        ranges, lost = plan_ranges(start, end, earliest)
        self._lost(lost)
        return self._pieces(ranges)


class StreamReader(_Reads, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """An unbounded read: the checkpoint is the position of record."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = read_options(options, streaming=True)
        self._open: TopicLookup | None = None
        self._upto: Position | None = None
        self._ends: Position | None = None
        self._shown: Mapping[Any, int] = {}
        self._last_batch_s = float("-inf")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    @property
    def _view(self) -> TopicLookup:
        if self._open is None:
            self._open = TopicLookup(self.options.client, self.options.choice)
        return self._open

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint begins."""
        options = self.options
        found = self._view.at(options.start, "startingOffsets", late_is_latest=options.late_start_is_latest)
        return found.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The most or the least of a batch, as the options say; with both, `latestOffset` looks at the least."""
        options = self.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to what is there now, and no further."""
        self._upto = self._view.ends()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """How far one could read, for those who watch: as `latestOffset` has just seen it."""
        return (self._upto or self._ends or self._view.ends(missing_ok=True)).to_json()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next batch goes. All before `start` is processed, which is shown to the group at once."""
        begun = Position.from_json(start)
        self._show(begun)
        end = self._ends = self._upto or self._view.ends(missing_ok=not self.options.fail_on_data_loss)
        known = {where: begun.offsets[where] for where in end.offsets if where in begun.offsets}
        again = {where for where in known if begun.is_recreated(end, where.topic)}
        new = [where for where in end.offsets if where not in known or where in again]
        base = {**known, **self._view.earliest(dict.fromkeys(new, 0))} if new else known
        if isinstance(limit, ReadAllAvailable):
            return end.to_json()
        options = self.options
        least = options.min_offsets_per_trigger
        waited_s = time.monotonic() - self._last_batch_s
        may_wait = self._upto is None and waited_s < options.max_trigger_delay_s
        if least is not None and may_wait and not has_enough(base, end.offsets, least):
            return dict(start)
        self._last_batch_s = time.monotonic()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_offsets_per_trigger
        if most is None:
            return end.to_json()
        return Position(limit_end(base, end.offsets, most), end.ids).to_json()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[TaskRanges]:
        """The ranges of a batch, the same whenever it is planned again."""
        first, last = Position.from_json(start), Position.from_json(end)
        if first == last:
            return []
        places, _ = self._view.partitions(missing_ok=True)
        there = {where: offset for where, offset in last.offsets.items() if where in set(places)}
        gone = [f"{where} is gone" for where in last.offsets if where not in there]
        ranges, lost = plan_ranges(first, Position(there, last.ids), self._view.earliest(there))
        self._lost(list(dict.fromkeys([*gone, *lost])))
        return self._pieces(ranges)

    def commit(self, end: Mapping[str, Any]) -> None:
        """A batch is processed; Spark tells when the next one begins."""
        self._show(Position.from_json(end))

    def _show(self, position: Position) -> None:
        group = self.options.group_id
        if group is not None and position.offsets != self._shown:
            self._view.show_progress(group, position.offsets)
            self._shown = position.offsets

    def stop(self) -> None:
        """The query ends."""
        found, self._open = self._open, None
        if found is not None:
            found.close()
