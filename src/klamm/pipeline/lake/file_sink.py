"""Writes a batch as plain files: Spark's writers stage it beside the folder, and the folder log moves it in.

Spark's own file sink keeps a list of valid files in _spark_metadata; a reader that does not know the list also sees the
files of a batch that ran twice. Here every file in the folder is valid.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.core.batch_ledger import BatchPosition, SinkBatch
from klamm.pipeline.core.lake_tables import LakeTable, Merge, app_key, partition_names
from klamm.pipeline.lake import compaction
from klamm.pipeline.lake.folder_log import FileMove, FolderLog

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
        self._log = FolderLog(folder)
        if os.path.isdir(os.path.join(folder, "_spark_metadata")):
            raise ConfigError(
                f"{folder} was written by Spark's file sink, which lists its valid files in _spark_metadata;"
                " write to another path, or remove the list after removing the files that are not in it"
            )

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
        """Add a batch, or replace its partitions one by one, or all rows; return False when the batch was there."""
        log = self._log
        with log.hold_lock():
            if log.has_batch(app, batch):
                return False
        # A name of its own for every attempt: a zombie of the same batch may still be writing to the last one.
        staged = log.staging(app, f"{batch}-{uuid.uuid4().hex}")
        self._stage(frame, staged)
        moves = self._moves(staged, app, batch)
        with log.hold_lock():
            if replace or replace_all:
                log.finish_decided()
            # Another driver may have finished the batch while this one computed it.
            if log.has_batch(app, batch):
                shutil.rmtree(staged, ignore_errors=True)
                return False
            if replace_all:
                # As below: recorded after it.
                compaction.replace_folder(log, moves)
                log.commit_batch(app, batch, (), position)
            elif replace:
                # Replacing is idempotent, so the batch is recorded after it: a crash in between replaces again.
                compaction.replace_partitions(log, moves)
                log.commit_batch(app, batch, (), position)
            elif moves:
                log.commit_batch(app, batch, moves, position)
            log.clear(app)
        return True

    def upsert(
        self,
        frame: DataFrame,  # noqa: ARG002
        keys: Sequence[str],  # noqa: ARG002
        app: str,  # noqa: ARG002
        batch: int,  # noqa: ARG002
        *,
        position: BatchPosition | None = None,  # noqa: ARG002
    ) -> bool:
        """Raise ConfigError: rows in plain files cannot be changed."""
        raise ConfigError(f"{self._table.where} cannot be upserted: write format = 'delta' or 'iceberg'")

    def exists(self) -> bool:
        """Whether the folder exists and has something in it."""
        return os.path.isdir(self._log.path) and bool(os.listdir(self._log.path))

    def newest(self, app: str) -> SinkBatch:
        """Return the newest batch with rows that a writer has added."""
        # A folder that was removed and made again has its old record beside it, but none of the files.
        entry = self._log.entry(app) if os.path.isdir(self._log.path) else None
        if entry is None:
            return SinkBatch()
        if entry.moves:
            with self._log.hold_lock():
                self._log.has_batch(app, entry.batch)  # finishes the moves of a driver that died
        position = BatchPosition(entry.position) if entry.position else None
        return SinkBatch(entry.batch, "" if position is None else position.digest, position)

    def plan_merges(self, target: int) -> list[Merge]:
        """Return what a compaction would do, by partition."""
        self._only_parquet()
        return compaction.plan_merges(self._log, target)

    def compact(self, target: int, advance: Callable[[int], None]) -> int:
        """Rewrite small files as larger ones; return how many files were replaced."""
        self._only_parquet()
        return compaction.compact_folder(self._log, target, advance)

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
        # Spark's default is INT96, which other readers take for nanoseconds.
        settings.set(_TIMES, "TIMESTAMP_MICROS")
        try:
            writer.save(folder)
        finally:
            # The setting belongs to the session, which other queries use as well.
            settings.set(_TIMES, before)

    def _moves(self, staged: str, app: str, batch: int) -> list[FileMove]:
        """Return the moves of a batch's files to their final names, in the folders that Spark made for partitions."""
        log = self._log
        moves: list[FileMove] = []
        for folder, folders, names in os.walk(staged):
            # A task attempt that outlives its job writes below _temporary. A partition column may start with _ as well,
            # but its folder has a "=".
            folders[:] = sorted(name for name in folders if "=" in name or not name.startswith(("_", ".")))
            for name in sorted(names):
                path = os.path.join(folder, name)
                if name.startswith(("_", ".")) or _empty(path, self._table.format):
                    continue
                match = _SUFFIX.search(name)
                final_name = f"{app_key(app)}-{batch:010d}-{len(moves):05d}{match[1] if match else ''}"
                relative = os.path.relpath(folder, staged)
                final = final_name if relative == "." else os.path.join(relative, final_name)
                moves.append(FileMove(os.path.relpath(path, log.side), final))
        return moves


def _empty(path: str, kind: str) -> bool:
    """Whether a file has no rows: Spark writes such a file for an empty batch."""
    if os.path.getsize(path) == 0:
        return True
    if kind != "parquet":
        return False
    import pyarrow.parquet as pq  # type: ignore[import-untyped] # noqa: PLC0415

    return bool(pq.read_metadata(path).num_rows == 0)
