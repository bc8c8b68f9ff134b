"""Links between nodes that can be cut: every address that nodes advertise to each other leads through this proxy.

Who is calling is known from the client id of the first request, which nodes begin with what they are and their own id;
over TLS, where that is encrypted, from the process that has the socket. Other clients pass through untouched. A cut
link holds its bytes and gives them on when it heals, as a network does.
"""

import asyncio
import contextlib
import os
import re
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

CHUNK_BYTES = 256 * 1024
_TLS_HANDSHAKE = 0x16
_NODE = re.compile(rb"^(?:broker|controller|raft-client|quorum)-(\d+)\b")


class Links:
    """All links of a cluster, in a thread of their own; `cut(1, 2)` holds all bytes between nodes 1 and 2."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self._cut: set[tuple[int, int]] = set()
        self._open: dict[asyncio.Task[None], int | None] = {}
        self._healed = asyncio.Event()
        self.processes: Callable[[], dict[int, int]] = dict
        """Returns the running processes of nodes: pid -> node id."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def add(self, port: int, target: int, node_id: int) -> None:
        """Lead `port` to `target`, where node `node_id` listens."""
        self._call(self._listen(port, target, node_id))

    def cut(self, source: int, target: int, *, both: bool = True) -> None:
        """Hold what `source` sends to `target`; with `both` also what flows the other way."""
        self._call(self._change({(source, target), *([(target, source)] if both else [])}))

    def isolate(self, node_id: int, others: list[int]) -> None:
        """Cut a node from all others."""
        for other in others:
            self.cut(node_id, other)

    def heal(self) -> None:
        """Let everything flow again."""
        self._call(self._change(None))

    def _call(self, work) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _change(self, more: set[tuple[int, int]] | None) -> None:
        self._cut = self._cut | more if more is not None else set()
        self._healed.set()
        self._healed = asyncio.Event()

    async def _close(self) -> None:
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _listen(self, port: int, target: int, node_id: int) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._open[task] = None
            try:
                await self._serve(reader, writer, target, node_id)
            finally:
                del self._open[task]
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", port, limit=CHUNK_BYTES)
        self._open[asyncio.create_task(_serve_forever(server))] = node_id

    async def _serve(self, reader, writer, target: int, node_id: int) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readexactly(14)
            name = b""
            # As the first byte of a length it would begin a frame of 369 MB.
            if head[0] == _TLS_HANDSHAKE:
                caller = self._find_process(writer.get_extra_info("peername")[1])
            else:
                (length,) = struct.unpack_from(">h", head, 12)
                name = await reader.readexactly(length) if length > 0 else b""
                match = _NODE.search(name)
                caller = int(match[1]) if match else None
            await self._pass(caller, node_id)
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", target, limit=CHUNK_BYTES)
            try:
                to_writer.write(head + name)
                ways = [
                    asyncio.create_task(self._pump(reader, to_writer, caller, node_id)),
                    asyncio.create_task(self._pump(to_reader, writer, node_id, caller)),
                ]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)
            finally:
                to_writer.close()

    def _find_process(self, port: int) -> int | None:
        """The node whose process has the socket with this local port."""
        socket = f"socket:[{_find_inode(port)}]"
        for pid, node_id in self.processes().items():
            with contextlib.suppress(OSError):  # it has just ended
                for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        if os.readlink(descriptor) == socket:
                            return node_id
        return None

    async def _pump(self, reader, writer, source: int | None, target: int | None) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._pass(source, target)
                writer.write(data)
                await writer.drain()

    async def _pass(self, source: int | None, target: int | None) -> None:
        while (source, target) in self._cut:
            await self._healed.wait()


def _find_inode(port: int) -> str:
    """The socket of a TCP connection of this machine, by its local port."""
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port:
            return fields[9]
    return ""


async def _serve_forever(server: asyncio.Server) -> None:
    try:
        async with server:
            await server.serve_forever()
    finally:
        server.close()
