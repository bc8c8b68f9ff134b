"""Internal topics that cannot be created yet: told once, tried again when it may help."""

import time
from pathlib import Path

import pytest

from harness.inprocess import NodeThread
from harness.wire import Wire

COORDINATOR_NOT_AVAILABLE = 15


def test_an_internal_topic_that_cannot_be_created_is_told_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """Every client that looks for its coordinator asks; older tests always had brokers enough."""
    with NodeThread(tmp_path, "offsets.topic.replication.factor=3") as thread, Wire(thread.port) as wire:
        requests = 0
        deadline = time.monotonic() + 3  # longer than one pause, so that it is tried a second time
        while requests < 20 or time.monotonic() < deadline:
            answer = wire.call("find_coordinator", 4, key_type=0, coordinator_keys=[f"group-{requests}"])
            [coordinator] = answer.coordinators
            assert coordinator.error_code == COORDINATOR_NOT_AVAILABLE
            assert "__consumer_offsets" in coordinator.error_message
            requests += 1
            time.sleep(0.01)
    lines = [line for line in capfd.readouterr().err.splitlines() if "internal topic not created" in line]
    assert len(lines) == 1, lines
