"""A service in a process beside the node or cluster of `klamm up`, on this machine only.

It starts once the node serves, and ends before the node stops, while its clients still reach the cluster. It is a
process of its own, so that its requests share neither the event loop nor the memory of the node.

Its ports are bound here and passed on as open sockets: between a search for a free port and its use, another process
could take it. They stay open here while the service is started again after it died. Requests that come before the
service serves wait in the queue of the socket. If this process dies, even by SIGKILL, the system closes the pipe of the
child's standard input, and the child ends (--until-eof).
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

import click

from klamm.model.errors import ConfigError

HOST: Final = "127.0.0.1"
STOP_S: Final = 15.0
"""How long a service may take to answer its requests and to leave the cluster."""
RESTART_MIN_S, RESTART_MAX_S = 0.5, 30.0
"""The pauses before a service is started again; they double."""
RESTARTS_MAX: Final = 5
"""How often it is started again in a row: a service that never serves has a mistake which a start does not correct."""
STEADY_S: Final = 60.0
"""A service that ran for longer begins a new row."""
_WILDCARDS: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


class ChildService(ABC):
    """A process with one listener or several."""

    def __init__(self, usual_ports: Mapping[str, int]) -> None:
        """`usual_ports` are the names of its listeners, with the port that each has if it is free."""
        self._usual_ports = usual_ports
        self.urls: dict[str, str] = {}
        """Of the listeners by name, once it is started."""
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: threading.Thread | None = None
        self._sockets = contextlib.ExitStack()
        self._stopping = threading.Event()
        self._launching = threading.Lock()
        """Held while a process is launched, so that `terminate` and `kill` do not miss it."""

    @abstractmethod
    def arguments(self, bootstrap: str, descriptors: Sequence[int]) -> list[str]:
        """Return the arguments of `klamm`, with the sockets of the listeners as --listen-fd."""

    def start(self, addresses: str) -> None:
        """Start the process over nodes that listen on these addresses (HOST:PORT,...), and print its URLs.

        A failure is printed, not raised: the node serves without it.
        """
        bootstrap = local_bootstrap(addresses)
        with contextlib.ExitStack() as stack:
            sockets = {}
            try:
                for name, port in self._usual_ports.items():
                    sockets[name] = stack.enter_context(listen_on_usual_or_free(port))
                descriptors = [entry.fileno() for entry in sockets.values()]
                process = self._process = self._launch(bootstrap, descriptors)
            except (ConfigError, OSError) as error:
                click.echo(f"klamm: {self._names()} did not start: {error}", err=True)
                return
            for name, usual in self._usual_ports.items():
                port = sockets[name].getsockname()[1]
                self.urls[name] = f"http://{HOST}:{port}"
                note = "" if port == usual else f"  (port {usual} is taken)"
                click.echo(f"  {name}  {self.urls[name]}{note}")
            self._sockets = stack.pop_all()
        sys.stdout.flush()
        self._watcher = threading.Thread(
            target=self._keep, args=(process, bootstrap, descriptors), name=self._names(), daemon=True
        )
        self._watcher.start()

    def _launch(self, bootstrap: str, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - a command of this package
            [sys.executable, "-m", "klamm", *self.arguments(bootstrap, descriptors), "--until-eof"],
            stdin=subprocess.PIPE,
            # Its ready line has the URLs that are printed here.
            stdout=subprocess.DEVNULL,
            pass_fds=tuple(descriptors),
            # Ctrl-C goes to the process group of the terminal; this process decides when the service stops.
            start_new_session=True,
        )

    def _keep(self, process: subprocess.Popen[bytes], bootstrap: str, descriptors: Sequence[int]) -> None:
        """Wait for the end of the process, and start it again with growing pauses when it ends by itself."""
        restarts = 0
        while True:
            started_s = time.monotonic()
            code = process.wait()
            _close_input(process)
            if self._stopping.is_set():
                return
            if time.monotonic() - started_s > STEADY_S:
                restarts = 0
            if restarts >= RESTARTS_MAX:
                break
            click.echo(f"klamm: {self._names()} ended with {code}; starting it again", err=True)
            if self._stopping.wait(min(RESTART_MIN_S * 2**restarts, RESTART_MAX_S)):
                return
            restarts += 1
            with self._launching:
                if self._stopping.is_set():
                    return
                try:
                    process = self._process = self._launch(bootstrap, descriptors)
                except OSError as error:
                    code = error.errno or 0
                    break
        # Closed: without a process, connections would wait in the queue and never be answered.
        self._sockets.close()
        click.echo(
            f"klamm: {self._names()} ended with {code} and is not started again; Kafka clients are served without it",
            err=True,
        )

    def terminate(self) -> None:
        """Begin to end the process; does nothing if it does not run."""
        self._stopping.set()
        with self._launching:
            if self._process is not None:
                self._process.terminate()

    def wait(self) -> None:
        """Wait for the end of a process that was terminated; it is killed after STOP_S."""
        if self._watcher is None:
            return
        self._watcher.join(STOP_S)
        if self._watcher.is_alive():
            self.kill()
            self._watcher.join()
        self._sockets.close()

    def kill(self) -> None:
        """End the process at once."""
        self._stopping.set()
        with self._launching:
            if self._process is not None:
                self._process.kill()

    def _names(self) -> str:
        return " and ".join(self._usual_ports)


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    # Flushing is refused by a pipe without a reader, also where there is nothing to flush.
    with contextlib.suppress(OSError):
        process.stdin.close()


def stop_children(children: Sequence[ChildService]) -> None:
    """End services in order, all at a time; blocks for STOP_S at most for each, so call it in a thread."""
    for child in children:
        child.terminate()
    for child in children:
        child.wait()


def listen_on_usual_or_free(port: int) -> socket.socket:
    """Return a socket that listens on this port of HOST, or on a free one if it is taken."""
    from klamm.http.binding import bind

    try:
        return bind(HOST, port)
    except ConfigError:
        return bind(HOST, 0)


def local_bootstrap(addresses: str) -> str:
    """Return where this machine reaches nodes whose listeners have these addresses (HOST:PORT,...)."""
    return ",".join(map(_local_address, addresses.split(",")))


def _local_address(address: str) -> str:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    host = _WILDCARDS.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
