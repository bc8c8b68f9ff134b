"""A batch as plain files, by Spark's own writers: written beside the folder, then moved into it by the ledger.

Spark's file sink keeps a list of files that count, and a reader that does not know the list sees what a batch that was
done twice has left. Here what lies in the folder is what counts.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.core.lake_tables import LakeTable, Merge, app_key, partition_names
from klamm.pipeline.lake import compaction
from klamm.pipeline.lake.folder_log import FolderLog, Move

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SUFFIX: Final = re.compile(r"(?:[-.]c\d+)?((?:\.[A-Za-z0-9]+)+)$")
_TIMES: Final = "spark.sql.parquet.outputTimestampType"


class FileSink:
    """A folder of files on a file system that driver and tasks share."""

    def __init__(self, table: LakeTable) -> None:
        folder = table.local
        assert folder is not None
        self._table = table
        self._ledger = FolderLog(folder)
        if os.path.isdir(os.path.join(folder, "_spark_metadata")):
            raise ConfigError(
                f"{folder} was written by Spark's file sink, which lists in _spark_metadata what counts;"
                " write to another path, or move that list away once nothing outside of it is there"
            )

    def write(self, frame: DataFrame, app: str, batch: int, *, replace: bool = False) -> bool:
        """Add a batch, or let it take the place of its partitions, folder by folder; False when it was there."""
        ledger = self._ledger
        with ledger.locked():
            if ledger.settled(app, batch):
                return False
        staged = ledger.staging(app, f"{batch}-{uuid.uuid4().hex}")
        self._stage(frame, staged)
        moves = self._moves(staged, app, batch)
        with ledger.locked():
            if replace:
                ledger.settle_all()
            # Another driver may have come to its end meanwhile.
            if ledger.settled(app, batch):
                shutil.rmtree(staged, ignore_errors=True)
                return False
            if replace:
                compaction.replace_partitions(ledger, moves)
                ledger.settle(app, batch, ())
            elif moves:
                ledger.settle(app, batch, moves)
            ledger.clear(app)
        return True

    def merges(self, target: int) -> list[Merge]:
        """What a compaction would do, by partition."""
        self._only_parquet()
        return compaction.plan_merges(self._ledger, target)

    def compact(self, target: int, advance: Callable[[int], None]) -> int:
        """Rewrite small files as larger ones; returns how many files were replaced."""
        self._only_parquet()
        return compaction.compact_folder(self._ledger, target, advance)

    def _only_parquet(self) -> None:
        if self._table.format != "parquet":
            raise ConfigError(
                f"{self._table.name} is {self._table.format}: compaction is for parquet, delta and iceberg"
            )

    def _stage(self, frame: DataFrame, folder: str) -> None:
        table = self._table
        types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        names = partition_names(table.partition_by, types, table.name)
        writer = frame.write.format(table.format).options(**table.options)
        if names:
            writer = writer.partitionBy(*names)
        settings = frame.sparkSession.conf
        before = settings.get(_TIMES)
        # The default is a form of 12 bytes that other readers take for nanoseconds.
        settings.set(_TIMES, "TIMESTAMP_MICROS")
        try:
            writer.save(folder)
        finally:
            settings.set(_TIMES, before)

    def _moves(self, staged: str, app: str, batch: int) -> list[Move]:
        """The files of a batch under names of their own, in the folders Spark made for partitions."""
        ledger = self._ledger
        found: list[Move] = []
        for folder, folders, names in os.walk(staged):
            # An attempt that runs on after its job is done writes below _temporary; columns may begin like that, too.
            folders[:] = sorted(each for each in folders if "=" in each or not each.startswith(("_", ".")))
            for name in sorted(names):
                path = os.path.join(folder, name)
                if name.startswith(("_", ".")) or _empty(path, self._table.format):
                    continue
                match = _SUFFIX.search(name)
                own = f"{app_key(app)}-{batch:010d}-{len(found):05d}{match[1] if match else ''}"
                inside = os.path.relpath(folder, staged)
                final = own if inside == "." else os.path.join(inside, own)
                found.append(Move(os.path.relpath(path, ledger.side), final))
        return found


def _empty(path: str, kind: str) -> bool:
    """Whether a file holds nothing but its columns: Spark writes one for a batch without rows."""
    if os.path.getsize(path) == 0:
        return True
    if kind != "parquet":
        return False
    import pyarrow.parquet as pq  # type: ignore[import-untyped] # noqa: PLC0415

    return bool(pq.read_metadata(path).num_rows == 0)
