"""Three brokers for a test, each a process of its own, made and formatted in a temporary folder."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, Self

from klamm.testing.brokers import Broker

if TYPE_CHECKING:
    from klamm.server.local_cluster import LocalNode

READY_S: Final = 90.0
STOP_S: Final = 30.0
DEFAULTS: Final = {"offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4"}


class ClusterNode:
    """One node of a cluster."""

    def __init__(self, plan: LocalNode) -> None:
        self._plan = plan
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def id(self) -> int:
        """Its node.id."""
        return self._plan.node_id

    @property
    def bootstrap(self) -> str:
        """Its own address."""
        return self._plan.address

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None

    def start(self) -> None:
        """Begin, without waiting for it."""
        if self._process is not None:
            raise RuntimeError(f"node {self.id} is running already")
        with open(self._plan.log, "ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "klamm", "server", self._plan.properties, "--log-level", "warning"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"node {self.id} is not running; call start()")
        return self._process

    def pause(self) -> None:
        """SIGSTOP."""
        self._alive().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._alive().send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        self._alive().kill()
        self._alive().wait()
        self._process = None

    def stop(self) -> None:
        """SIGTERM, and the end of the process."""
        process = self._alive()
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None

    def log(self) -> str:
        """What it wrote to standard error."""
        with contextlib.suppress(FileNotFoundError), open(self._plan.log, encoding="utf-8", errors="replace") as file:
            return file.read()[-4000:]
        return ""

    def check_alive(self) -> None:
        """RuntimeError with its last words when it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            code, self._process = self._process.returncode, None
            raise RuntimeError(f"node {self.id} ended with {code}:\n{self.log()}")


class Cluster(Broker):
    """Several nodes; `bootstrap` names them all, `nodes[0].kill()` is up to the test."""

    def __init__(self, nodes: int = 3, *, config: Mapping[str, str] | None = None) -> None:
        from klamm.server.local_cluster import plan_cluster, prepare_cluster

        self._folder = tempfile.mkdtemp(prefix="klamm-test-")
        try:
            plans = plan_cluster(self._folder, nodes)
            prepare_cluster(plans, lambda _: {**DEFAULTS, **dict(config or {})})
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        super().__init__(port=plans[0].port, data=self._folder)
        self.nodes = [ClusterNode(plan) for plan in plans]

    @property
    def bootstrap(self) -> str:
        """Every node's address."""
        return ",".join(node.bootstrap for node in self.nodes)

    @property
    def running(self) -> bool:
        """Whether any node is there."""
        return any(node.running for node in self.nodes)

    def start(self) -> Self:
        """Start every node that is not running; returns when all of them are in the cluster."""
        try:
            for node in self.nodes:
                if not node.running:
                    node.start()
            self.wait()
        except BaseException:
            self.close()
            raise
        return self

    def wait(self, brokers: int | None = None, patience_s: float = READY_S) -> None:
        """Wait until so many brokers are alive, all that run by default."""
        from klamm.client.wire import Cluster as Questions
        from klamm.client.wire import Unreachable
        from klamm.model.errors import KlammError
        from klamm.protocol.messages.metadata import MetadataRequest

        wanted = sum(node.running for node in self.nodes) if brokers is None else brokers
        deadline = time.monotonic() + patience_s
        alive = -1
        while time.monotonic() < deadline:
            for node in self.nodes:
                node.check_alive()
            with contextlib.suppress(Unreachable, KlammError), Questions(self.bootstrap, 5.0) as cluster:
                alive = len(cluster.ask(MetadataRequest(topics=[])).brokers)
                if alive >= wanted:
                    return
            time.sleep(0.02)
        words = "\n".join(f"node {node.id}:\n{node.log()}" for node in self.nodes)
        raise TimeoutError(f"{alive} of {wanted} brokers are alive after {patience_s:.0f} s\n{words}")

    def stop(self) -> None:
        """End every node as on SIGTERM."""
        for node in self.nodes:
            if node.running:
                node.stop()

    def kill(self) -> None:
        """SIGKILL for all of them."""
        for node in self.nodes:
            if node.running:
                node.kill()

    def pause(self) -> None:
        """SIGSTOP for all of them; `nodes[i].pause()` for one."""
        for node in self.nodes:
            if node.running:
                node.pause()

    def resume(self) -> None:
        """SIGCONT for all of them."""
        for node in self.nodes:
            if node.running:
                node.resume()

    def slow(self, seconds: float, api: str | None = None) -> None:
        """Only a single broker can be slowed; a node of a cluster is paused for as long."""
        del seconds, api
        raise RuntimeError("a cluster's nodes are paused or killed; slow() is for klamm.testing.broker()")

    def refuse(self, error: str, api: str | None = None, times: int | None = None) -> None:
        """Only a single broker can be made to refuse."""
        del error, api, times
        raise RuntimeError("a cluster's nodes are paused or killed; refuse() is for klamm.testing.broker()")

    def heal(self) -> None:
        """Go on after `pause`."""
        self.resume()

    def close(self) -> None:
        """End for good and remove the data."""
        try:
            self.kill()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def cluster(nodes: int = 3, *, config: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """A running cluster; ends with the block."""
    with Cluster(nodes, config=config) as running:
        yield running


__all__ = ["Cluster", "ClusterNode", "cluster"]
