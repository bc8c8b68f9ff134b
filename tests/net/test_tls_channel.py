"""A connection over TLS: the same frames and replies as over plaintext, files included; bad handshakes end alone."""

import asyncio
import contextlib
import os
import random
import socket
import ssl
import struct
from functools import partial

import pytest

from client.certificates import Authority
from klamm.net import NetConfig, NetServer, tls_transport
from klamm.net import tls_channel as tls_channel_module
from klamm.net.tls_channel import TlsChannel
from klamm.net.tls_transport import PIECE_BYTES, BufferedTls, SocketTls

from .conftest import Recorder, frame_of


class Region:
    def __init__(self, file, position: int, length: int) -> None:
        self._file = file
        self.position = position
        self.length = length

    def fileno(self) -> int:
        return self._file.fileno()


class Net:
    """A server with one TLS listener, and TLS clients on the same loop."""

    def __init__(self, folder, *, version=ssl.TLSVersion.TLSv1_3, handshake_seconds: float = 20.0, **config) -> None:
        authority = Authority(folder)
        files = authority.issue("broker", "127.0.0.1")
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(files.certificate, files.key)
        self.client_context = ssl.create_default_context(cafile=authority.path)
        self.client_context.maximum_version = version
        self.handler = Recorder()
        self.refusal: Exception | None = None
        self.server = NetServer(asyncio.get_running_loop(), NetConfig(**config))
        self.port = self.server.bind("TLS", "127.0.0.1", 0)[1]
        opener = partial(
            TlsChannel, tls=self.context, handshake_seconds=handshake_seconds, on_handshake=self.on_handshake
        )
        self.server.start(self.handler, {"TLS": None}, {"TLS": opener})
        self._writers: list[asyncio.StreamWriter] = []

    def on_handshake(self, channel) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def connect(self, *, receive_buffer: int = 0):
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(
            sock=sock, ssl=self.client_context, server_hostname="127.0.0.1", limit=1 << 16
        )
        self._writers.append(writer)
        return reader, writer

    async def until(self, condition) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - state of the server, not an event
                await asyncio.sleep(0)

    def stop(self) -> None:
        self.server.stop()
        for writer in self._writers:
            # The loop of the test is closed by now.
            with contextlib.suppress(RuntimeError):
                writer.transport.abort()


@pytest.fixture(params=[BufferedTls, SocketTls])
def transport(request, monkeypatch):
    monkeypatch.setattr(tls_channel_module, "open_transport", request.param)
    return request.param


@pytest.fixture
def serve(tmp_path, transport):
    made: list[Net] = []

    def make(**config) -> Net:
        made.append(Net(tmp_path, **config))
        return made[-1]

    yield make
    for net in made:
        net.stop()


async def receive_frame(reader) -> bytes:
    async with asyncio.timeout(20):
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)


@pytest.mark.asyncio
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_frames_are_answered_in_order(serve, version):
    net = serve(version=version)
    reader, writer = await net.connect()
    bodies = [b"frame %06d" % number for number in range(3000)]
    writer.write(b"".join(map(frame_of, bodies)))
    assert [await receive_frame(reader) for _ in bodies] == bodies
    assert writer.get_extra_info("ssl_object").version() == {771: "TLSv1.2", 772: "TLSv1.3"}[version]


@pytest.mark.asyncio
@pytest.mark.parametrize("buffer", [0, 8192])
async def test_large_frames_come_whole_both_ways(serve, buffer):
    net = serve(**({"receive_buffer_bytes": buffer, "send_buffer_bytes": buffer} if buffer else {}))
    reader, writer = await net.connect(receive_buffer=buffer)
    body = random.Random(5).randbytes(3_000_000)
    writer.write(frame_of(b"small-one") + frame_of(body) + frame_of(b"small-two"))
    assert [await receive_frame(reader) for _ in range(3)] == [b"small-one", body, b"small-two"]


@pytest.mark.asyncio
async def test_frames_that_fill_the_buffer_are_not_left_in_openssl(serve):
    net = serve()
    reader, writer = await net.connect()
    # Sizes around the buffer and the record: some reads end with decrypted bytes inside OpenSSL, and no more come.
    for size in (16_380, 16_384, 32_764, 32_768, 40_000, 65_536, 131_072):
        bodies = [bytes([number]) * size for number in range(5)]
        writer.write(b"".join(map(frame_of, bodies)))
        assert [await receive_frame(reader) for _ in bodies] == bodies


@pytest.mark.asyncio
@pytest.mark.parametrize("buffer", [0, 8192])
async def test_regions_of_files_are_encrypted_in_pieces(serve, tmp_path, buffer):
    net = serve(**({"send_buffer_bytes": buffer} if buffer else {}))
    data = random.Random(7).randbytes(5 * PIECE_BYTES + 1234)
    path = tmp_path / "segment"
    path.write_bytes(data)
    with path.open("rb") as file:

        def answer(channel, frame) -> None:
            length = len(data) - 100
            channel.reply_parts([struct.pack(">i", length + 8), b"head", Region(file, 50, length), b"tail"])

        net.handler.answer = answer
        reader, writer = await net.connect(receive_buffer=buffer)
        writer.write(frame_of(b"fetch one") + frame_of(b"fetch two"))
        for _ in range(2):
            assert await receive_frame(reader) == b"head" + data[50:-50] + b"tail"


@pytest.mark.asyncio
async def test_a_file_that_ends_early_closes_the_connection(serve, tmp_path):
    net = serve()
    path = tmp_path / "segment"
    path.write_bytes(b"short")
    with path.open("rb") as file:
        net.handler.answer = lambda channel, frame: channel.reply_parts([Region(file, 0, 1000)])
        reader, writer = await net.connect()
        writer.write(frame_of(b"fetch one"))
        assert await reader.read() == b"short"


