"""A server of one listener on the test's own loop, and peers that are plain sockets."""

import asyncio
import contextlib
import socket
import struct

import pytest

from klamm.net import NetConfig, NetServer


class Recorder:
    """A frame handler that answers as a test tells it: by default with the frame itself."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.channels: list = []
        self.closed_channels: list = []
        self.slots: list = []
        self.answer = self.echo

    def handle(self, channel, view, start, end) -> None:
        if channel not in self.channels:
            self.channels.append(channel)
        self.frames.append(bytes(view[start:end]))
        self.answer(channel, self.frames[-1])

    def on_closed(self, channel) -> None:
        self.closed_channels.append(channel)

    @staticmethod
    def echo(channel, frame) -> None:
        channel.reply(frame_of(frame))

    def defer(self, channel, frame) -> None:
        self.slots.append(channel.defer())


def frame_of(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class Peer:
    """The other end of a connection, driven by the same loop."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            async with asyncio.timeout(20):
                more = await asyncio.get_running_loop().sock_recv(self.sock, min(size - len(data), 1 << 20))
            if not more:
                break
            data += more
        return bytes(data)

    async def receive_frame(self) -> bytes:
        return await self.receive(struct.unpack(">i", await self.receive(4))[0])

    async def is_closed(self) -> bool:
        with contextlib.suppress(ConnectionResetError):
            return await self.receive(1) == b""
        return True

    def close(self) -> None:
        self.sock.close()


class Harness:
    def __init__(self, **config) -> None:
        self.handler = Recorder()
        self.server = NetServer(asyncio.get_running_loop(), NetConfig(**config))
        self.port = self.server.bind("TEST", "127.0.0.1", 0)[1]
        self.inner_port = self.server.bind("INNER", "127.0.0.1", 0)[1]
        self.server.start(self.handler)
        self._peers: list[Peer] = []

    async def connect(self, *, receive_buffer: int = 0, port: int = 0) -> Peer:
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        self._peers.append(Peer(sock))
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port or self.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._peers[-1]

    async def until(self, condition) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - what is waited for is state of the server, not an event
                await asyncio.sleep(0)

    def stop(self) -> None:
        self.server.stop()
        for peer in self._peers:
            peer.close()


@pytest.fixture
def serve():
    """Call it inside the test's coroutine; everything is closed at the end."""
    made: list[Harness] = []

    def make(**config) -> Harness:
        made.append(Harness(**config))
        return made[-1]

    yield make
    for harness in made:
        harness.stop()
