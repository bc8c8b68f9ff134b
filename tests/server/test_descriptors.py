"""Partitions leave descriptors to connections; older tests never came near a limit of the process."""

import contextlib
import resource
from pathlib import Path

import pytest

from harness import KlammProcess, Wire, unique

LIMIT = 400
POLICY_VIOLATION = 44


def open_files(pid):
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.fixture
def own(tmp_path):
    with KlammProcess(tmp_path) as klamm:
        hard = resource.prlimit(klamm.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(klamm.pid, resource.RLIMIT_NOFILE, (LIMIT, hard))
        yield klamm
        resource.prlimit(klamm.pid, resource.RLIMIT_NOFILE, (hard, hard))
        klamm.stop()


def create(wire, partitions, **fields):
    topic = {"name": unique(), "num_partitions": partitions, "replication_factor": 1}
    return wire.call("create_topics", 7, topics=[topic], timeout=30_000, **fields).topics[0]


def test_partitions_never_take_the_last_descriptors(own):
    with Wire(own.port, timeout=60) as wire:
        first = create(wire, 1)
        assert first.error_code == 0
        for _ in range(LIMIT):
            reply = create(wire, 20)
            if reply.error_code != 0:
                break
        assert reply.error_code == POLICY_VIOLATION
        assert "file descriptors" in reply.error_message
        assert f"of {LIMIT} are open" in reply.error_message
        assert create(wire, 20, validate_only=True).error_code == 0
        more = wire.call("create_partitions", 3, topics=[{"name": first.name, "count": 100}], timeout=30_000).results[0]
        assert (more.error_code, "file descriptors" in more.error_message) == (POLICY_VIOLATION, True)
        for _ in range(LIMIT):
            if create(wire, 1).error_code != 0:
                break
        assert open_files(own.pid) <= LIMIT - 100
        with contextlib.ExitStack() as stack:
            for _ in range(50):
                other = stack.enter_context(Wire(own.port, timeout=60))
                assert other.call("api_versions", 0).error_code == 0
        wire.call("delete_topics", 6, topics=[{"name": first.name}], timeout=30_000)
    assert "request failed" not in own.log()


def test_the_soft_limit_is_raised_at_start(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1000, hard), hard))
    klamm = KlammProcess(tmp_path)
    try:
        klamm.launch()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(klamm.kill9)
        klamm.wait_ready()
        assert resource.prlimit(klamm.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        assert "file descriptor limit raised" in klamm.log()
        klamm.stop()
