"""Real drivers, each with its JVM and its Python processes, killed with -9 around and inside their commits.

Each start of a driver is a start of Spark, so these are for when they are asked for:

    python -m pytest tests/pipeline/driver_kills.py
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import klamm
from klamm.testing import broker

POINTS = ["done 0", "written 1", "decided 1", "decided 2", "done 2"]
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def node():
    """A broker in a process of its own that takes its time to end transactions, so that there is time to kill."""
    with broker(child=True) as running:
        running.slow(0.5, api="EndTxn")
        yield running


def start(node, source, sink, folder):
    command = [
        sys.executable,
        str(Path(__file__).with_name("driver.py")),
        node.bootstrap,
        source,
        sink,
        str(folder / "c"),
    ]
    with (folder / "driver.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def reached(admin, point):
    """Whether the one sink of this broker's newest query stands at a point, or has come past it."""
    word, _, number = point.partition(" ")
    if word == "written":
        transactions = admin.list_transactions(states=["Ongoing"])
        return f"done {int(number) - 1}" in states(admin) and any(
            ".0.0" in listing.transactional_id for listing in transactions
        )
    return point in states(admin)


def states(admin):
    groups = [group.group_id for group in admin.list_groups() if group.group_id.startswith("klamm-spark-")]
    return {offset.metadata for group in groups for offset in admin.list_group_offsets(group).values()}


def kill(driver):
    """The JVM and all its workers at once: they are in the driver's session."""
    for process in processes_of(driver.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    driver.wait(60)


def processes_of(session):
    processes = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session:
                processes.append(int(name))
    return processes


@pytest.mark.parametrize("point", POINTS)
def test_a_driver_killed_with_all_its_processes(node, tmp_path, point):
    source, sink = node.topic("in", partitions=2), node.topic("out")
    with node.producer() as producer:
        for number in range(70):
            producer.send(source, str(number).encode(), partition=number % 2)
    driver = start(node, source, sink, tmp_path)
    try:
        with node.admin() as admin:
            before = states(admin)
            deadline = time.monotonic() + 600
            while not reached(admin, point) or states(admin) == before:
                assert time.monotonic() < deadline, (tmp_path / "driver.log").read_text()
                assert driver.poll() is None, (tmp_path / "driver.log").read_text()
        kill(driver)
        assert driver.returncode == -signal.SIGKILL
        driver = start(node, source, sink, tmp_path)
        assert driver.wait(600) == 0, (tmp_path / "driver.log").read_text()
    finally:
        kill(driver)
    table = klamm.read_topic(sink, bootstrap=node.bootstrap, timeout_s=120)
    assert sorted(int(row) for row in table["value"].to_pylist()) == list(range(70))