@pytest.mark.asyncio
async def test_a_kernel_that_encrypts_gets_files_by_sendfile(serve, transport, tmp_path, monkeypatch):
    """Where it does not, as here, the fake sends the bytes through OpenSSL itself."""
    net = serve()
    monkeypatch.setattr(transport, "kernel_encrypts", True)
    calls = []

    def sendfile(out: int, file: int, position: int, count: int) -> int:
        calls.append((position, count))
        [channel] = net.handler.channels
        return channel._tls.send(os.pread(file, min(count, 1000), position))

    net.server.sendfile = sendfile
    path = tmp_path / "segment"
    path.write_bytes(bytes(range(250)) * 10)
    with path.open("rb") as file:
        net.handler.answer = lambda channel, frame: channel.reply_parts(
            [struct.pack(">i", 2500), Region(file, 0, 2500)]
        )
        reader, writer = await net.connect()
        writer.write(frame_of(b"fetch one"))
        assert await receive_frame(reader) == bytes(range(250)) * 10
    assert calls == [(0, 2500), (1000, 1500), (2000, 500)]


@pytest.mark.parametrize(
    ("listed", "expected"), [("tls mptcp\n", SocketTls), ("mptcp\n", BufferedTls), (None, BufferedTls)]
)
def test_a_kernel_with_tls_is_left_the_socket(tmp_path, monkeypatch, listed, expected):
    path = tmp_path / "tcp_available_ulp"
    if listed is not None:
        path.write_text(listed)
    monkeypatch.setattr(tls_transport, "_PROTOCOLS_OF_TCP", path)
    tls_transport.kernel_has_tls.cache_clear()
    near, far = socket.socketpair()
    with near, far:
        transport = tls_transport.open_transport(near, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        assert type(transport) is expected
        assert not transport.kernel_encrypts  # before the handshake
        transport.sock.close()
    tls_transport.kernel_has_tls.cache_clear()


@pytest.mark.asyncio
async def test_records_of_a_few_bytes_come_whole(serve):
    """librdkafka makes a record of each message and of each message's head."""
    net = serve()
    client = net.client_context.wrap_bio(incoming := ssl.MemoryBIO(), outgoing := ssl.MemoryBIO())
    reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
    while True:
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
            break
        writer.write(outgoing.read())
        incoming.write(await reader.read(65536))
    body = random.Random(9).randbytes(1_500_000)
    stream = memoryview(frame_of(body))
    position = 0
    while position < len(stream):
        for size in (1000, 10):
            client.write(stream[position : position + size])
            position += min(size, len(stream) - position)
            if position == len(stream):
                break
    writer.write(outgoing.read())
    await net.until(lambda: net.handler.frames)
    assert net.handler.frames == [body]
    writer.transport.abort()


@pytest.mark.asyncio
async def test_the_end_behind_the_last_frame_is_seen(serve):
    net = serve()
    _reader, writer = await net.connect()
    writer.write(frame_of(b"the last one"))
    writer.close()  # TLS's own end in the same segment
    await net.until(lambda: net.handler.closed_channels)
    assert net.handler.frames == [b"the last one"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "data", [b"\0\0\0\x08" + bytes(8), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00" + bytes(600)]
)
async def test_what_is_no_handshake_ends_its_connection_alone(serve, data):
    net = serve()
    reader, writer = await net.connect()
    plain_reader, plain_writer = await asyncio.open_connection("127.0.0.1", net.port)
    plain_writer.write(data)
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(20):
            answer = await plain_reader.read()
    assert len(answer) < 32  # at most an alert
    plain_writer.close()
    writer.write(frame_of(b"still here"))
    assert await receive_frame(reader) == b"still here"


@pytest.mark.asyncio
async def test_a_handshake_has_a_deadline(serve):
    net = serve(handshake_seconds=0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", net.port)
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    writer.close()
    assert net.server.connection_count == 0


@pytest.mark.asyncio
async def test_a_refused_certificate_closes_the_connection(serve):
    net = serve()
    net.refusal = ValueError("no rule matches")
    reader, writer = await net.connect()
    writer.write(frame_of(b"first one"))
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    assert net.handler.frames == []


@pytest.mark.asyncio
async def test_the_end_is_announced(serve):
    net = serve()
    reader, writer = await net.connect()
    writer.write(frame_of(b"hello you"))
    assert await receive_frame(reader) == b"hello you"
    await net.server.leave(5)
    # Without TLS's own end asyncio would raise here.
    assert await reader.read() == b""


@pytest.mark.asyncio
async def test_a_peer_that_leaves_is_forgotten(serve):
    net = serve()
    _, writer = await net.connect()
    writer.write(frame_of(b"hello you"))
    await net.until(lambda: net.handler.frames)
    writer.close()
    await net.until(lambda: net.server.connection_count == 0)
    assert len(net.handler.closed_channels) == 1


@pytest.mark.asyncio
async def test_a_slow_reader_is_not_read(serve):
    net = serve(send_buffer_bytes=8192)
    net.handler.answer = lambda channel, frame: channel.reply(frame_of(bytes(100_000)))
    reader, writer = await net.connect(receive_buffer=8192)
    for _ in range(200):
        writer.write(frame_of(b"a request"))
    await net.until(lambda: net.handler.channels and not net.handler.channels[0]._reading)
    handled = len(net.handler.frames)
    assert handled <= 200
    for _ in range(200):
        assert len(await receive_frame(reader)) == 100_000
