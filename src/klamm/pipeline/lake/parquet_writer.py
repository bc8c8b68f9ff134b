"""Writes a task's rows for Delta and Iceberg: Parquet files from Arrow batches, and a line per file for the driver.

No Python object is made per row. File names are new for every attempt, so a task that is retried, or runs twice by
speculation, never overwrites files; only those of the attempt that Spark accepted are committed.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from klamm.pipeline.core.lake_tables import DataFile, app_key, partition_folder

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame

_LINES: Final = "file string"
_ROWS_PER_GROUP: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ParquetTaskWriter:
    """Writes the rows of one task; Spark pickles a copy for every task."""

    root: str
    prefix: str
    partition_by: tuple[str, ...]
    keep: bool
    """Whether partition columns are in the files as well: they are in those of Iceberg, and not in those of Delta."""
    storage: Mapping[str, str] = field(default_factory=dict)
    iceberg: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of a task and yield a line per file; `mapInArrow` calls this."""
        import pyarrow as pa  # noqa: PLC0415 - an extra

        lines = [file.encode() for file in self.write(batches)]
        yield pa.record_batch({"file": pa.array(lines, pa.string())})

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[DataFile]:
        """Write rows, which are sorted by partition, so that one file is open at a time; return the files."""
        files: list[DataFile] = []
        open_file: _OpenFile | None = None
        try:
            for rows in batches:
                for partition, partition_rows in split_by_partition(cast_to_utc(rows), self.partition_by):
                    # Rows are sorted by partition, so this one does not come back.
                    if open_file is not None and open_file.partition != partition:
                        files.append(open_file.close())
                        open_file = None
                    columns = partition_rows if self.keep else partition_rows.drop_columns(list(self.partition_by))
                    if open_file is None:
                        open_file = self._open(partition, columns.schema)
                    open_file.write(columns)
            if open_file is not None:
                files.append(open_file.close())
                open_file = None
        except BaseException:
            # An attempt that fails removes its files: nothing refers to them.
            paths = [file.path for file in files] + ([open_file.path] if open_file else [])
            for path in paths:
                with contextlib.suppress(Exception):
                    self._remove(path)
            raise
        return files

    def _open(self, partition: tuple[tuple[str, str | None], ...], schema: pa.Schema) -> _OpenFile:
        folder = partition_folder(partition)
        name = f"{self.prefix}-{uuid.uuid4().hex}.parquet"
        path = "/".join(segment for segment in (self.root.rstrip("/"), folder, name) if segment)
        return _OpenFile(path, partition, schema, self._stream(path))

    def _stream(self, path: str) -> Any:
        if self.iceberg:
            from pyiceberg.io import load_file_io  # noqa: PLC0415 - an extra

            return load_file_io(dict(self.storage), path).new_output(path).create()
        system, inside = _system(path)
        system.create_dir(inside.rpartition("/")[0], recursive=True)
        return system.open_output_stream(inside)

    def _remove(self, path: str) -> None:
        if self.iceberg:
            from pyiceberg.io import load_file_io  # noqa: PLC0415

            load_file_io(dict(self.storage), path).delete(path)
            return
        system, inside = _system(path)
        system.delete_file(inside)


def _system(path: str) -> tuple[Any, str]:
    from pyarrow import fs  # noqa: PLC0415

    if "://" not in path:
        return fs.LocalFileSystem(), path
    system: tuple[Any, str] = fs.FileSystem.from_uri(path)
    return system


class _OpenFile:
    """A file that is being written."""

    def __init__(self, path: str, partition: tuple[tuple[str, str | None], ...], schema: pa.Schema, out: Any) -> None:
        import pyarrow.parquet as pq  # type: ignore[import-untyped] # noqa: PLC0415

        self.path = path
        self.partition = partition
        self._out = out
        self._rows = 0
        self._writer = pq.ParquetWriter(out, schema, compression="snappy")

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows, row_group_size=_ROWS_PER_GROUP)
        self._rows += rows.num_rows

    def close(self) -> DataFile:
        self._writer.close()
        # After the writer has written the footer, before the stream is closed.
        size = self._out.tell()
        self._out.close()
        return DataFile(self.path, self.partition, self._rows, size)


def split_by_partition(
    rows: pa.RecordBatch, names: Sequence[str]
) -> Iterator[tuple[tuple[tuple[str, str | None], ...], pa.RecordBatch]]:
    """Yield rows by partition: runs of equal values, as Spark has sorted the rows."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # type: ignore[import-untyped] # noqa: PLC0415

    if not rows.num_rows:
        return
    if not names:
        yield (), rows
        return
    boundary_set = {0, rows.num_rows}
    for name in names:
        # Runs of each column; a partition changes where any of them does.
        ends = pc.run_end_encode(rows.column(name), pa.int32()).run_ends
        boundary_set.update(ends.to_pylist())
    boundaries = sorted(boundary_set)
    for first, last in itertools.pairwise(boundaries):
        partition_rows = rows.slice(first, last - first)
        yield tuple((name, partition_text(partition_rows.column(name)[0].as_py())) for name in names), partition_rows


def cast_to_utc(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with timestamps in UTC: Arrow has them in the session's zone, and Iceberg accepts only UTC."""
    import pyarrow as pa  # noqa: PLC0415

    def in_utc(field: pa.Field) -> pa.Field:
        return field.with_type(pa.timestamp("us", "UTC")) if getattr(field.type, "tz", None) else field

    schema = pa.schema([in_utc(field) for field in rows.schema])
    return rows if schema == rows.schema else rows.cast(schema)


def partition_text(value: Any) -> str | None:
    """Return a partition's value as the table formats write it."""
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def write_files(frame: DataFrame, work: ParquetTaskWriter) -> list[DataFile]:
    """Run the tasks; return the files they have written, none of them part of a table yet."""
    if work.partition_by:
        # Within Spark's partitions only: no shuffle, at the price of a file per task and partition.
        frame = frame.sortWithinPartitions(*work.partition_by)
    return [DataFile.decode(row.file) for row in frame.mapInArrow(work, _LINES).collect()]


def file_prefix(app: str, batch: int) -> str:
    """Return the beginning of the names of a batch's files."""
    return f"{app_key(app)}-{batch:010d}"
