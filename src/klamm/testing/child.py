"""A broker's process for a test: serves, and does what it is told over a `Link`.

`ChildBroker` starts it as a program of its own; nodes of a cluster are forked, by `nursery`, into the same `live`.
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
from klamm.testing.control_channel import Gone, Link, Parting, obey
from klamm.testing.node_thread import NodeThread

ABANDONED_S: Final = 2.0
"""How long after a SIGTERM that nobody announced to see whether the test has ended as well."""


def main(descriptor: str, data: str, port: str, overrides: str, log_level: str, temporary: str) -> int:
    """Serve one broker by itself; a temporary folder goes when the test, which would remove it, ended before."""
    link = Link(socket.socket(fileno=int(descriptor)))
    try:
        pairs = [f"{key}={value}" for key, value in json.loads(overrides).items()]
        config = parse_config(embedded_properties(data, int(port)), pairs, source="the test's settings")
    except Exception as error:  # noqa: BLE001 - told to whoever waits
        link.say(error=f"{type(error).__name__}: {error}")
        return 1
    parting = Parting()
    code = live(config, link, log_level, parting)
    if temporary and parting.known.wait(ABANDONED_S) and parting.gone:
        shutil.rmtree(data, ignore_errors=True)
    return code


class _Ending:
    """What the main thread waits for: SIGTERM, or any other thread that says it is time.

    A socket and not a threading.Event: the kernel may hand a signal to any thread (to another than the main one right
    after SIGCONT), and Python's handler runs only when the main thread wakes. A thread that waits for a lock is not
    woken by a signal of another one; bytes from `set_wakeup_fd` wake it whichever thread was interrupted.
    """

    def __init__(self) -> None:
        self._wakes, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        signal.signal(signal.SIGTERM, _let_wake)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)

    def begin(self) -> None:
        """It is time; from any thread."""
        with contextlib.suppress(BlockingIOError):  # full: the main thread is about to wake anyway
            self._wake.send(b"\0")

    def wait(self) -> None:
        """Until then; in the main thread."""
        self._wakes.recv(1)


def _let_wake(*_: object) -> None:
    """SIGTERM does nothing by itself: its byte in the socket is what counts."""


def live(config: NodeConfig, link: Link, log_level: str, parting: Parting) -> int:
    """Serve until SIGTERM, or until whoever started this has gone; says its port once it serves. The exit code."""
    ending = _Ending()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test, which then ends this
    life = NodeThread(config, log_level=log_level, on_end=ending.begin)
    life.launch()
    announced = threading.Event()
    threading.Thread(target=_serve_orders, args=(life, link, announced, ending, parting), daemon=True).start()
    ending.wait()
    life.stop()
    announced.wait()
    return 1 if life.failure is not None else 0


def _serve_orders(life: NodeThread, link: Link, announced: threading.Event, ending: _Ending, parting: Parting) -> None:
    try:
        try:
            link.say(port=life.wait_ready(None))
        except Gone:
            raise
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            link.say(error=f"{type(error).__name__}: {error}")
        else:
            announced.set()
            obey(life, link, parting)
    except Gone:
        parting.without_a_word()
    announced.set()
    ending.begin()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:7]))
