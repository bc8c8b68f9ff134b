"""Real drivers killed with -9, with their JVM, before and around the first batch of their queries.

Each start of a driver is a start of Spark, so these are for when they are asked for:

    python -m pytest tests/pipeline/start_kills.py
"""

import subprocess
import sys
import time
from pathlib import Path

import pytest

import klamm
from klamm.testing import broker
from pipeline.driver_kills import kill
from pipeline.start_driver import NAMES, STORED, send

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def node():
    """A broker in a process of its own that answers slowly, so that there is time to kill."""
    with broker(child=True) as running:
        for api in ("ListOffsets", "InitProducerId", "EndTxn"):
            running.slow(0.5, api=api)
        yield running


class Site:
    """A pipeline in a folder of its own."""

    def __init__(self, node, prefix, folder):
        self.node, self.prefix, self.folder = node, prefix, folder

    def start(self, *death):
        script = str(Path(__file__).with_name("start_driver.py"))
        command = [sys.executable, script, self.node.bootstrap, self.prefix, str(self.folder), *death]
        with (self.folder / "driver.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def log(self):
        return (self.folder / "driver.log").read_text()[-4000:]

    def rows(self, name):
        table = klamm.read_topic(f"{self.prefix}-{name}", bootstrap=self.node.bootstrap, timeout_s=120)
        return sorted(int(row.strip(b'{"n": }')) for row in table["value"].to_pylist())

    def files(self, log):
        """Return the files of one kind of all checkpoints, such as metadata or offsets/0."""
        return list((self.folder / "home").glob(f"*_copy.0/{log}"))


POINTS = {
    STORED: lambda site: True,
    "asked": lambda site: site.files("metadata"),
    "planned": lambda site: site.files("offsets/0"),
    "late-planned": lambda site: (site.folder / "home" / "late_copy.0" / "offsets" / "0").exists(),
    "written": lambda site: site.rows("late"),
    "committed": lambda site: (site.folder / "home" / "late_copy.0" / "commits" / "0").exists(),
}
"""Where a driver dies, once its starts are stored and records were sent."""


@pytest.mark.parametrize("point", POINTS)
def test_a_driver_killed_around_its_first_batch(node, klamm_name, tmp_path, point):
    site = Site(node, klamm_name("starts"), tmp_path)
    with node.admin() as admin:
        admin.create_topic(f"{site.prefix}-numbers", 2, configs={"retention.ms": "-1"})
    send(node.bootstrap, site.prefix, range(10))
    reached = tmp_path / "reached"
    driver = site.start(point, str(reached))
    try:
        deadline = time.monotonic() + 600
        while not (reached.exists() and POINTS[point](site)):
            assert time.monotonic() < deadline, site.log()
            assert driver.poll() is None, site.log()
            time.sleep(0.02)
        kill(driver)
        send(node.bootstrap, site.prefix, range(15, 20))
        driver = site.start()
        assert driver.wait(600) == 0, site.log()
    finally:
        kill(driver)
    expected = {"early": list(range(20)), "late": list(range(10, 20)), "timed": list(range(3, 20))}
    assert {name: site.rows(name) for name in NAMES} == expected
