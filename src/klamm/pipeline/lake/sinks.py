"""The sink that a statement names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from klamm.model.errors import ConfigError
from klamm.pipeline.lake.tables import FILES, LakeTable, Merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class LakeSink(Protocol):
    """Writes numbered batches."""

    def write(self, frame: DataFrame, app: str, batch: int) -> bool:
        """Make a batch part of the table, once, however often it is asked to; False when it was there."""

    def replace(self, frame: DataFrame, app: str, batch: int) -> bool:
        """As `write`, but the rows take the place of the partitions they fall into."""

    def merges(self, target: int) -> list[Merge]:
        """What a compaction to files of about `target` bytes would do."""

    def compact(self, target: int, advance: Callable[[int], None]) -> int:
        """Do it; `advance` is told how many files are done. Returns how many were replaced."""


def open_sink(table: LakeTable) -> LakeSink:
    """The sink of a table; ConfigError when what it needs is not installed."""
    if table.format == "delta":
        from klamm.pipeline.lake.delta import DeltaSink  # noqa: PLC0415 - each needs its own library

        return DeltaSink(table)
    if table.format == "iceberg":
        from klamm.pipeline.lake.iceberg import IcebergSink  # noqa: PLC0415

        return IcebergSink(table)
    if table.format in FILES and table.local is not None:
        from klamm.pipeline.lake.files import FileSink  # noqa: PLC0415

        return FileSink(table)
    raise ConfigError(f"{table.name}: {table.format} in {table.path} is no folder that files can be moved in")
