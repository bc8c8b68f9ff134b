"""A broker's process for a test: serves, and runs commands of a `ControlChannel`.

`ChildBroker` starts it as a program; `fork_server` forks the nodes of a cluster into the same `serve_node`.
"""

import contextlib
import json
import shutil
import signal
import socket
import sys
import threading
from typing import Final

from klamm.server.boot.config import NodeConfig, embedded_properties, parse_config
from klamm.testing.control_channel import ChannelClosed, ControlChannel, OwnerState, serve_commands
from klamm.testing.node_thread import NodeThread

ABANDONED_S: Final = 2.0
"""How long to wait, after a SIGTERM that was not announced, for the test's process to end as well."""


def main(descriptor: str, data: str, port: str, overrides: str, log_level: str, temporary: str) -> int:
    """Serve one broker; remove a temporary directory if the test's process ended first and cannot."""
    link = ControlChannel(socket.socket(fileno=int(descriptor)))
    try:
        pairs = [f"{key}={value}" for key, value in json.loads(overrides).items()]
        config = parse_config(embedded_properties(data, int(port)), pairs, source="the test's settings")
    except Exception as error:  # noqa: BLE001 - sent to the test, which waits for the port
        link.send(error=f"{type(error).__name__}: {error}")
        return 1
    owner = OwnerState()
    code = serve_node(config, link, log_level, owner)
    if temporary and owner.decided.wait(ABANDONED_S) and owner.lost:
        shutil.rmtree(data, ignore_errors=True)
    return code


class _EndSignal:
    """What the main thread waits for: SIGTERM, or `begin` from another thread.

    A socket and not a threading.Event: the kernel may deliver a signal to any thread (to another than the main one
    right after SIGCONT), and Python's handler runs only when the main thread wakes. A thread that waits for a lock is
    not woken by a signal to another thread; a byte from `set_wakeup_fd` wakes it in any case.
    """

    def __init__(self) -> None:
        self._wakes, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        signal.signal(signal.SIGTERM, _ignore_signal)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)

    def begin(self) -> None:
        """End the wait; from any thread."""
        with contextlib.suppress(BlockingIOError):  # full: the main thread is about to wake anyway
            self._wake.send(b"\0")

    def wait(self) -> None:
        """Block until `begin` or SIGTERM; in the main thread."""
        self._wakes.recv(1)


def _ignore_signal(*_: object) -> None:
    """Do nothing: the byte that SIGTERM writes to the socket ends the wait."""


def serve_node(config: NodeConfig, link: ControlChannel, log_level: str, owner: OwnerState) -> int:
    """Serve until SIGTERM or until the owner's process ends; send the port once ready. Return the exit code."""
    ending = _EndSignal()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test, which then ends this
    node_thread = NodeThread(config, log_level=log_level, on_end=ending.begin)
    node_thread.launch()
    announced = threading.Event()
    threading.Thread(target=_serve_commands, args=(node_thread, link, announced, ending, owner), daemon=True).start()
    ending.wait()
    node_thread.stop()
    announced.wait()  # the test waits for the port or an error: one of them must be sent before the process ends
    return 1 if node_thread.failure is not None else 0


def _serve_commands(
    node_thread: NodeThread, link: ControlChannel, announced: threading.Event, ending: _EndSignal, owner: OwnerState
) -> None:
    try:
        try:
            link.send(port=node_thread.wait_ready(None))
        except ChannelClosed:
            raise
        except BaseException as error:  # noqa: BLE001 - sent to the test, which waits for the port
            link.send(error=f"{type(error).__name__}: {error}")
        else:
            announced.set()
            serve_commands(node_thread, link, owner)
    except ChannelClosed:
        owner.mark_lost()
    announced.set()
    ending.begin()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:7]))
