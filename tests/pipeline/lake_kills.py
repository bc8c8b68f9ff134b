"""Real drivers that load a lake, killed with -9 together with their JVM and their tasks at every named point.

Each start of a driver is a start of Spark, so these are for when they are asked for:

    python -m pytest tests/pipeline/lake_kills.py
"""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from klamm.pipeline.query_checkpoint import QueryCheckpoint
from pipeline.driver_kills import kill
from pipeline.lake_driver import POINTS

pytestmark = pytest.mark.timeout(1200)


def start(kind, folder, *death):
    names = [str(folder / name) for name in ("in", "lake", "checkpoint")]
    command = [sys.executable, str(Path(__file__).with_name("lake_driver.py")), kind, *names, *death]
    with (folder / "driver.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def numbers(kind, path):
    if kind.startswith("delta"):
        table = deltalake.DeltaTable(path).to_pyarrow_dataset().to_table()
    elif kind.startswith("iceberg"):
        table = load_catalog("klamm", type="sql", uri=f"sqlite:///{path}/catalog.db").load_table("klamm.audit")
        table = table.scan().to_arrow()
    else:
        table = ds.dataset(path, format="parquet", partitioning="hive").to_table()
    return sorted(table["n"].to_pylist())


@pytest.mark.parametrize(("kind", "point"), [(kind, point) for kind, points in POINTS.items() for point in points])
def test_a_driver_killed_with_all_its_processes(tmp_path, kind, point):
    (tmp_path / "in").mkdir()
    for batch in range(3):
        rows = range(batch * 10, batch * 10 + 10)
        table = pa.table({"n": list(rows), "part": [f"p{row % 3}" for row in rows]})
        pq.write_table(table, tmp_path / "in" / f"{batch}.parquet")
    expected = [-3, *range(30)] if kind.endswith("-upsert") else list(range(30))
    reached, log = tmp_path / "reached", tmp_path / "driver.log"
    driver = start(kind, tmp_path, point, str(reached))
    try:
        deadline = time.monotonic() + 600
        while not reached.exists():
            assert time.monotonic() < deadline, log.read_text()
            assert driver.poll() is None, log.read_text()
            time.sleep(0.1)
        kill(driver)
        stored = numbers(kind, str(tmp_path / "lake"))
        assert len(stored) == len(set(stored))
        driver = start(kind, tmp_path)
        assert driver.wait(600) == 0, log.read_text()
        assert numbers(kind, str(tmp_path / "lake")) == expected
        # The ledger has judged every batch.
        assert QueryCheckpoint.at(str(tmp_path / "checkpoint")).read_written()[1].batch == 2
        # The commit log is lost: the newest batch is done again, and there already.
        shutil.rmtree(tmp_path / "checkpoint" / "commits")
        driver = start(kind, tmp_path)
        assert driver.wait(600) == 0, log.read_text()
    finally:
        kill(driver)
    assert numbers(kind, str(tmp_path / "lake")) == expected
