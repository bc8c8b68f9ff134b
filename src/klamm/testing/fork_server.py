"""A process that imports what a node needs once and forks every node of a test's cluster.

Three interpreters that each import a broker spend most of a cluster's start on imports. The fork server imports while
the test formats directories, and a fork takes milliseconds. It has one thread and no event loop, so forking is safe.
When the test's end of the socket closes, however the test ended, it kills its nodes and removes their directory.
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

from klamm.testing.control_channel import ChannelClosed, ControlChannel, await_stopped, check_reply

TIMEOUT_S: Final = 60.0
_COMMAND_BYTES_MAX: Final = 65536


class ForkServer:
    """The test's side: starts nodes and reads their exit codes. Not thread-safe."""

    def __init__(self, folder: str) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "klamm.testing.fork_server", str(theirs.fileno()), folder],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._link = ControlChannel(self._control)

    def start(self, properties: str, log: str, log_level: str) -> tuple[int, ControlChannel]:
        """Start a node on a properties file, logging to `log`; return its pid and control channel."""
        ours, theirs = socket.socketpair()
        command = {"do": "start", "properties": properties, "log": log, "log_level": log_level}
        try:
            with theirs:
                socket.send_fds(self._control, [json.dumps(command).encode() + b"\n"], [theirs.fileno()])
            return int(self._receive_reply()["pid"]), ControlChannel(ours)
        except BaseException:
            ours.close()
            raise

    def reap(self, pid: int, *, wait: bool = False) -> int | None:
        """Return the exit code of a node, None while it runs."""
        # The node is a child of the fork server, not of the test: only the server can reap it. Until then the pid is
        # not reused, so that a signal cannot reach another process.
        self._link.send(do="reap", pid=pid, wait=wait)
        code: int | None = self._receive_reply()["code"]
        return code

    def await_stopped(self, pid: int) -> None:
        """Wait until a node that was sent SIGSTOP is stopped."""
        self._link.send(do="await_stopped", pid=pid)
        self._receive_reply()

    def _receive_reply(self) -> dict[str, Any]:
        try:
            return check_reply(self._link.receive(TIMEOUT_S))
        except ChannelClosed:
            raise RuntimeError(f"the fork server ended with {self._process.wait()}") from None

    def close(self) -> None:
        """Kill all nodes, end the fork server, remove the folder."""
        self._link.close()
        try:
            self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(descriptor: str, folder: str) -> int:
    """Run the fork server."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test, which then closes its end
    fork_server = os.getpid()
    signal.signal(signal.SIGTERM, lambda *_: _ignore_sigterm(fork_server))
    _import_everything()
    gc.collect()
    gc.freeze()  # imported objects are permanent: the collector of a node must not touch, and so copy, their pages
    children: set[int] = set()
    with socket.socket(fileno=int(descriptor)) as control:
        link = ControlChannel(control)
        try:
            while True:
                command, descriptors = _next_command(control)
                if command["do"] == "start":
                    pid = _fork(command, descriptors[0], control)
                    children.add(pid)
                    link.send(pid=pid)
                elif command["do"] == "await_stopped":
                    await_stopped(command["pid"])
                    link.send(done=True)
                else:
                    pid, status = os.waitpid(command["pid"], 0 if command["wait"] else os.WNOHANG)
                    if pid:
                        children.discard(pid)
                    link.send(code=os.waitstatus_to_exitcode(status) if pid else None)
        except ChannelClosed:
            pass
        finally:
            # SIGKILL works on stopped processes too; removing the directory before they end would race with writes.
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in children:
                os.waitpid(pid, 0)
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def _ignore_sigterm(fork_server: int) -> None:
    """Survive SIGTERM to the process group: the closed socket ends the fork server, after it has cleaned up."""
    if os.getpid() != fork_server:  # a node that has just been forked and has no handler of its own yet
        os._exit(1)


def _next_command(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, descriptors = b"", []
    while not data.endswith(b"\n"):
        more, given, _, _ = socket.recv_fds(control, _COMMAND_BYTES_MAX, 1)
        if not more:
            raise ChannelClosed("the test has ended")
        data += more
        descriptors += given
    command: dict[str, Any] = json.loads(data)
    return command, descriptors


def _fork(command: dict[str, Any], descriptor: int, control: socket.socket) -> int:
    """Fork a node; does not return in the child."""
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid
    code = 1
    try:
        control.close()  # or the server's socket would stay open in the node, and the test's end never reach it
        random.seed()  # forks share the generator's state: all nodes would draw the same election timeouts
        log = os.open(command["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(log, 2)
        os.close(log)
        code = _run_node(command, ControlChannel(socket.socket(fileno=descriptor)))
    except BaseException:  # noqa: BLE001 - logged as the reason why the process ends
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # not sys.exit: exit handlers and buffers are those of the fork server


def _run_node(command: dict[str, Any], link: ControlChannel) -> int:
    from klamm.server.boot.config import load_config
    from klamm.testing.child import serve_node
    from klamm.testing.control_channel import OwnerState

    try:
        config = load_config(command["properties"])
    except Exception as error:  # noqa: BLE001 - sent to the test, which waits for the port
        link.send(error=f"{type(error).__name__}: {error}")
        return 1
    return serve_node(config, link, command["log_level"], OwnerState())


def _import_everything() -> None:
    """Import and compile what a node needs, so that no fork does it again."""
    import klamm.testing.child  # noqa: F401 - imported for its effect
    from klamm.server.requests.routes import quick_paths, routes

    quick_paths()
    for kind in ("broker", "controller"):
        for route in routes(kind).values():
            route.handle  # noqa: B018 - the attribute imports the handler and compiles its codecs


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
