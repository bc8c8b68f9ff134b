"""Real drivers that rebuild a table and a lake sink, killed with -9 with their JVM at every named point.

Each start of a driver is a start of Spark, so these are for when they are asked for:

    python -m pytest tests/pipeline/rebuild_kills.py
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import deltalake
import pyarrow.dataset as ds
import pytest
from pyiceberg.catalog import load_catalog

import klamm
from klamm.testing import broker
from pipeline.driver_kills import kill
from pipeline.rebuild_driver import KINDS, POINTS, VERSIONS

pytestmark = pytest.mark.timeout(1200)
COUNT = 10
CASES = [
    *(("delta", point) for point in POINTS),
    # What differs between kinds is how rows are kept aside and replaced.
    *((kind, point) for kind in KINDS if kind != "delta" for point in ("staged", "replacing", "replaced", "clearing")),
]
ROWS = {"old": {0: 18, 1: 12, 2: 15}, "new": {0: 4, 1: 3, 2: None}}


class Site:
    """A pipeline that has run in its old version, and is rebuilt by turns."""

    def __init__(self, node, folder, kind):
        self.node, self.folder, self.kind = node, folder, kind
        self.numbers, self.sums = node.topic("numbers"), node.topic("sums")
        self.version = "old"
        with node.producer() as producer:
            for number in range(COUNT):
                producer.send(self.numbers, b'{"n": %d}' % number)
        driver = self.start()
        assert driver.wait(600) == 0, self.log()

    def start(self, *death):
        script = str(Path(__file__).with_name("rebuild_driver.py"))
        place = self.node.bootstrap, self.numbers, self.sums, str(self.folder), self.kind, self.version
        with (self.folder / "driver.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, script, *place, *death], stdout=log, stderr=log, start_new_session=True
            )

    def log(self):
        return (self.folder / "driver.log").read_text()[-4000:]

    def records(self):
        table = klamm.read_topic(self.sums, bootstrap=self.node.bootstrap, timeout_s=120)
        return [
            (json.loads(row["key"]), None if row["value"] is None else json.loads(row["value"])["total"])
            for row in table.to_pylist()
        ]

    def lake(self):
        path = self.folder / "lake"
        if self.kind.startswith("delta"):
            table = deltalake.DeltaTable(str(path)).to_pyarrow_table()
        elif self.kind.startswith("iceberg"):
            catalog = load_catalog("klamm", type="sql", uri=f"sqlite:///{path}/catalog.db")
            table = catalog.load_table("klamm.lake").scan().to_arrow()
        else:
            table = ds.dataset(path, format="parquet").to_table()
        return sorted((row["n"], row["sign"]) for row in table.to_pylist())

    def expected_lake(self, version):
        return [(number, int(VERSIONS[version]["sign"])) for number in range(COUNT)]


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """The pipeline of each kind of lake, made when a test needs it."""
    with broker(child=True) as node:
        made = {}

        def site(kind):
            if kind not in made:
                made[kind] = Site(node, tmp_path_factory.mktemp(kind), kind)
            return made[kind]

        yield site


@pytest.mark.parametrize(("kind", "point"), CASES)
def test_a_rebuild_killed_with_all_its_processes(sites, kind, point, tmp_path):
    site = sites(kind)
    before, version = site.records(), site.version
    site.version = "new" if version == "old" else "old"
    expected = sorted(ROWS[site.version].items())
    reached = tmp_path / "reached"
    driver = site.start(point, str(reached))
    try:
        deadline = time.monotonic() + 600
        while not reached.exists():
            assert time.monotonic() < deadline, site.log()
            assert driver.poll() is None, site.log()
            time.sleep(0.1)
        kill(driver)
        # Readers see the rows of before, or those of after: never a part of them.
        assert site.lake() in (site.expected_lake(version), site.expected_lake(site.version))
        changed = site.records()[len(before) :]
        assert not changed or sorted(changed) == expected
        driver = site.start()
        assert driver.wait(600) == 0, site.log()
    finally:
        kill(driver)
    assert sorted(site.records()[len(before) :]) == expected
    assert site.lake() == site.expected_lake(site.version)
    assert not list(site.folder.glob("home/*/klamm/staged"))
    assert not list(site.folder.glob("home/*/klamm/rebuild"))
