"""The positions of a database source in its checkpoint: ranges that were begun, and those that are done.

The files are `offsets/N` and `commits/N`, as Spark has them for its own sources, on this machine or on any file system
that Spark reaches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from klamm.pipeline.checkpoint_folder import CheckpointFolder, LocalFolder
from klamm.pipeline.sql.core.jdbc_cursors import CursorRange
from klamm.pipeline.sql.object_store_identity import is_remote
from klamm.pipeline.sql.spark_jvm import hadoop_configuration, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BATCHES_KEPT: Final = 100
_OFFSETS: Final = "offsets"
_COMMITS: Final = "commits"


class HadoopFolder:
    """A folder of a file system that Spark supports: hdfs://, s3a:// and so on."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path
        self._jvm: Any = jvm_of(spark)
        self._files: Any = self._jvm.org.apache.hadoop.fs.Path(path).getFileSystem(hadoop_configuration(spark))
        for kind in (_OFFSETS, _COMMITS):
            self._files.mkdirs(self._at(kind))

    def _at(self, *names: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path("/".join((self.path, *names)))

    def names(self, kind: str) -> list[str]:
        """Return the names of the files of a kind."""
        if not self._files.exists(self._at(kind)):
            return []
        return [str(status.getPath().getName()) for status in self._files.listStatus(self._at(kind))]

    def read(self, kind: str, name: str) -> str:
        """Return a file's text."""
        path = self._at(kind, name)
        if not self._files.exists(path):
            raise FileNotFoundError(f"{self.path}/{kind}/{name} does not exist")
        stream = self._files.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, kind: str, name: str, text: str, *, durable: bool = True) -> None:  # noqa: ARG002
        """Write a file atomically; as durable as the file system makes it."""
        temporary = self._at(kind, f".{name}.new")
        stream = self._files.create(temporary, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        target = self._at(kind, name)
        # Hadoop's rename does not replace an existing file.
        if self._files.exists(target):
            self._files.delete(target, False)
        if not self._files.rename(temporary, target):
            raise OSError(f"{self.path}/{kind}/{name} cannot be written")

    def remove(self, kind: str, name: str) -> None:
        """Remove a file."""
        self._files.delete(self._at(kind, name), False)

    def remove_folder(self, kind: str, name: str) -> None:
        """Remove a folder with its files, if it exists."""
        self._files.delete(self._at(kind, name), True)


class JdbcPositions:
    """The ranges that a source has begun and done."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder

    @classmethod
    def at(cls, spark: SparkSession, path: str) -> JdbcPositions:
        """Return the positions in a checkpoint's folder."""
        return cls(HadoopFolder(spark, path) if is_remote(path) else LocalFolder(path))

    def _numbers(self, kind: str) -> list[int]:
        # Other names are temporary files of a crash.
        return sorted(int(name) for name in self._folder.names(kind) if name.isdecimal())

    def last(self) -> tuple[int, CursorRange, bool] | None:
        """Return the newest batch: its number, its range and whether it is done; None for a new checkpoint."""
        begun = self._numbers(_OFFSETS)
        if not begun:
            return None
        batch_number = begun[-1]
        range_ = CursorRange.decode(
            self._folder.read(_OFFSETS, str(batch_number)), f"{self._folder.path}/{_OFFSETS}/{batch_number}"
        )
        return batch_number, range_, batch_number in self._numbers(_COMMITS)

    def begin(self, number: int, wanted: CursorRange) -> None:
        """Record a range; it is durable before its rows are read, so that a restart reads the same rows."""
        self._folder.write(_OFFSETS, str(number), wanted.encode())

    def mark_done(self, number: int) -> None:
        """Record that a range's rows are in the topic, and remove old files."""
        self._folder.write(_COMMITS, str(number), "{}")
        for kind in (_OFFSETS, _COMMITS):
            # As Spark's minBatchesToRetain: older files are for diagnosis only.
            for old in self._numbers(kind)[:-_BATCHES_KEPT]:
                self._folder.remove(kind, str(old))
