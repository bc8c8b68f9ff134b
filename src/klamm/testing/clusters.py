"""A cluster for a test: every node a process of its own, formatted in a temporary directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from klamm.testing.brokers import DEFAULTS, Broker, broker_settings
from klamm.testing.control_channel import ChannelClosed, ControlChannel, ControlledBroker, check_reply
from klamm.testing.fork_server import ForkServer

if TYPE_CHECKING:
    from klamm.server.boot.local_cluster import LocalNode
    from klamm.testing.fault_names import Seconds

READY_S: Final = 90.0  # far more than a start takes, for machines that run many tests at once
STOP_S: Final = 30.0


class ClusterNode(ControlledBroker):
    """One node of a cluster. Faults apply to clients only; requests between nodes are served as usual."""

    def __init__(self, plan: LocalNode, fork_server: ForkServer, log_level: str) -> None:
        self._plan = plan
        self._fork_server = fork_server
        self._log_level = log_level
        self._process: tuple[int, ControlChannel] | None = None
        self._serves = False

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
        """Whether its process is running."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The process."""
        return self._require_running()[0]

    def start(self) -> None:
        """Start the process without waiting until it serves."""
        if self._process is not None:
            raise RuntimeError(f"node {self.id} is running already")
        self._serves = False
        self._process = self._fork_server.start(self._plan.properties, self._plan.log, self._log_level)

    def wait(self, timeout_s: float = READY_S) -> None:
        """Wait until it serves clients; raise RuntimeError with the end of its log when it cannot."""
        _, link = self._require_running()
        if self._serves:
            return
        try:
            check_reply(link.receive(timeout_s))
        except ChannelClosed:
            self.check_alive(wait=True)
        except RuntimeError as error:
            self._drop_process(wait=True)
            raise RuntimeError(f"node {self.id} does not serve: {error}") from None
        self._serves = True

    def _require_running(self) -> tuple[int, ControlChannel]:
        if self._process is None:
            raise RuntimeError(f"node {self.id} is not running; call start()")
        return self._process

    def pause(self) -> None:
        """SIGSTOP; returns when the process has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        self._fork_server.await_stopped(self.pid)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)
        self._drop_process(wait=True)

    def stop(self) -> None:
        """SIGTERM, and wait for the end of the process."""
        pid, _ = self._require_running()
        os.kill(pid, signal.SIGCONT)  # a paused process does not handle SIGTERM
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while self._drop_process() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"node {self.id} did not stop within {STOP_S:.0f} s:\n{self.log()}")
            time.sleep(0.005)

    def _command(self, **command: Any) -> None:
        self.wait()
        _, link = self._require_running()
        link.ask(STOP_S, **command)

    def log(self) -> str:
        """The end of what it wrote to standard error."""
        with contextlib.suppress(FileNotFoundError), open(self._plan.log, encoding="utf-8", errors="replace") as file:
            return file.read()[-4000:]
        return ""

    def check_alive(self, *, wait: bool = False) -> None:
        """Raise RuntimeError with the end of its log when the process has ended."""
        if self._process is not None and (code := self._drop_process(wait=wait)) is not None:
            raise RuntimeError(f"node {self.id} ended with {code}:\n{self.log()}")

    def abandon(self) -> None:
        """Drop the process without waiting: it ends with the fork server."""
        if self._process is not None:
            self._process[1].close()
            self._process = None

    def _drop_process(self, *, wait: bool = False) -> int | None:
        """Return the exit code and drop the process; None while it runs."""
        pid, _ = self._require_running()
        code = self._fork_server.reap(pid, wait=wait)
        if code is not None:
            self.abandon()
        return code


class Cluster(Broker):
    """Several nodes; `bootstrap` has the addresses of all, `nodes[0].kill()` kills one."""

    def __init__(self, nodes: int = 3, *, config: Mapping[str, Any] | None = None, log_level: str = "warning") -> None:
        folder = tempfile.mkdtemp(prefix="klamm-test-")
        fork_server = ForkServer(folder)  # first: it imports while the directories are formatted here
        try:
            from klamm.server.boot.local_cluster import plan_cluster, prepare_cluster

            plans = plan_cluster(folder, nodes)
            prepare_cluster(plans, lambda _: {**DEFAULTS, **broker_settings(config)})
        except BaseException:
            fork_server.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        super().__init__(port=plans[0].port, data=folder, config=config, log_level=log_level)
        self._fork_server = fork_server
        self.nodes = [ClusterNode(plan, fork_server, log_level) for plan in plans]

    @property
    def bootstrap(self) -> str:
        """Every node's address."""
        return ",".join(node.bootstrap for node in self.nodes)

    @property
    def running(self) -> bool:
        """Whether any node is running."""
        return any(node.running for node in self.nodes)

    def start(self) -> Self:
        """Start every node that is not running; returns when all of them are in the cluster."""
        try:
            # All before the first wait: a quorum needs a majority of them to serve at all.
            for node in self.nodes:
                if not node.running:
                    node.start()
            for node in self.nodes:
                node.wait()
            self.wait()
        except BaseException:
            self.close()
            raise
        return self

    def wait(self, brokers: int | None = None, timeout_s: float = READY_S) -> None:
        """Wait until a broker reports `brokers` live brokers; without a number, until every running node reports all.

        A client that gets fewer from the next node may fail requests to the missing ones.
        """
        from klamm.client.blocking_cluster import BlockingCluster, ClusterUnreachable
        from klamm.model.errors import KlammError
        from klamm.protocol.messages.describe_cluster import DescribeClusterRequest

        running = [node.bootstrap for node in self.nodes if node.running]
        wanted, bootstraps = (len(running), running) if brokers is None else (brokers, [self.bootstrap])
        deadline = time.monotonic() + timeout_s
        alive = -1
        while time.monotonic() < deadline:
            for node in self.nodes:
                node.check_alive()
            alive = wanted
            for bootstrap in bootstraps:
                if alive >= wanted:
                    alive = -1
                    with (
                        contextlib.suppress(ClusterUnreachable, KlammError),
                        BlockingCluster(bootstrap, 5.0) as cluster,
                    ):
                        # Not Metadata, which keeps naming a broker for a while after it left.
                        alive = len(cluster.ask(DescribeClusterRequest()).brokers)
            if alive >= wanted:
                return
            time.sleep(0.02)
        logs = "\n".join(f"node {node.id}:\n{node.log()}" for node in self.nodes)
        raise TimeoutError(f"{alive} of {wanted} brokers are alive after {timeout_s:.0f} s\n{logs}")

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

    def slow(self, seconds: Seconds, api: str | int | None = None) -> None:
        """Delay clients' requests to all nodes; `nodes[i].slow(...)` for one."""
        for node in self.nodes:
            if node.running:
                node.slow(seconds, api)

    def refuse(self, error: str | int, api: str | int | None = None, times: int | None = None) -> None:
        """Answer clients with an error, `times` times on each node; `nodes[i].refuse(...)` for one."""
        for node in self.nodes:
            if node.running:
                node.refuse(error, api, times)

    def heal(self) -> None:
        """End pause, delays and errors."""
        for node in self.nodes:
            if node.running:
                node.heal()

    def close(self) -> None:
        """Kill all nodes and remove the data."""
        try:
            self._fork_server.close()
            for node in self.nodes:
                node.abandon()
        finally:
            shutil.rmtree(self.data, ignore_errors=True)


@contextlib.contextmanager
def cluster(nodes: int = 3, *, config: Mapping[str, Any] | None = None) -> Iterator[Cluster]:
    """A running cluster; ends with the block."""
    with Cluster(nodes, config=config) as running:
        yield running


__all__ = ["Cluster", "ClusterNode", "cluster"]
