"""The identity of a pipeline whose checkpoints lie where all of a cluster sees them: hdfs://, s3a://, gs://, ...

Spark reads and writes there. Status, lock and the wish to stop stay in the folder of the machine that runs it, with a
copy of the identity, so that `plan` needs no Spark. What lies beside the checkpoints counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.pipeline.sql.core.identity import Identity
from klamm.pipeline.sql.status import IDENTITY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_remote(path: str) -> bool:
    """Whether a folder is Spark's to reach, and not a path of this machine."""
    return "://" in path


class RemoteIdentity:
    """A folder that Spark's file systems know."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._jvm: Any = spark._jvm
        self._configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()
        self.path = path

    def _open(self, name: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(self.path, name)
        return path.getFileSystem(self._configuration), path

    def identity(self) -> Identity | None:
        """What made the checkpoints; None when nothing did yet."""
        files, path = self._open(IDENTITY)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return Identity.decode(text, f"{self.path}/{IDENTITY}")

    def keep(self, identity: Identity) -> None:
        """Write the identity down, the whole of it or none."""
        files, part = self._open(f".{IDENTITY}.part")
        stream = files.create(part, True)
        try:
            stream.write(bytearray(identity.encode().encode()))
        finally:
            stream.close()
        _, path = self._open(IDENTITY)
        if files.exists(path):
            files.delete(path, False)
        files.rename(part, path)
