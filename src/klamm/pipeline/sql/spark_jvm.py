"""JVM objects of a Spark session, for which PySpark has no public interface; no other module uses its private names."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# Private names of PySpark: an upgrade that renames one of them breaks this file only.
_JVM: Final = operator.attrgetter("_jvm")
_JAVA_CONTEXT: Final = operator.attrgetter("sparkContext._jsc")
_JAVA_SESSION: Final = operator.attrgetter("_jsparkSession")
_JAVA_FRAME: Final = operator.attrgetter("_jdf")


def jvm_of(spark: SparkSession) -> Any:
    """Return the gateway to the JVM's classes."""
    return _JVM(spark)


def hadoop_configuration(spark: SparkSession) -> Any:
    """Return the configuration with which Hadoop's file systems are opened."""
    return _JAVA_CONTEXT(spark).hadoopConfiguration()


@contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one of the calling thread while the block runs, then the one before again.

    Spark looks `format("klamm")` of a writer up in the active session, not in that of the frame. One that stayed active
    would serve the caller's next queries too, and may lack the data sources that the caller has registered.
    """
    session_class = operator.methodcaller("_get_j_spark_session_class", _JVM(spark))(spark)
    # Active sessions are per JVM thread; Py4J gives every Python thread a JVM thread of its own.
    before = session_class.getActiveSession()
    session_class.setActiveSession(_JAVA_SESSION(spark))
    try:
        yield
    finally:
        if before.isDefined():
            session_class.setActiveSession(before.get())
        else:
            session_class.clearActiveSession()


def clone_session(spark: SparkSession) -> SparkSession:
    """Return a session with the views, functions and settings of another, in which views can be replaced."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - pyspark is an extra

    # newSession() would have no functions of the pipeline: a streaming query gets its session in this way, too.
    return SparkSession(spark.sparkContext, _JAVA_SESSION(spark).cloneSession())


def check_append_stream(spark: SparkSession, frame: DataFrame) -> None:
    """Raise AnalysisException when Spark would not run a frame as a stream in append mode."""
    jvm = _JVM(spark)
    # The check that Spark makes when a streaming query starts, without starting one.
    jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(
        _JAVA_FRAME(frame).queryExecution().analyzed(), jvm.org.apache.spark.sql.streaming.OutputMode.Append()
    )
