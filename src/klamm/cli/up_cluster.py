"""`klamm up --nodes 3`: a process per node under one supervisor, one log per node, one Ctrl-C for all."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from klamm.cli.child_service import stop_children
from klamm.cli.command_errors import CommandRefusal
from klamm.cli.node_runner import METRICS_LINE, READY_LINE

if TYPE_CHECKING:
    from klamm.cli.child_service import ChildService
    from klamm.server.boot.local_cluster import LocalNode

READY_S = 60.0
STOP_S = 40.0
RESTART_MIN_S, RESTART_MAX_S = 0.5, 30.0
LOG_TAIL_BYTES = 2000


class ClusterSupervisor:
    """Starts the nodes, starts one again that died, and stops all of them."""

    def __init__(
        self,
        nodes: Sequence[LocalNode],
        log_level: str,
        *,
        with_metrics: bool = False,
        children: Sequence[ChildService] = (),
    ) -> None:
        """With metrics a node serves them, on a free port if the one in its settings is taken."""
        self._nodes = nodes
        self._with_metrics = with_metrics
        self._metrics: dict[int, str] = {}
        self._children = children
        self._log_level = log_level
        self._stopping = asyncio.Event()
        self._interrupts = 0
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ready: dict[int, asyncio.Event] = {node.node_id: asyncio.Event() for node in nodes}

    async def run(self) -> None:
        """Run the nodes until a signal arrives."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt)
        watchers = [asyncio.create_task(self._keep(node), name=f"node {node.node_id}") for node in self._nodes]
        try:
            await self._announce(watchers)
            await asyncio.wait([asyncio.create_task(self._stopping.wait()), *watchers], return_when="FIRST_COMPLETED")
        finally:
            self._stopping.set()
            # First: they leave their groups while the nodes serve.
            await asyncio.to_thread(stop_children, self._children)
            self._signal_all(signal.SIGTERM)
            # A controlled shutdown moves leaders first, which takes long with many partitions.
            await asyncio.wait(watchers, timeout=STOP_S)
            self._signal_all(signal.SIGKILL)
            results = await asyncio.gather(*watchers, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _interrupt(self) -> None:
        self._interrupts += 1
        self._stopping.set()
        # A second Ctrl-C means now.
        if self._interrupts > 1:
            for child in self._children:
                child.kill()
            self._signal_all(signal.SIGKILL)

    async def _announce(self, watchers: Sequence[asyncio.Task[None]]) -> None:
        all_ready = asyncio.create_task(self._all_ready())
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([all_ready, stop, *watchers], timeout=READY_S, return_when="FIRST_COMPLETED")
        stop.cancel()
        if not all_ready.done():
            all_ready.cancel()
            # run() raises the error of the watcher, which has the reason.
            if self._stopping.is_set() or any(watcher.done() for watcher in watchers):
                return
            missing = [node for node in self._nodes if not self._ready[node.node_id].is_set()]
            raise CommandRefusal(
                f"node {missing[0].node_id} does not serve after {READY_S:.0f} s; its log is {missing[0].log}"
            )
        addresses = ",".join(node.address for node in self._nodes)
        click.echo(f"{READY_LINE}{addresses}")
        for node in self._nodes:
            process = self._processes[node.node_id]
            click.echo(f"  node {node.node_id}  {node.address}  pid {process.pid}  log {node.log}")
        for node_id, address in sorted(self._metrics.items()):
            click.echo(f"  metrics of node {node_id}  http://{address}")
        for child in self._children:
            child.start(addresses)
        click.echo("Ctrl-C stops all of them.")
        sys.stdout.flush()

    async def _all_ready(self) -> None:
        for ready in self._ready.values():
            await ready.wait()

    async def _keep(self, node: LocalNode) -> None:
        """Run one node, and restart it with growing pauses when it exits by itself."""
        pause = RESTART_MIN_S
        served = False
        while not self._stopping.is_set():
            code = await self._run_once(node)
            if self._stopping.is_set():
                return
            # A node that never served has a mistake in its settings; restarting it would fail for ever.
            if not served and not self._ready[node.node_id].is_set():
                raise CommandRefusal(
                    f"node {node.node_id} ended with {code} before it served: {_last_log_line(node.log)}"
                )
            served = True
            click.echo(f"node {node.node_id} ended with {code}; starting it again (log {node.log})", err=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            pause = min(2 * pause, RESTART_MAX_S)

    async def _run_once(self, node: LocalNode) -> int:
        command = (
            sys.executable,
            "-m",
            "klamm",
            "server",
            node.properties,
            "--log-level",
            self._log_level,
            "--until-eof",
            *(("--other-metrics-port",) if self._with_metrics else ()),
        )
        with open(node.log, "ab") as log:  # noqa: ASYNC230 - a supervisor serves nothing else meanwhile
            process = await asyncio.create_subprocess_exec(
                *command,
                # The pipe closes when the supervisor dies, even by SIGKILL, and --until-eof ends the node.
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # Ctrl-C goes to the process group of the terminal; the supervisor alone decides when nodes stop.
                start_new_session=True,
            )
        self._processes[node.node_id] = process
        assert process.stdout is not None
        if self._stopping.is_set():
            # The signal arrived while the process was created: _signal_all did not have it yet.
            process.terminate()
        # Read to the end, also after the ready line: a full pipe would block the node.
        async for line in process.stdout:
            text = line.decode(errors="replace")
            if text.startswith(METRICS_LINE):
                self._metrics[node.node_id] = text.removeprefix(METRICS_LINE).rstrip()
            # The address of metrics, which follows the ready line, is announced with the cluster.
            if text.startswith(METRICS_LINE if self._with_metrics else READY_LINE):
                self._ready[node.node_id].set()
        return await process.wait()

    def _signal_all(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)


def _last_log_line(path: str) -> str:
    """The last line of a log, usually the reason for the exit."""
    with open(path, "rb") as file:
        file.seek(max(os.path.getsize(path) - LOG_TAIL_BYTES, 0))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return f"{lines[-1]} (log {path})" if lines else f"its log is empty (log {path})"


def _refuse_taken_ports(nodes: Sequence[LocalNode]) -> None:
    """Refuse before anything is written or started; a node that finds its port taken reports it only in its log."""
    from klamm.cli.port_owner import find_holder

    for node in nodes:
        for port in (node.port, node.controller_port):
            family = socket.AF_INET6 if ":" in node.host else socket.AF_INET
            with socket.socket(family) as probe:
                # Connections in TIME_WAIT of the last run do not make a port taken.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((node.host, port))
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
                    raise CommandRefusal(
                        f"port {port} on {node.host}, which node {node.node_id} needs, is taken by"
                        f" {find_holder(port) or 'another process'}; stop it, or choose others with --port"
                        " (0 takes free ones)"
                    ) from None


def run_cluster(
    folder: str,
    nodes: int,
    *,
    host: str,
    port: int,
    overrides: Sequence[str],
    log_level: str,
    children: Sequence[ChildService] = (),
) -> None:
    """Start a cluster in `folder` and run it until a signal arrives."""
    from klamm.cli.up import METRICS_PORT
    from klamm.model.broker_catalog.own import INSECURE_LISTENERS, METRICS_LISTENERS
    from klamm.net.free_ports import claim_or_free
    from klamm.server.boot.listeners import Listener
    from klamm.server.boot.local_cluster import plan_cluster, prepare_cluster

    settings = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"--override {override}: write --override key=value")
        settings[key.strip()] = value.strip()
    if not Listener("PLAINTEXT", host, port).loopback:
        # `klamm up` has refused it already, unless it is meant (--allow-insecure-bind).
        settings.setdefault(INSECURE_LISTENERS, "PLAINTEXT,CONTROLLER")
    planned = plan_cluster(os.path.abspath(folder), nodes, host=host, port=port)
    _refuse_taken_ports(planned)
    metrics = {}
    if METRICS_LISTENERS not in settings:
        metrics = {
            node.node_id: f"127.0.0.1:{claim_or_free('127.0.0.1', METRICS_PORT + node.node_id - 1)}" for node in planned
        }

    def node_settings(node: LocalNode) -> dict[str, str]:
        return {METRICS_LISTENERS: metrics[node.node_id], **settings} if metrics else settings

    prepare_cluster(planned, node_settings)
    asyncio.run(ClusterSupervisor(planned, log_level, with_metrics=bool(metrics), children=children).run())
