"""Several nodes that are one cluster, Apache Kafka's or Klamm's, from the same properties."""

import time
from pathlib import Path
from typing import Self

from compat.brokers import KINDS, READY_TIMEOUT_S, Broker, BrokerFailed, answers


class BrokerCluster:
    """Combined nodes 1..n; topics get three copies and two must be in sync, unless `overrides` say otherwise."""

    def __init__(
        self, kind: str, folder: Path, *, nodes: int = 3, heap_mb: int = 512, overrides: dict[str, str] | None = None
    ) -> None:
        copies, majority = str(min(3, nodes)), str(min(2, nodes))
        self.kind = kind
        self.nodes: list[Broker] = [KINDS[kind](folder / f"node-{i}", heap_mb=heap_mb) for i in range(1, nodes + 1)]
        voters = ",".join(f"{i}@127.0.0.1:{node.controller_port}" for i, node in enumerate(self.nodes, 1))
        for i, node in enumerate(self.nodes, 1):
            node.overrides = {
                "node.id": str(i),
                "controller.quorum.voters": voters,
                "default.replication.factor": copies,
                "min.insync.replicas": majority,
                "offsets.topic.replication.factor": copies,
                "transaction.state.log.replication.factor": copies,
                "transaction.state.log.min.isr": majority,
                "share.coordinator.state.topic.replication.factor": copies,
                "share.coordinator.state.topic.min.isr": majority,
                **(overrides or {}),
            }

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """Every node's address."""
        return ",".join(node.bootstrap for node in self.nodes)

    @property
    def pids(self) -> list[int]:
        """The processes that run."""
        return [node.pid for node in self.nodes if node.process is not None]

    def node(self, node_id: int) -> Broker:
        """The node with this id."""
        return self.nodes[node_id - 1]

    def spawn(self) -> None:
        """Start all processes and do not wait."""
        for node in self.nodes:
            node.spawn()

    def start(self) -> Self:
        """Start all nodes and wait until each answers."""
        try:
            self.spawn()
            deadline = time.monotonic() + READY_TIMEOUT_S
            for node in self.nodes:
                while not answers(node.port):
                    if node.process is None or node.process.poll() is not None:
                        raise BrokerFailed(f"{self.kind} ended while starting:\n{node.log_tail()}")
                    if time.monotonic() > deadline:
                        raise BrokerFailed(
                            f"{self.kind} is not ready after {READY_TIMEOUT_S:.0f} s:\n{node.log_tail()}"
                        )
                    time.sleep(0.02)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Leave no process behind."""
        for node in self.nodes:
            node.close()


def changing_quorum(kind: str, folder: Path, nodes: int) -> list[Broker]:
    """Combined nodes 1..n, not started: the first is a quorum of one that may grow, the others find it by address."""
    made = [KINDS[kind](folder / str(node_id)) for node_id in range(1, nodes + 1)]
    for node_id, node in enumerate(made, 1):
        node.format_flags = ("--standalone",) if node_id == 1 else ("--no-initial-controllers",)
        node.overrides = {
            "node.id": str(node_id),
            "controller.quorum.voters": "",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{made[0].controller_port}",
        }
    return made
