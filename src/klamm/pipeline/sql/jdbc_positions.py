"""Where the positions of a source in a database are kept: ranges that were begun, and those that are done.

Files of the query's checkpoint, `offsets/N` and `commits/N`, as Spark has them for its own sources; here, or wherever
Spark's file systems reach.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Protocol

from klamm.pipeline.sql.core.jdbc_cursors import CursorRange
from klamm.pipeline.sql.object_store_identity import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEPT: Final = 100
_BEGUN: Final = "offsets"
_DONE: Final = "commits"


class CheckpointFolder(Protocol):
    """A place for small files."""

    path: str

    def names(self, kind: str) -> list[str]:
        """The files there are."""

    def read(self, kind: str, name: str) -> str:
        """The text of one."""

    def write(self, kind: str, name: str, text: str) -> None:
        """Durable, the whole of it or none."""

    def remove(self, kind: str, name: str) -> None:
        """Forget one."""


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: str) -> None:
        self.path = path
        for each in (_BEGUN, _DONE):
            os.makedirs(os.path.join(path, each), exist_ok=True)

    def names(self, kind: str) -> list[str]:
        """The files there are."""
        return os.listdir(os.path.join(self.path, kind))

    def read(self, kind: str, name: str) -> str:
        """The text of one."""
        with open(os.path.join(self.path, kind, name), encoding="utf-8") as file:
            return file.read()

    def write(self, kind: str, name: str, text: str) -> None:
        """Durable, the whole of it or none."""
        folder = os.path.join(self.path, kind)
        temporary = os.path.join(folder, f".{name}.new")
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, os.path.join(folder, name))
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def remove(self, kind: str, name: str) -> None:
        """Forget one."""
        os.unlink(os.path.join(self.path, kind, name))


class HadoopFolder:
    """A folder of a file system that Spark knows: hdfs://, s3a:// and so on."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path
        self._jvm: Any = spark._jvm
        self._files: Any = self._jvm.org.apache.hadoop.fs.Path(path).getFileSystem(
            spark.sparkContext._jsc.hadoopConfiguration()
        )
        for each in (_BEGUN, _DONE):
            self._files.mkdirs(self._at(each))

    def _at(self, *names: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path("/".join((self.path, *names)))

    def names(self, kind: str) -> list[str]:
        """The files there are."""
        return [str(each.getPath().getName()) for each in self._files.listStatus(self._at(kind))]

    def read(self, kind: str, name: str) -> str:
        """The text of one."""
        stream = self._files.open(self._at(kind, name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, kind: str, name: str, text: str) -> None:
        """The whole of it or none; durable as that file system makes it."""
        temporary = self._at(kind, f".{name}.new")
        stream = self._files.create(temporary, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        target = self._at(kind, name)
        if self._files.exists(target):
            self._files.delete(target, False)
        if not self._files.rename(temporary, target):
            raise OSError(f"{self.path}/{kind}/{name} cannot be written")

    def remove(self, kind: str, name: str) -> None:
        """Forget one."""
        self._files.delete(self._at(kind, name), False)


class Positions:
    """What a source has begun and done."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder

    @classmethod
    def at(cls, spark: SparkSession, path: str) -> Positions:
        """In a checkpoint."""
        return cls(HadoopFolder(spark, path) if is_remote(path) else LocalFolder(path))

    def _numbers(self, kind: str) -> list[int]:
        return sorted(int(name) for name in self._folder.names(kind) if name.isdecimal())

    def last(self) -> tuple[int, CursorRange, bool] | None:
        """The newest batch: its number, its range and whether it is done."""
        begun = self._numbers(_BEGUN)
        if not begun:
            return None
        number = begun[-1]
        found = CursorRange.decode(self._folder.read(_BEGUN, str(number)), f"{self._folder.path}/{_BEGUN}/{number}")
        return number, found, number in self._numbers(_DONE)

    def begin(self, number: int, wanted: CursorRange) -> None:
        """Durable before it is read."""
        self._folder.write(_BEGUN, str(number), wanted.encode())

    def done(self, number: int) -> None:
        """The range is in the topic."""
        self._folder.write(_DONE, str(number), "{}")
        for kind in (_BEGUN, _DONE):
            for each in self._numbers(kind)[:-_KEPT]:
                self._folder.remove(kind, str(each))
