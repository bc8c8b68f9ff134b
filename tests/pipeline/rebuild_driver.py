"""A driver of its own that rebuilds a table and a lake sink, to be killed.

python rebuild_driver.py BOOTSTRAP NUMBERS SUMS FOLDER KIND VERSION [POINT FILE]

At the POINT it makes FILE, and waits for its end. Without one it continues, and rebuilds if that is asked for.
"""

import sys
import time
from pathlib import Path

from klamm.model.errors import ConfigError
from klamm.pipeline.sql import compile_text, runner
from klamm.pipeline.sql.pipeline_registry import PipelineRegistry
from klamm.pipeline.sql.rebuilds import Rebuild
from klamm.pipeline.sql.status import Home
from klamm.pipeline.sql.topics import ClusterTopics

TEXT = """
CREATE STREAM numbers (n INT) WITH (topic = '{numbers}', max_records = '4', bad_records = 'fail');
CREATE TABLE sums WITH (topic = '{sums}', key = 'k') AS
  SELECT n % 3 AS k, {total} AS total FROM numbers {where} GROUP BY n % 3;
CREATE SINK lake WITH ({options}, path = '{folder}/lake') AS SELECT n, {sign} AS sign FROM numbers;
"""
UPSERT = ", mode = 'upsert', key = 'n', order_by = 'n'"
KINDS = {
    "delta": "format = 'delta'",
    "iceberg": "format = 'iceberg'",
    "parquet": "format = 'parquet'",
    "delta-upsert": f"format = 'delta'{UPSERT}",
    "iceberg-upsert": f"format = 'iceberg'{UPSERT}",
}
"""The options of the lake sink."""
VERSIONS = {
    "old": {"total": "sum(n)", "where": "", "sign": "1"},
    "new": {"total": "count(*)", "where": "WHERE n % 3 <> 2", "sign": "-1"},
}
QUERIES = ("sums", "lake")
POINTS = {
    "prepared": (runner, "prepare_rebuilds", True),
    "identity-stored": (Home, "keep", True),
    "record-stored": (PipelineRegistry, "keep", True),
    "staging": (Rebuild, "stage", False),
    "staged": (Rebuild, "stage", True),
    "switching": (ClusterTopics, "write", False),
    "switched": (ClusterTopics, "write", True),
    "replacing": (ClusterTopics, "replace", False),
    "replaced": (ClusterTopics, "replace", True),
    "clearing": (Rebuild, "clear", False),
    "cleared": (Rebuild, "clear", True),
}
"""Where a driver dies: what is called then, and whether it has been done."""


def wait_at(point, file):
    """Stay at a point from now on."""
    owner, name, after = POINTS[point]
    original = getattr(owner, name)

    def call(*args, **keywords):
        if after:
            original(*args, **keywords)
        Path(file).touch()
        time.sleep(3600)

    setattr(owner, name, call)


def main() -> None:
    bootstrap, numbers, sums, folder, kind, version, *death = sys.argv[1:]
    settings = {"bootstrap": bootstrap, "checkpoint": f"{folder}/home", "partitions": "1", "restarts": "5"}
    settings |= {"name": sums, "spark.log.level": "OFF", "spark.sql.shuffle.partitions": "2"}
    text = TEXT.format(numbers=numbers, sums=sums, folder=folder, options=KINDS[kind], **VERSIONS[version])
    pipeline = compile_text(text, "sums.sql", settings)
    if death:
        wait_at(*death)
        runner.run_pipeline(pipeline, once=True, progress=False, master="local[2]", rebuild=QUERIES)
        return
    try:
        runner.run_pipeline(pipeline, once=True, progress=False, master="local[2]")
    except ConfigError as error:
        if "must be rebuilt" not in str(error):
            raise
        runner.run_pipeline(pipeline, once=True, progress=False, master="local[2]", rebuild=QUERIES)


if __name__ == "__main__":
    main()
