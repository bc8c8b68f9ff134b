"""The identity of a pipeline whose checkpoints are on a shared file system: hdfs://, s3a://, gs://, ...

It is read and written by Spark's file systems. Status, lock and stop request stay in the folder of the machine that
runs the pipeline, with a copy of the identity, so that `plan` needs no Spark. The one beside the checkpoints wins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.model.errors import ConfigError
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.spark_jvm import hadoop_configuration, jvm_of
from klamm.pipeline.sql.status import IDENTITY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_remote(path: str) -> bool:
    """Whether a path is on a file system that only Spark reaches, not on this machine."""
    return "://" in path


class RemoteIdentity:
    """The identity file in a remote folder."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._jvm: Any = jvm_of(spark)
        self._configuration: Any = hadoop_configuration(spark)
        self.path = path

    def _open(self, name: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(self.path, name)
        return path.getFileSystem(self._configuration), path

    def identity(self) -> QueryIdentity | None:
        """Return the stored identity; None for a new folder."""
        files, path = self._open(IDENTITY)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return QueryIdentity.decode(text, f"{self.path}/{IDENTITY}")

    def keep(self, identity: QueryIdentity) -> None:
        """Store the identity atomically."""
        files, part = self._open(f".{IDENTITY}.part")
        stream = files.create(part, True)
        try:
            stream.write(bytearray(identity.encode().encode()))
        finally:
            stream.close()
        _, path = self._open(IDENTITY)
        # Hadoop's rename does not replace a file. A crash between the two calls leaves no identity here; the next run
        # on this machine writes its local copy again.
        if files.exists(path):
            files.delete(path, False)
        # Hadoop reports most failures of a rename by its result alone.
        if not files.rename(part, path):
            raise ConfigError(f"{self.path}/{IDENTITY} was not written: the rename of {part} to it failed")
