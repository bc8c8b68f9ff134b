"""An adoption as a run does it before its queries start, without Spark: by itself, for processes that die in it."""

from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.adoption import adopt_queries
from klamm.pipeline.sql.runner import _identify
from klamm.pipeline.sql.state_folders import home_of
from klamm.pipeline.sql.topics import ClusterTopics

TEXT = """
CREATE STREAM numbers (n INT) WITH (topic = '{numbers}', bad_records = 'fail');
CREATE STREAM copies WITH (topic = '{copies}') AS SELECT n FROM numbers;
CREATE TABLE counts WITH (topic = '{counts}', key = 'parity') AS
  SELECT n % 2 AS parity, count(*) AS seen FROM numbers GROUP BY n % 2;
"""
QUERIES = ("copies", "counts")


def pipeline_of(bootstrap, topics, home):
    settings = {"bootstrap": bootstrap, "checkpoint": home, "name": topics["copies"]}
    return compile_text(TEXT.format(**topics), "numbers.sql", settings)


def adopt(bootstrap, topics, home):
    """Adopt both queries, and store the identity in the order in which a run does."""
    pipeline = pipeline_of(bootstrap, topics, home)
    cluster = ClusterTopics(pipeline, {})
    registry = cluster.registry()
    registry.ensure()
    folder = home_of(pipeline)
    identity = _identify(pipeline, folder, registry, home, frozenset(), (), QUERIES)
    # Spark reads remote checkpoints only.
    identity = adopt_queries(None, pipeline, cluster, identity, home, QUERIES)
    folder.keep(identity)
    registry.keep(identity, home)
    return identity
