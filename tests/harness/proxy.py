"""A proxy that loses replies: the request arrives, its answer does not, and the connection ends.

It is the case idempotent producers exist for: the record is in the log and the client cannot know. Which Produce is cut
is counted, or decided by a seeded random source, so that a failure replays from the seed. The broker must advertise the
proxy's port, so that every connection passes here.
"""

import contextlib
import random
import socket
import struct
import threading
from typing import Self

PRODUCE = 0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class CuttingProxy:
    """Forwards frames to `target_port`, except that some Produce replies end the connection instead.

    With `chance` above 0 each of them may, with `cut_every` above 0 every n-th one does.
    """

    def __init__(self, seed: int = 0, *, port: int = 0) -> None:
        self.target_port = 0
        self.chance = 0.0
        self.cut_every = 0
        self.cuts = 0
        self._produces = 0
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", port))
        self.port: int = self._server.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._links: set[socket.socket] = set()
        self._run(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        """End every connection and wait for the threads."""
        _shut(self._server)
        self._server.close()
        for link in list(self._links):
            _shut(link)
        for thread in list(self._threads):
            thread.join(timeout=10)

    def reset_connections(self) -> int:
        """Reset every connection at once, both ways: RST, not FIN. Gives how many sockets were reset."""
        with self._lock:
            links = list(self._links)
        for link in links:
            with contextlib.suppress(OSError):
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        for link in links:
            _shut(link)
        return len(links)

    def _run(self, target, *args) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self._run(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        """Requests up in this thread, replies down in another; a condemned reply is known by its correlation id."""
        try:
            node = socket.create_connection(("127.0.0.1", self.target_port), timeout=10)
        except OSError:
            client.close()
            return
        node.settimeout(None)
        with self._lock:
            self._links |= {client, node}
        condemned: set[int] = set()
        down = threading.Thread(target=self._replies, args=(node, client, condemned), daemon=True)
        down.start()
        with contextlib.suppress(OSError):
            while (frame := _frame(client)) is not None:
                api_key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
                if api_key == PRODUCE and self._decide():
                    condemned.add(correlation_id)
                node.sendall(frame)
        _shut(node)
        down.join()
        for link in (client, node):
            link.close()
            with self._lock:
                self._links.discard(link)

    def _decide(self) -> bool:
        with self._lock:
            self._produces += 1
            counted = self.cut_every > 0 and self._produces % self.cut_every == 0
            return counted or (self.chance > 0 and self._random.random() < self.chance)

    def _replies(self, node: socket.socket, client: socket.socket, condemned: set[int]) -> None:
        with contextlib.suppress(OSError):
            while (frame := _frame(node)) is not None:
                if struct.unpack_from(">i", frame, 4)[0] in condemned:
                    with self._lock:
                        self.cuts += 1
                    break
                client.sendall(frame)
        _shut(client)
        _shut(node)


def _frame(link: socket.socket) -> bytes | None:
    head = _exactly(link, 4)
    if head is None:
        return None
    body = _exactly(link, struct.unpack(">i", head)[0])
    return None if body is None else head + body


def _exactly(link: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        more = link.recv(min(size - len(data), 1 << 20))
        if not more:
            return None
        data += more
    return bytes(data)


def _shut(link: socket.socket) -> None:
    """Wake the threads that read from a socket; one that is to be reset must not send a FIN before."""
    with contextlib.suppress(OSError):
        lingering = link.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, len(RESET_ON_CLOSE))
        link.shutdown(socket.SHUT_RD if lingering == RESET_ON_CLOSE else socket.SHUT_RDWR)
