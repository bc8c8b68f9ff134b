"""The faults of a run: one at a time, always ended, chosen by a seed."""

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from harness import KlammCluster, KlammFailed, Links, NodeProcess
from harness.faulty_node import fault_file

FAULTY_KLAMM = (sys.executable, "-m", "harness.faulty_node")
STOPPING = "the node stops"
"""The log line of a node that stops; closing everything takes a while on a busy machine."""
STOPPED_S = 90.0


class Faults:
    """Faults on a cluster of three: at most one node has a fault, so no acknowledged record may be lost."""

    def __init__(self, cluster: KlammCluster, links: Links, random: Random, print_line: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._links = links
        self._random = random
        self._print_line = print_line
        self.counts: dict[str, int] = {}
        self._kinds = {
            "kill": self._kill,
            "pause": self._pause,
            "long pause": self._long_pause,
            "clean restart": self._restart,
            "isolate": self._isolate,
            "cut": self._cut,
            "cut one way": self._cut_one_way,
            "full disk": self._full_disk,
            "failing sync": self._failing_sync,
        }

    def run(self, seconds: float, kinds: list[str] | None = None) -> None:
        """Inject faults until the time is over; every kind is used before one is repeated."""
        deadline = time.monotonic() + seconds
        queue: list[str] = []
        while time.monotonic() < deadline:
            if not queue:
                queue = list(kinds or self._kinds)
                self._random.shuffle(queue)
            kind = queue.pop()
            node = self._random.choice(self._cluster.nodes)
            self._settle()
            self._print_line(f"{kind}: node {node.node_id}")
            self._kinds[kind](node)
            self.counts[kind] = self.counts.get(kind, 0) + 1
            self._rest(0.5, 2.0)

    def heal(self) -> None:
        """Undo everything and start what is down."""
        self._links.heal()
        self._settle()

    def _rest(self, low: float, high: float) -> None:
        time.sleep(self._random.uniform(low, high))

    def _settle(self) -> None:
        """Let nodes that are about to stop after a fault of their disk do so, and start whatever has ended."""
        for node in self._cluster.nodes:
            if node.process is not None and STOPPING in node.log():
                node.process.wait(STOPPED_S)
            self._revive(node)

    def _revive(self, node: NodeProcess) -> None:
        """Start a node that ended; its own end is fine after a disk fault."""
        if node.process is not None and node.process.poll() is not None:
            node.kill9()
        if node.process is None:
            node.start()

    def _kill(self, node: NodeProcess) -> None:
        node.kill9()
        self._rest(0.2, 3.0)
        node.start()

    def _pause(self, node: NodeProcess) -> None:
        node.pause()
        self._rest(0.3, 2.0)
        node.resume()

    def _long_pause(self, node: NodeProcess) -> None:
        node.pause()
        self._rest(6.0, 9.0)
        node.resume()

    def _restart(self, node: NodeProcess) -> None:
        try:
            node.stop()
        except KlammFailed:
            if STOPPING not in node.log():
                raise  # else it was about to stop by itself, after a disk fault
        self._rest(0.1, 1.0)
        node.start()

    def _isolate(self, node: NodeProcess) -> None:
        self._links.isolate(node.node_id, [other.node_id for other in self._cluster.nodes if other is not node])
        self._rest(2.0, 8.0)
        self._links.heal()

    def _cut(self, node: NodeProcess) -> None:
        self._links.cut(node.node_id, self._other(node).node_id)
        self._rest(2.0, 6.0)
        self._links.heal()

    def _cut_one_way(self, node: NodeProcess) -> None:
        self._links.cut(node.node_id, self._other(node).node_id, both=False)
        self._rest(2.0, 6.0)
        self._links.heal()

    def _full_disk(self, node: NodeProcess) -> None:
        self._disk_fault(node, "no-space")

    def _failing_sync(self, node: NodeProcess) -> None:
        self._disk_fault(node, "bad-sync")

    def _disk_fault(self, node: NodeProcess, fault: str) -> None:
        flag = Path(fault_file(str(node.folder), fault))
        flag.touch()
        self._rest(1.0, 3.0)
        flag.unlink()
        # A node that could not write its metadata log, or sync, stops by itself and is started again.
        # On a busy machine it may stop later than this: the next fault checks again.
        assert node.process is not None
        with suppress(subprocess.TimeoutExpired):
            node.process.wait(2.0)
        self._settle()

    def _other(self, node: NodeProcess) -> NodeProcess:
        return self._random.choice([other for other in self._cluster.nodes if other is not node])
