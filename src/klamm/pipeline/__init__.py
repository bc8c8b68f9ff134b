"""Topics in Spark: `format("klamm")` reads and writes them, without a jar, exactly once.

    from klamm.pipeline import session
    spark = session("orders")                       # or register(spark) for a session you have
    spark.read.format("klamm").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "orders").load()

    core                               pure: options, offset ranges, the sink's commit protocol, lake tables, framing
    topic_metadata, partition_reader   partitions and their offsets; a range of offsets as Arrow batches
    task_writer, commits_topic         a task's transaction and the driver's commit; where commits are recorded
    query_checkpoint                   what a query's checkpoint has planned and written, to compare with its sink
    data_source, source, sink          the classes that Spark calls
    sessions, java, spark_home         a session with `format("klamm")`, and what it needs to start
    executor_package, executor_check   the copy of this package for executors, and whether it can run there
    time_travel, lake, registry        a topic as of a time; tables of a lake; records with schemas
    sql, testing, progress, metrics    pipelines as SQL; tests without a cluster; what a running query reports
    tables                             the current rows of a pipeline's tables, by SQL and without Spark

The package is a client of the cluster and the only one that imports PySpark. Spark runs the queries.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from klamm.pipeline.executor_check import check_executor

if TYPE_CHECKING:
    from klamm.pipeline.core.data_loss import DataLoss
    from klamm.pipeline.core.sink_commits import SinkError
    from klamm.pipeline.lake.sinks import lake_sink
    from klamm.pipeline.registry.columns import dead_letters, from_registry, good_rows, registry_header, to_registry
    from klamm.pipeline.sessions import register, session
    from klamm.pipeline.tables.live_tables import open_tables
    from klamm.pipeline.time_travel import as_of

_HOMES = {
    "DataLoss": "core.data_loss",
    "SinkError": "core.sink_commits",
    "as_of": "time_travel",
    "dead_letters": "registry.columns",
    "from_registry": "registry.columns",
    "good_rows": "registry.columns",
    "lake_sink": "lake.sinks",
    "open_tables": "tables.live_tables",
    "register": "sessions",
    "registry_header": "registry.columns",
    "session": "sessions",
    "to_registry": "registry.columns",
}

__all__ = [
    "DataLoss",
    "SinkError",
    "as_of",
    "dead_letters",
    "from_registry",
    "good_rows",
    "lake_sink",
    "open_tables",
    "register",
    "registry_header",
    "session",
    "to_registry",
]

# An executor imports this package from the archive that the driver sent. What is missing there is reported before a
# task fails with an ImportError deep inside of a batch. Names below are loaded on use: executors need few of them.
check_executor()


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
