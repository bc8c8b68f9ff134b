"""Orders to a broker in another process and what it answers: one JSON object per line, over a socket both hold."""

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


class Gone(RuntimeError):
    """The other side has ended."""


class Link:
    """One end of the socket; one thread speaks, one listens."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._read = bytearray()

    def say(self, **words: Any) -> None:
        """Send one object; Gone when nobody is there."""
        try:
            self._sock.settimeout(None)
            self._sock.sendall(json.dumps(words).encode() + b"\n")
        except OSError as error:
            raise Gone(str(error)) from error

    def hear(self, patience_s: float | None = None) -> dict[str, Any]:
        """The next object; Gone when the other side has ended, TimeoutError when it is silent for too long."""
        deadline = None if patience_s is None else time.monotonic() + patience_s
        while (end := self._read.find(b"\n")) < 0:
            if len(self._read) > LINE_BYTES_MAX:
                raise Gone("a line without an end")
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"the broker's process said nothing for {patience_s:.0f} s")
            self._sock.settimeout(left)
            try:
                more = self._sock.recv(65536)
            except TimeoutError:
                continue
            except OSError as error:
                raise Gone(str(error)) from error
            if not more:
                raise Gone("the broker's process has ended")
            self._read += more
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, patience_s: float, **words: Any) -> dict[str, Any]:
        """Say something and hear the answer; what went wrong there is a RuntimeError here."""
        self.say(**words)
        return told(self.hear(patience_s))

    def close(self) -> None:
        """Hang up."""
        self._sock.close()


def told(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer, unless it tells an error."""
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer


class Obedient(ABC):
    """The faults of a broker that takes them as orders."""

    @abstractmethod
    def _order(self, **order: Any) -> None:
        """Let the broker do it; returns when it has."""

    @abstractmethod
    def resume(self) -> None:
        """Go on."""

    def slow(self, seconds: Seconds, api: str | int | None = None) -> None:
        """Let clients' requests (or those of one API, e.g. "Produce") wait so long before they are looked at."""
        from klamm.testing.fault_names import api_named, seconds_of

        self._order(do="slow", seconds=seconds_of(seconds), api=None if api is None else api_named(api).name)

    def refuse(self, error: str | int, api: str | int | None = None, times: int | None = None) -> None:
        """Answer clients' requests with an error, by name or number as the API, for so many times."""
        from klamm.testing.fault_names import api_named, error_named, times_of

        name = None if api is None else api_named(api).name
        self._order(do="refuse", error=error_named(error).name, api=name, times=times_of(times))

    def heal(self) -> None:
        """Take pause, slowness and refusals back."""
        self.resume()
        self._order(do="heal")


def await_stopped(pid: int) -> None:
    """Wait until all threads of a child process stand still after SIGSTOP, or the process has ended."""
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


class Parting:
    """How whoever started a broker parts from it: with word of its end, or without one, when its process ended."""

    def __init__(self) -> None:
        self.known = threading.Event()
        self.gone = False

    def announced(self) -> None:
        """It will end the broker, and look after its data."""
        self.known.set()

    def without_a_word(self) -> None:
        """Nobody is there any more."""
        self.gone = True
        self.known.set()


def obey(life: NodeThread, link: Link, parting: Parting) -> None:
    """Do what the test wants of its broker; Gone when it hangs up: in nobody's hands, the broker must end."""
    while True:
        order = link.hear()
        if order["do"] == "part":
            parting.announced()
            continue
        try:
            _act(life, order)
            link.say(done=True)
        except Gone:
            raise
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            link.say(error=f"{type(error).__name__}: {error}")


def _act(life: NodeThread, order: dict[str, Any]) -> None:
    if order["do"] == "slow":
        life.slow(order["seconds"], order["api"])
    elif order["do"] == "refuse":
        life.refuse(order["error"], order["api"], order["times"])
    else:
        life.heal()
