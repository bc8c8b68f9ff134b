"""Cut a client's connection between a Produce request and its reply, the case idempotent producers exist for.

The broker under test advertises the proxy's port, so every connection passes here. When told to, the proxy forwards a
Produce request, waits until the broker has answered, and closes the connection instead of passing the answer on: the
record is in the log and the client cannot know.
"""

import contextlib
import socket
import struct
import threading

PRODUCE = 0


class CuttingProxy:
    """Forwards frames to `target_port`; `cut_every` n closes the connection on every n-th Produce reply."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.target_port = 0
        self.cut_every = 0
        self.cuts = 0
        self._produces = 0
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", port))
        self._links: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for link in list(self._links):
            _shut(link)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Requests up in this thread, replies down in another; a condemned reply is known by its correlation id."""
        try:
            broker = socket.create_connection(("127.0.0.1", self.target_port), timeout=10)
        except OSError:
            client.close()
            return
        broker.settimeout(None)
        self._links |= {client, broker}
        condemned: set[int] = set()
        down = threading.Thread(target=self._replies, args=(broker, client, condemned), daemon=True)
        down.start()
        with contextlib.suppress(OSError):
            while (frame := _frame(client)) is not None:
                api_key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
                if api_key == PRODUCE and self._is_condemned():
                    condemned.add(correlation_id)
                broker.sendall(frame)
        _shut(broker)
        down.join()
        for link in (client, broker):
            link.close()
            self._links.discard(link)

    def _replies(self, broker: socket.socket, client: socket.socket, condemned: set[int]) -> None:
        with contextlib.suppress(OSError):
            while (frame := _frame(broker)) is not None:
                if struct.unpack_from(">i", frame, 4)[0] in condemned:
                    with self._lock:
                        self.cuts += 1
                    break
                client.sendall(frame)
        _shut(client)
        _shut(broker)

    def _is_condemned(self) -> bool:
        with self._lock:
            self._produces += 1
            return self.cut_every > 0 and self._produces % self.cut_every == 0


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
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
