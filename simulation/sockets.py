"""The server side of the network as a simulated node sees it."""

from collections.abc import Callable
from typing import Any

from klamm.net.sockets import Sockets
from simulation.loop import Process
from simulation.net import WINDOW_BYTES, SimNet


class SimSockets(Sockets):
    """The operating system's sockets as a simulated process sees them."""

    def __init__(self, net: SimNet, process: Process, read: Callable[[int, int, int], bytes]) -> None:
        self._net = net
        self._process = process
        self._read = read

    def listen(self, host: str, port: int, *, backlog: int, receive_buffer_bytes: int = -1) -> Any:
        """Listen on this machine."""
        return self._net.listen(self._process, host, port)

    def read_file(self, source: int, space: memoryview, position: int) -> int:
        """Read bytes of a simulated file."""
        data = self._read(source, len(space), position)
        space[: len(data)] = data
        return len(data)

    def sendfile(self, out: int, source: int, position: int, length: int) -> int:  # type: ignore[override]
        """Send bytes of a simulated file."""
        sock = self._net.sockets[out]
        free = WINDOW_BYTES - sock.in_flight
        if free <= 0:
            raise BlockingIOError
        data = self._read(source, min(length, free), position)
        return int(sock.send(data)) if data else 0
