"""The sink that a statement names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from klamm.model.errors import ConfigError
from klamm.pipeline.core.lake_tables import FILES, FORMATS, LakeTable, Merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class LakeSink(Protocol):
    """Writes numbered batches."""

    def write(self, frame: DataFrame, app: str, batch: int, *, replace: bool = False) -> bool:
        """Make a batch part of the table, once, however often it is asked to; False when it was there.

        With `replace` its rows take the place of the partitions they fall into.
        """

    def merges(self, target: int) -> list[Merge]:
        """What a compaction to files of about `target` bytes would do."""

    def compact(self, target: int, advance: Callable[[int], None]) -> int:
        """Do it; `advance` is told how many files are done. Returns how many were replaced."""


def lake_sink(
    format: str,
    path: str | None = None,
    *,
    app: str,
    table: str | None = None,
    partition_by: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> Callable[[DataFrame, int], None]:
    """What `foreachBatch` takes to load a table exactly once: `.foreachBatch(lake_sink("delta", "lake/a", app="a"))`.

    `app` names the query in the table, for ever: another name writes everything again. The rest is what a SINK says.
    """
    if format not in FORMATS:
        raise ConfigError(f"{format} is no format of a lake: write {', '.join(FORMATS)}")
    if path is None and format != "iceberg":
        raise ConfigError(f"{format} needs a path")
    sink = open_sink(LakeTable(table or app, format, path, table, tuple(partition_by), dict(options or {})))

    def save(rows: DataFrame, batch: int) -> None:
        sink.write(rows, app, batch)

    return save


def open_sink(table: LakeTable) -> LakeSink:
    """The sink of a table; ConfigError when what it needs is not installed."""
    if table.format == "delta":
        from klamm.pipeline.lake.delta import DeltaSink  # noqa: PLC0415 - each needs its own library

        return DeltaSink(table)
    if table.format == "iceberg":
        from klamm.pipeline.lake.iceberg import IcebergSink  # noqa: PLC0415

        return IcebergSink(table)
    if table.format in FILES and table.local is not None:
        from klamm.pipeline.lake.file_sink import FileSink  # noqa: PLC0415

        return FileSink(table)
    raise ConfigError(f"{table.name}: {table.format} in {table.path} is no folder that files can be moved in")
