"""Topics in Spark: `format("klamm")` reads and writes them, without a jar, exactly once.

    from klamm.pipeline import session
    spark = session("orders")                       # or register(spark) for a session you have
    spark.read.format("klamm").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "orders").load()

    options, offsets     pure: the connector's options; positions, ranges and limits
    view, reading        asking a cluster where topics begin and end; a range as Arrow batches
    commits              pure: what makes many transactions one batch, and what a replay makes of it
    ledger, writing      where that is kept; what a task writes and a driver commits
    source, sink, format Spark's faces of the above            java, sessions, progress   a session that works
    shipping, arrival    the package goes to executors, and looks around there
    history, lake        a topic as it was at a time; tables of a lake that pipelines write
    registry             records with schemas: from_registry, to_registry

The room is a client of the cluster and the only one that imports PySpark. It does not run queries: Spark does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from klamm.pipeline.executor_check import check_executor

if TYPE_CHECKING:
    from klamm.pipeline.core.sink_commits import SinkError
    from klamm.pipeline.lake.sinks import lake_sink
    from klamm.pipeline.partition_reader import DataLoss
    from klamm.pipeline.registry.columns import dead_letters, from_registry, good_rows, registry_header, to_registry
    from klamm.pipeline.sessions import register, session
    from klamm.pipeline.time_travel import as_of

_HOMES = {
    "DataLoss": "partition_reader",
    "SinkError": "core.sink_commits",
    "as_of": "time_travel",
    "dead_letters": "registry.columns",
    "from_registry": "registry.columns",
    "good_rows": "registry.columns",
    "lake_sink": "lake.sinks",
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
    "register",
    "registry_header",
    "session",
    "to_registry",
]

check_executor()


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
