"""Opens the sink of a lake table, and `lake_sink` for `foreachBatch`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from klamm.model.errors import ConfigError
from klamm.pipeline.core.lake_tables import FILES, FORMATS, LakeTable, Merge
from klamm.pipeline.query_checkpoint import QueryCheckpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from klamm.pipeline.core.batch_ledger import BatchPosition, SinkBatch


class LakeSink(Protocol):
    """Writes numbered batches to a table."""

    def write(
        self,
        frame: DataFrame,
        app: str,
        batch: int,
        *,
        replace: bool = False,
        replace_all: bool = False,
        position: BatchPosition | None = None,
    ) -> bool:
        """Add a batch to the table; return False when it is there already.

        With `replace` its rows replace the partitions they belong to, with `replace_all` the rows of the whole table.
        `position` is stored with the batch.
        """

    def upsert(
        self, frame: DataFrame, keys: Sequence[str], app: str, batch: int, *, position: BatchPosition | None = None
    ) -> bool:
        """Insert, update and delete rows by their key; return False when the batch was there.

        `frame` has at most one row of each key, and a column DELETED that is true for keys to delete.
        """

    def exists(self) -> bool:
        """Whether the table exists."""

    def newest(self, app: str) -> SinkBatch:
        """Return the newest batch with rows that a writer has added."""

    def plan_merges(self, target: int) -> list[Merge]:
        """Return what a compaction to files of about `target` bytes would do."""

    def compact(self, target: int, advance: Callable[[int], None]) -> int:
        """Compact; `advance` gets the number of files done. Return how many were replaced."""


def lake_sink(
    format: str,
    path: str | None = None,
    *,
    app: str,
    table: str | None = None,
    partition_by: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    checkpoint: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that loads a table exactly once.

        stream.writeStream.foreachBatch(lake_sink("delta", "lake/a", app="a"))

    `app` names the query in the table, for ever: under another name all batches are written again. `checkpoint` is the
    query's checkpointLocation: with it a checkpoint that was set back or removed is refused. The other arguments are
    the options of a SINK statement.
    """
    if format not in FORMATS:
        raise ConfigError(f"{format} is not a lake format: write {', '.join(FORMATS)}")
    if path is None and format != "iceberg":
        raise ConfigError(f"{format} needs a path")
    sink = open_sink(LakeTable(table or app, format, path, table, tuple(partition_by), dict(options or {})))

    def save(rows: DataFrame, batch: int) -> None:
        write_checked(sink, rows, app, batch, QueryCheckpoint.at(checkpoint))

    return save


def write_checked(
    sink: LakeSink,
    rows: DataFrame,
    app: str,
    batch: int,
    checkpoint: QueryCheckpoint | None,
    keys: Sequence[str] = (),
    *,
    replace_all: bool = False,
) -> None:
    """Add a batch with its source position; LedgerError when the checkpoint did not write what the table has.

    With `keys` rows are upserted, with `replace_all` they replace those of the table.
    """
    if checkpoint is not None:
        checkpoint.check_batch(app, sink.newest(app), batch)
    position = checkpoint.position(batch) if checkpoint is not None else None
    if keys:
        sink.upsert(rows, keys, app, batch, position=position)
    else:
        sink.write(rows, app, batch, replace_all=replace_all, position=position)
    if checkpoint is None:
        return
    # A batch without rows leaves no record in the table.
    if sink.newest(app).batch == batch:
        checkpoint.record_written(app, batch)


def open_sink(table: LakeTable) -> LakeSink:
    """Return the sink of a table; ConfigError when its library is not installed."""
    if table.format == "delta":
        from klamm.pipeline.lake.delta import DeltaSink  # noqa: PLC0415 - each needs its own library

        return DeltaSink(table)
    if table.format == "iceberg":
        from klamm.pipeline.lake.iceberg import IcebergSink  # noqa: PLC0415

        return IcebergSink(table)
    # Object stores have no atomic rename, on which the folder log depends.
    if table.format in FILES and table.local is not None:
        from klamm.pipeline.lake.file_sink import FileSink  # noqa: PLC0415

        return FileSink(table)
    raise ConfigError(f"{table.name}: {table.format} in {table.path} needs a local folder, where files can be renamed")
