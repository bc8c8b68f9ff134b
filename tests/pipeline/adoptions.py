"""An adoption as a run does it before its queries start, without Spark: by itself, for processes that die in it."""

from klamm.model.errors import ConfigError
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.adoption import adopt_queries, restore_queries
from klamm.pipeline.sql.core.pipeline_record import output_places
from klamm.pipeline.sql.runner import _identify, _store_identity
from klamm.pipeline.sql.snapshots import find_snapshot, list_snapshots, take_snapshot
from klamm.pipeline.sql.state_folders import home_of
from klamm.pipeline.sql.status import Home
from klamm.pipeline.sql.topics import ClusterTopics

TEXT = """
CREATE STREAM numbers (n INT) WITH (topic = '{numbers}', bad_records = 'fail');
CREATE STREAM copies WITH (topic = '{copies}') AS SELECT n FROM numbers;
CREATE TABLE counts WITH (topic = '{counts}', key = 'parity') AS
  SELECT n % 2 AS parity, count(*) AS seen FROM numbers GROUP BY n % 2;
CREATE SINK lake WITH (format = 'parquet', path = '{lake}') AS SELECT n FROM numbers;
"""
QUERIES = ("copies", "counts")
"""Those that write to topics."""
LAKE = "lake"
LABEL = "kept"


def pipeline_of(bootstrap, topics, home):
    settings = {"bootstrap": bootstrap, "checkpoint": home, "name": topics["copies"]}
    return compile_text(TEXT.format(**topics, lake=lake_of(home)), "numbers.sql", settings)


def lake_of(home):
    """Return the folder of the lake sink."""
    return f"{home}-lake"


def start(bootstrap, topics, home, adopted=(), label=None):
    """Do what a run does before its queries start, and store the identity in the order in which it does."""
    pipeline = pipeline_of(bootstrap, topics, home)
    cluster = ClusterTopics(pipeline, {})
    registry = cluster.registry()
    registry.ensure()
    folder = home_of(pipeline)
    snapshot = None if label is None else find_snapshot(folder, label)
    records = registry.read_all(pipeline.settings["name"])
    identity = _identify(pipeline, folder, registry, records, home, frozenset(), (), adopted)
    # Spark reads remote checkpoints only.
    identity = adopt_queries(None, pipeline, cluster, identity, home, adopted)
    if snapshot is not None:
        identity = restore_queries(None, pipeline, cluster, identity, home, snapshot, print)
    _store_identity(folder, registry, identity, home, output_places(pipeline, registry.host, "/"), records)
    return identity


def adopt(bootstrap, topics, home):
    """Adopt all queries."""
    return start(bootstrap, topics, home, (*QUERIES, LAKE))


def restore(bootstrap, topics, home):
    """Start from the snapshot LABEL; without it, when its checkpoints are in use already."""
    try:
        return start(bootstrap, topics, home, label=LABEL)
    except ConfigError as error:
        if "it was rebuilt or adopted since then" not in str(error):
            raise
        return start(bootstrap, topics, home)


def snapshot(home, now_ms):
    """Take the snapshot LABEL, unless there is one."""
    folder = Home(home)
    if LABEL not in [taken.label for taken in list_snapshots(folder)]:
        take_snapshot(folder, LABEL, now_ms)
