"""Several real `klamm server` processes that are one cluster, each stopped, killed, paused and started by itself."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from confluent_kafka.admin import AdminClient

from harness.links import Links
from harness.process import KLAMM, KlammFailed, KlammProcess
from harness.secured import ADMIN, LISTENER, ClusterSecurity
from harness.wire import Wire
from klamm.net.free_ports import free_ports
from klamm.server.boot.first_records import write_first_records
from klamm.server.boot.local_cluster import DATA, LocalNode, plan_cluster, prepare_cluster
from klamm.storage.disk import Disk

READY_S = 90.0


class NodeProcess(KlammProcess):
    """One node of a cluster; its folder and port stay the same from start to start."""

    ready_s = READY_S

    def __init__(self, node: LocalNode, log_level: str, main: Sequence[str]) -> None:
        super().__init__(Path(node.folder), log_level=log_level)
        self._main = main
        self.node_id = node.node_id
        self.port = node.port
        self._properties = node.properties

    def command(self) -> list[str]:
        """What is run."""
        return [*self._main, "server", self._properties, "--log-level", self.log_level]


class KlammCluster:
    """Nodes 1..n, combined broker and controller, replication factor 3 and two in sync by default.

    With `links`, nodes and clients reach each node through them, so that links can be cut. `main` is what runs a node;
    another than `klamm` may have faults built in. With `racks`, node n stands in rack-n. With `security`, all listeners
    are SASL_SSL and nodes have an authorizer.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        *,
        overrides: dict[str, str] | None = None,
        log_level: str = "info",
        links: Links | None = None,
        main: Sequence[str] = KLAMM,
        racks: bool = False,
        security: ClusterSecurity | None = None,
    ) -> None:
        self._security = security
        self.planned = plan_cluster(str(folder), nodes)
        settings = {**(overrides or {}), **(security.node_settings() if security is not None else {})}
        name = LISTENER if security is not None else "PLAINTEXT"
        listeners: dict[int, dict[str, str]] = {}
        if racks:
            listeners = {node.node_id: {"broker.rack": f"rack-{node.node_id}"} for node in self.planned}
        if security is not None:
            for node in self.planned:
                listeners.setdefault(node.node_id, {})["listeners"] = (
                    f"{name}://{node.address},CONTROLLER://{node.host}:{node.controller_port}"
                )
        if links is not None:
            ports = iter(free_ports("127.0.0.1", 2 * nodes))
            for node in self.planned:
                own, controller = next(ports), next(ports)
                listeners.setdefault(node.node_id, {}).update(
                    {
                        "listeners": f"{name}://127.0.0.1:{own},CONTROLLER://127.0.0.1:{controller}",
                        "advertised.listeners": f"{name}://{node.address}",
                    }
                )
                links.add(node.port, own, node.node_id)
                links.add(node.controller_port, controller, node.node_id)
        self.cluster_id = prepare_cluster(self.planned, lambda node: {**settings, **listeners.get(node.node_id, {})})
        if security is not None:
            for node in self.planned:
                data = os.path.join(node.folder, DATA)
                write_first_records(Disk(), data, security.credentials(), int(time.time() * 1000))
        self.nodes = [NodeProcess(planned, log_level, main) for planned in self.planned]
        if links is not None:
            links.processes = self._find_processes

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.kill9()

    @property
    def bootstrap(self) -> str:
        """Every node's address."""
        return ",".join(node.bootstrap for node in self.nodes)

    def _find_processes(self) -> dict[int, int]:
        return {node.process.pid: node.node_id for node in self.nodes if node.process is not None}

    def node(self, node_id: int) -> NodeProcess:
        """The node with this id."""
        return self.nodes[node_id - 1]

    def start(self, node_ids: Sequence[int] | None = None) -> Self:
        """Start all nodes (or those), and wait until they serve; none can serve before a majority runs.

        Where all were started, until each knows of all: librdkafka gives up a question to a broker that the next
        metadata it gets does not name.
        """
        chosen = [node for node in self.nodes if node_ids is None or node.node_id in node_ids]
        try:
            for node in chosen:
                node.launch()
            for node in chosen:
                node.wait_ready()
            if node_ids is None:
                self._wait_acquainted()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait_acquainted(self) -> None:
        wanted = {node.node_id for node in self.nodes}
        if self._security is not None:
            self._wait_acquainted_by_login(wanted)
            return
        deadline = time.monotonic() + READY_S
        for node in self.nodes:
            with Wire(node.port) as wire:
                while wanted - {broker.node_id for broker in wire.call("metadata", 12, topics=[]).brokers}:
                    if time.monotonic() > deadline:
                        raise KlammFailed(f"node {node.node_id} does not know of all others:\n{node.stderr()}")

    def _wait_acquainted_by_login(self, wanted: set[int]) -> None:
        assert self._security is not None
        deadline = time.monotonic() + READY_S
        for node in self.nodes:
            admin = AdminClient({"bootstrap.servers": node.bootstrap, **self._security.client(ADMIN)})
            while wanted - set(admin.list_topics(timeout=READY_S).brokers):
                if time.monotonic() > deadline:
                    raise KlammFailed(f"node {node.node_id} does not know of all others:\n{node.stderr()}")
                time.sleep(0.05)

    def stop(self) -> None:
        """SIGTERM to every running node, then wait for each: all must end by themselves."""
        running = [node for node in self.nodes if node.process is not None]
        for node in running:
            node.ask_to_stop()
        for node in running:
            node.wait_stopped()
