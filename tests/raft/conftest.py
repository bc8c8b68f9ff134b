"""A sole voter on a real folder, and the ways to end it."""

from random import Random

import pytest
import pytest_asyncio

from klamm.model.clock import SystemClock
from klamm.raft import RaftConfig, RaftDriver


class Notebook:
    """A listener that writes everything down."""

    def __init__(self):
        self.values = []
        self.commits = []
        self.snapshots = []
        self.leaders = []

    def on_commit(self, first_offset, epoch, values, append_time_ms):
        self.commits.append((first_offset, epoch, values, append_time_ms))
        self.values += values

    def on_snapshot(self, offset, epoch, values):
        self.snapshots.append((offset, epoch, values))
        self.values = list(values)

    def on_leader_change(self, leader_id, epoch):
        self.leaders.append((leader_id, epoch, len(self.values)))


@pytest.fixture
def config(tmp_path):
    return RaftConfig(1, {1: ("127.0.0.1", 9093, bytes(16))}, str(tmp_path))


@pytest_asyncio.fixture
async def launch(config):
    """Start drivers; whatever still runs at the end of the test is stopped."""
    running = []

    async def start(config=config, **options):
        notebook = Notebook()
        driver = RaftDriver(config, SystemClock(), Random(1), notebook, **options)
        running.append(driver)
        await driver.start()
        return driver, notebook

    yield start
    for driver in running:
        kill(driver)


def kill(driver):
    """End a driver as kill -9 would: nothing is flushed or closed."""
    driver._running = False
    driver._failure = driver._failure or RuntimeError("killed")
    if driver._timer is not None:
        driver._timer.cancel()
    driver._sync_thread.shutdown(wait=True)
