"""Commands to a broker in another process and its replies: one JSON object per line over a socket pair."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from klamm.testing.fault_names import Seconds
    from klamm.testing.node_thread import NodeThread

LINE_BYTES_MAX: Final = 1 << 20


class ChannelClosed(RuntimeError):
    """The process at the other end of the channel has ended."""


class ControlChannel:
    """One end of the socket pair; one thread sends, one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._read = bytearray()

    def send(self, **words: Any) -> None:
        """Send one object; raise ChannelClosed when the other process has ended."""
        try:
            self._sock.settimeout(None)
            self._sock.sendall(json.dumps(words).encode() + b"\n")
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the next object; ChannelClosed when the other process has ended, TimeoutError after `timeout_s`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (end := self._read.find(b"\n")) < 0:
            if len(self._read) > LINE_BYTES_MAX:  # not a command: something else writes to the socket
                raise ChannelClosed(f"a line is longer than {LINE_BYTES_MAX} bytes")
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"the broker's process did not answer within {timeout_s:.0f} s")
            self._sock.settimeout(left)
            try:
                more = self._sock.recv(65536)
            except TimeoutError:
                continue  # the check above raises it with a text
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not more:
                raise ChannelClosed("the broker's process has ended")
            self._read += more
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        message: dict[str, Any] = json.loads(line)
        return message

    def ask(self, timeout_s: float, **words: Any) -> dict[str, Any]:
        """Send a command and return its reply; an error of the other process is raised as RuntimeError."""
        self.send(**words)
        return check_reply(self.receive(timeout_s))

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


def check_reply(reply: dict[str, Any]) -> dict[str, Any]:
    """Return the reply; raise RuntimeError when it carries an error."""
    if "error" in reply:
        raise RuntimeError(reply["error"])
    return reply


class ControlledBroker(ABC):
    """The fault methods of a broker that is controlled over a channel."""

    @abstractmethod
    def _command(self, **command: Any) -> None:
        """Send a command to the broker; return when it was executed."""

    @abstractmethod
    def resume(self) -> None:
        """Continue after a pause."""

    def slow(self, seconds: Seconds, api: str | int | None = None) -> None:
        """Delay clients' requests (or those of one API, e.g. "Produce") by this time."""
        from klamm.testing.fault_names import parse_api, parse_seconds

        self._command(do="slow", seconds=parse_seconds(seconds), api=None if api is None else parse_api(api).name)

    def refuse(self, error: str | int, api: str | int | None = None, times: int | None = None) -> None:
        """Answer clients' requests with an error, `times` times; error and API by name or number."""
        from klamm.testing.fault_names import parse_api, parse_error, parse_times

        name = None if api is None else parse_api(api).name
        self._command(do="refuse", error=parse_error(error).name, api=name, times=parse_times(times))

    def heal(self) -> None:
        """End pause, delays and errors."""
        self.resume()  # first: a stopped process reads no command
        self._command(do="heal")


def await_stopped(pid: int) -> None:
    """Wait until a child process is stopped by SIGSTOP, or has ended."""
    # kill() returns before the signal is delivered. WNOWAIT leaves the exit status for the caller that reaps.
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


class OwnerState:
    """Whether the process that owns a broker announced its stop, or was lost."""

    def __init__(self) -> None:
        self.decided = threading.Event()
        self.lost = False

    def announce_stop(self) -> None:
        """The owner stops the broker and removes its data."""
        self.decided.set()

    def mark_lost(self) -> None:
        """The owner has ended without stopping the broker."""
        self.lost = True
        self.decided.set()


def serve_commands(node_thread: NodeThread, link: ControlChannel, owner: OwnerState) -> None:
    """Execute commands until ChannelClosed: a broker without its owner must end."""
    while True:
        command = link.receive()
        if command["do"] == "part":
            owner.announce_stop()
            continue
        try:
            _run_command(node_thread, command)
            link.send(done=True)
        except ChannelClosed:
            raise
        except Exception as error:  # noqa: BLE001 - sent back as the reply
            link.send(error=f"{type(error).__name__}: {error}")


def _run_command(node_thread: NodeThread, command: dict[str, Any]) -> None:
    if command["do"] == "slow":
        node_thread.slow(command["seconds"], command["api"])
    elif command["do"] == "refuse":
        node_thread.refuse(command["error"], command["api"], command["times"])
    else:
        node_thread.heal()
