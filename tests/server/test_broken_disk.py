"""A real process on a disk that fails: it acknowledges nothing it cannot keep, says why, and stops."""

import sys
import time

import pytest

import harness.process
from harness import KlammProcess, Wire
from harness.wire import batch

KAFKA_STORAGE_ERROR = 56
PROGRAM = """
import os
from klamm.storage.disk import Disk

def watched(call):
    def instead(fd, *args):
        try:
            with open({trigger!r}) as file:
                kind, where = file.read().split()
        except FileNotFoundError:
            return call(fd, *args)
        if kind == call.__name__ and where in os.readlink(f"/proc/self/fd/{{fd}}"):
            raise OSError(5, "Input/output error")
        return call(fd, *args)
    return staticmethod(instead)

Disk.fdatasync = watched(os.fdatasync)
Disk.pwritev = watched(os.pwritev)
from klamm.cli.main import main
main()
"""


@pytest.mark.parametrize("call", ["fdatasync", "pwritev"])
def test_a_failing_disk_stops_the_node_and_loses_nothing_acknowledged(tmp_path, monkeypatch, call):
    trigger = tmp_path / "trigger"
    monkeypatch.setattr(harness.process, "KLAMM", (sys.executable, "-c", PROGRAM.format(trigger=str(trigger))))
    with KlammProcess(tmp_path / "node") as node:
        with Wire(node.port) as wire:
            topic = wire.create_topic(**{"flush.messages": "1"})
            for i in range(10):
                assert wire.produce(topic, batch(b"%d" % i)).error_code == 0
            trigger.write_text(f"{call} {topic}")
            assert wire.produce(topic, batch(b"lost")).error_code == KAFKA_STORAGE_ERROR
        assert node.process.wait(20) == 1
        output = node.stderr()
        assert "the node stops" in output
        assert topic in output
        assert "Input/output error" in output
        node.kill9()
        trigger.unlink()
        node.start()
        with Wire(node.port) as wire:
            values = _values(wire, topic)
            assert values[:10] == [b"%d" % i for i in range(10)]
            assert wire.produce(topic, batch(b"again")).error_code == 0


def _values(wire: Wire, topic: str) -> list[bytes | None]:
    """What is readable once the node has synced what it found: with flush.messages nothing counts before."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if values := wire.values(topic):
            return values
    raise AssertionError("nothing became readable")
