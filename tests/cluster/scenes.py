"""A simulated cluster whose accidents are told step by step, each at exactly the moment a story needs."""

import gc
import warnings
from collections.abc import Callable
from typing import Any

from klamm.metadata.image import PartitionImage
from klamm.replication import Replica
from klamm.telemetry.log import Level, configure
from simulation.faults import KINDS, Fault
from simulation.final import check_end
from simulation.run import Run, RunPlan

PATIENCE_S = 60.0
"""In the time of the simulation, which costs nothing."""


class Over(Exception):
    """The story cannot go on: something that must never happen has happened."""


class Scene(Run):
    """Three real nodes in one thread, a topic `t` with one partition, a load on it, and all invariants looked at.

    `acks` tells how many records were acknowledged. A test injects faults and waits for states; everything
    heals when it ends, and then the whole is judged.
    """

    def __init__(self, seed: int = 1, *, factor: int = 3, min_insync: int = 2, **plan: Any) -> None:
        plan = {"partitions": 1, "producers": 1, "consumers": 1, "pace": 0.02, **plan}
        super().__init__(RunPlan(seed=seed, factor=factor, **plan))
        self.topics = [("t", 1, factor, {"min.insync.replicas": str(min_insync)})]

    def play(self, story: Callable[["Scene"], None]) -> str | None:
        """Tell a story from start to judgement; what was violated, None when nothing was."""
        configure(Level.OFF)
        collecting = gc.isenabled()
        gc.disable()  # finalizers would run at times no seed decides
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # killed processes leave coroutines that never began
                try:
                    self._play(story)
                except Over:
                    assert self.violation is not None
                finally:
                    self.cluster.close()
                    gc.collect()
        finally:
            configure()
            if collecting:
                gc.enable()
        return self.violation

    def _play(self, story: Callable[["Scene"], None]) -> None:
        self._begin()
        self.hurting = True
        self.until(lambda: self.acks >= 20, "records are acknowledged")
        story(self)
        self.rest(0.1)
        self._end_faults()
        self._go_on()
        self._stop_load()
        self._go_on()
        check_end(self)

    def _go_on(self) -> None:
        if self.violation is not None:
            raise Over

    # What a story sees

    @property
    def acks(self) -> int:
        """How many records were acknowledged so far."""
        return self.ledger.acks

    def image(self) -> PartitionImage:
        """The partition, as the node that knows most sees it."""
        images = [
            machine.node.services.metadata.image
            for machine in self.cluster.machines.values()
            if machine.running and machine.serving and machine.node is not None
        ]
        newest = max(images, key=lambda image: image.provenance.offset)
        partition = newest.topics.partition("t", 0)
        assert partition is not None
        return partition

    def replica(self, node: int) -> Replica:
        """A node's copy of the partition."""
        running = self.cluster.machines[node].node
        assert running is not None
        replica = running.services.replicas.find("t", 0)
        assert replica is not None
        return replica

    def followers(self) -> list[int]:
        """Who copies the partition and does not lead it."""
        image = self.image()
        return [node for node in image.replicas if node != image.leader]

    # What a story does

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Let time pass until something holds, to the very event."""
        self._run_until(condition, PATIENCE_S, lambda: f"never: {what}")
        self._go_on()

    def until_acknowledged(self, more: int) -> None:
        """Let clients get so much through."""
        wanted = self.acks + more
        self.until(lambda: self.acks >= wanted, f"{more} more are acknowledged")

    def rest(self, seconds: float) -> None:
        """Let time pass."""
        loop = self.cluster.loop
        loop.run(self._over, until=loop.time() + seconds)
        self._go_on()

    def hurt(self, kind: str, *nodes: int) -> Callable[[], None]:
        """Begin a fault of the simulation; returns what ends it."""
        ending = KINDS[kind](self, Fault(0.0, kind, nodes, 0.0))
        assert ending is not None
        return ending

    def kill(self, *nodes: int) -> None:
        """End processes at once."""
        self.hurt("kill", *nodes)

    def restart_and_wait(self, *nodes: int) -> None:
        """Start nodes and wait until they serve and are let in again."""
        self.start(*nodes)
        for node in nodes:
            machine = self.cluster.machines[node]
            self.until(lambda machine=machine: machine.serving, f"node {node} serves")
