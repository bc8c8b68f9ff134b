"""Where the nodes of a cluster come from: one process imports what a node needs, and every node is forked from it.

Three interpreters that each import a broker spend most of a cluster's start on that. The nursery imports once, while
the test formats folders, and a fork takes milliseconds. It has one thread and no event loop, so forking is safe; it
ends, and takes its nodes and their folder along, when the test's end of the socket closes, by whatever end of the test.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from typing import Any, Final

from klamm.testing.control_channel import Gone, Link, await_stopped, told

PATIENCE_S: Final = 60.0
_ORDER_BYTES_MAX: Final = 65536


class Nursery:
    """The test's side: starts nodes and hears how they ended. Not for several threads at once."""

    def __init__(self, folder: str) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "klamm.testing.fork_server", str(theirs.fileno()), folder],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._link = Link(self._control)

    def start(self, properties: str, log: str, log_level: str) -> tuple[int, Link]:
        """A node on a properties file, what it logs in `log`; its process and the line it takes orders on."""
        ours, theirs = socket.socketpair()
        order = {"do": "start", "properties": properties, "log": log, "log_level": log_level}
        try:
            with theirs:
                socket.send_fds(self._control, [json.dumps(order).encode() + b"\n"], [theirs.fileno()])
            return int(self._answer()["pid"]), Link(ours)
        except BaseException:
            ours.close()
            raise

    def ended(self, pid: int, *, wait: bool = False) -> int | None:
        """How a node's process ended, None while it lives. Until this is asked, its number is given to no other."""
        self._link.say(do="reap", pid=pid, wait=wait)
        code: int | None = self._answer()["code"]
        return code

    def await_stopped(self, pid: int) -> None:
        """Wait until a node that was sent SIGSTOP stands still."""
        self._link.say(do="await_stopped", pid=pid)
        self._answer()

    def _answer(self) -> dict[str, Any]:
        try:
            return told(self._link.hear(PATIENCE_S))
        except Gone:
            raise RuntimeError(f"the process nodes are started from ended with {self._process.wait()}") from None

    def close(self) -> None:
        """End all nodes there are, as SIGKILL does, and the nursery; their folder goes."""
        self._link.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(descriptor: str, folder: str) -> int:
    """The nursery itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test, which then closes its end
    nursery = os.getpid()
    signal.signal(signal.SIGTERM, lambda *_: _terminated(nursery))
    _import_everything()
    gc.collect()
    gc.freeze()  # what is here now lives as long as the nodes: their collectors need not look at it, nor copy its pages
    children: set[int] = set()
    with socket.socket(fileno=int(descriptor)) as control:
        link = Link(control)
        try:
            while True:
                order, descriptors = _next_order(control)
                if order["do"] == "start":
                    pid = _fork(order, descriptors[0], control)
                    children.add(pid)
                    link.say(pid=pid)
                elif order["do"] == "await_stopped":
                    await_stopped(order["pid"])
                    link.say(done=True)
                else:
                    found, status = os.waitpid(order["pid"], 0 if order["wait"] else os.WNOHANG)
                    if found:
                        children.discard(found)
                    link.say(code=os.waitstatus_to_exitcode(status) if found else None)
        except Gone:
            pass
        finally:
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in children:
                os.waitpid(pid, 0)
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def _terminated(nursery: int) -> None:
    """SIGTERM to a whole group ends the test too, and the closed socket then the nursery: it has to tidy up first."""
    if os.getpid() != nursery:  # a node that has just been forked and has no handler of its own yet
        os._exit(1)


def _next_order(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, descriptors = b"", []
    while not data.endswith(b"\n"):
        more, given, _, _ = socket.recv_fds(control, _ORDER_BYTES_MAX, 1)
        if not more:
            raise Gone("the test has ended")
        data += more
        descriptors += given
    order: dict[str, Any] = json.loads(data)
    return order, descriptors


def _fork(order: dict[str, Any], descriptor: int, control: socket.socket) -> int:
    """Let a node live in a process of its own; in that process this does not return."""
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid
    code = 1
    try:
        control.close()
        random.seed()
        log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(log, 2)
        os.close(log)
        code = _live(order, Link(socket.socket(fileno=descriptor)))
    except BaseException:  # noqa: BLE001 - the end of a process, said in its log
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _live(order: dict[str, Any], link: Link) -> int:
    from klamm.server.boot.config import load_config
    from klamm.testing.child import live
    from klamm.testing.control_channel import Parting

    try:
        config = load_config(order["properties"])
    except Exception as error:  # noqa: BLE001 - told to whoever waits
        link.say(error=f"{type(error).__name__}: {error}")
        return 1
    return live(config, link, order["log_level"], Parting())


def _import_everything() -> None:
    """What a node imports and compiles in its first moments, so that no fork does it again."""
    import klamm.testing.child  # noqa: F401 - it is the import that is wanted
    from klamm.server.requests.routes import quick_paths, routes

    quick_paths()
    for kind in ("broker", "controller"):
        for route in routes(kind).values():
            route.handle  # noqa: B018 - looking at it imports it


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
