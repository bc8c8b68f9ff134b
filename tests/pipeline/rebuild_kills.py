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
import pytest

import klamm
from klamm.testing import broker
from pipeline.driver_kills import kill
from pipeline.rebuild_driver import POINTS, VERSIONS

pytestmark = pytest.mark.timeout(1200)
COUNT = 10
ROWS = {"old": {0: 18, 1: 12, 2: 15}, "new": {0: 4, 1: 3, 2: None}}


class Site:
    """A pipeline that has run in its old version, and is rebuilt by turns."""

    def __init__(self, node, folder):
        self.node, self.folder = node, folder
        self.numbers, self.sums = node.topic("numbers"), node.topic("sums")
        self.version = "old"
        with node.producer() as producer:
            for number in range(COUNT):
                producer.send(self.numbers, b'{"n": %d}' % number)
        driver = self.start()
        assert driver.wait(600) == 0, self.log()

    def start(self, *death):
        script = str(Path(__file__).with_name("rebuild_driver.py"))
        place = self.node.bootstrap, self.numbers, self.sums, str(self.folder), self.version
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
        rows = deltalake.DeltaTable(str(self.folder / "delta")).to_pyarrow_table().to_pylist()
        return sorted((row["n"], row["sign"]) for row in rows)

    def expected_lake(self, version):
        return [(number, int(VERSIONS[version]["sign"])) for number in range(COUNT)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with broker(child=True) as node:
        yield Site(node, tmp_path_factory.mktemp("rebuilds"))


@pytest.mark.parametrize("point", POINTS)
def test_a_rebuild_killed_with_all_its_processes(site, point, tmp_path):
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
