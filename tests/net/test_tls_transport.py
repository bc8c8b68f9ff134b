"""How much a peer may send in TLS records that hold no data."""

import contextlib
import select
import socket
import ssl
import threading
from functools import partial

import pytest

from client.certificates import Authority
from harness.tls_floods import HostileClient
from klamm.net import tls_transport
from klamm.net.tls_transport import (
    RECEIVED_BYTES_PER_TURN,
    WARY_BYTES_PER_TURN,
    WASTED_BYTES_MAX,
    BufferedTls,
    SocketTls,
    open_transport,
)

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


class Decrypter:
    """Returns a fixed share of what came as data, as OpenSSL does of records with and without it."""

    def __init__(self, transport: BufferedTls, share: float) -> None:
        self._incoming = transport._incoming
        self._share = share
        self._data = 0

    def read(self, size: int, space: memoryview) -> int:
        self._data += int(len(self._incoming.read()) * self._share)
        if not self._data:
            raise ssl.SSLWantReadError
        count = min(size, self._data)
        self._data -= count
        return count

    def pending(self) -> int:
        return self._data


@pytest.fixture
def connect():
    sockets = []

    def open_transport(share: float) -> tuple[BufferedTls, socket.socket]:
        near, far = socket.socketpair()
        sockets.extend((near, far))
        for sock in (near, far):
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        transport = BufferedTls(near, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        transport._tls = Decrypter(transport, share)
        return transport, far

    yield open_transport
    for sock in sockets:
        sock.close()


def read_turns(transport: BufferedTls, far: socket.socket, turns: int) -> list[int]:
    """The encrypted bytes that each turn takes of a peer that always has more."""
    space, taken = memoryview(bytearray(1 << 20)), []
    counted = transport._receive

    def receive(size_max: int) -> int:
        size = counted(size_max)
        taken[-1] += size
        return size

    transport._receive = receive
    for _ in range(turns):
        far.send(bytes(300_000))
        taken.append(0)
        with contextlib.suppress(ssl.SSLWantReadError):
            transport.read(space)
    return taken


def test_a_peer_that_sends_no_data_is_refused(connect):
    transport, far = connect(0.0)
    with pytest.raises(OSError, match="records without data"):
        read_turns(transport, far, 10)
    assert transport._share.wasted <= WASTED_BYTES_MAX + WARY_BYTES_PER_TURN


def test_a_peer_that_sends_little_data_is_read_little_at_a_time(connect):
    taken = read_turns(*connect(0.2), 3)
    assert taken == [WARY_BYTES_PER_TURN] * 3


def test_a_peer_that_sends_data_is_read_much_at_a_time(connect):
    taken = read_turns(*connect(0.95), 3)
    assert taken == [WARY_BYTES_PER_TURN, RECEIVED_BYTES_PER_TURN, RECEIVED_BYTES_PER_TURN]


# With OpenSSL itself


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls(authority):
    files = authority.issue("broker", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


@pytest.fixture
def sockets():
    """Two ends of a TCP connection; the kernel ends others in other ways."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        far = socket.create_connection(listening.getsockname())
        near, _ = listening.accept()
    far.settimeout(30)
    near.setblocking(False)
    with near, far:
        yield near, far


class ReadMeter:
    """The encrypted bytes of each read."""

    def __init__(self, transport: SocketTls | BufferedTls, monkeypatch) -> None:
        self.taken: list[int] = []
        owner, name = (transport, "_receive") if isinstance(transport, BufferedTls) else (transport._tls, "count")
        self._call = getattr(owner, name)
        monkeypatch.setattr(owner, name, self._count, raising=False)
        self._read = transport.read

    def _count(self, size: int) -> int | None:
        result = self._call(size)
        self.taken[-1] += size if result is None else result
        return result

    def read(self) -> int:
        self.taken.append(0)
        return self._read(memoryview(bytearray(1 << 16)))


def repeat(step, sock: socket.socket):
    """The first result of a call that waits for the peer."""
    while True:
        try:
            return step()
        except ssl.SSLWantReadError:
            assert select.select([sock], [], [], 30)[0]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transport_class", [SocketTls, BufferedTls])
def test_a_flood_of_records_without_data_ends_the_connection(
    transport_class, version, sockets, authority, tls, tmp_path, monkeypatch
):
    near, far = sockets
    transport = transport_class(near, tls)
    client = HostileClient(far, authority.path, tmp_path, version)
    connecting = threading.Thread(target=client.connect)
    connecting.start()
    repeat(transport.do_handshake, transport.sock)
    connecting.join(30)
    flood = client.make_flood(4000)

    def send() -> None:
        with contextlib.suppress(OSError):  # reset, once the other side has had enough
            far.sendall(flood)

    sending = threading.Thread(target=send)
    sending.start()
    meter = ReadMeter(transport, monkeypatch)
    with transport.sock, pytest.raises(OSError, match="records without data"):
        repeat(meter.read, transport.sock)
    assert max(meter.taken) < WARY_BYTES_PER_TURN + 1000
    sending.join(30)
    assert not sending.is_alive()


@pytest.mark.parametrize("version", VERSIONS)
def test_records_that_come_in_parts_are_data(version, sockets, authority, tls):
    """The socket's transport counts a record when its header comes, and its data when the rest has come."""
    near, far = sockets
    transport = SocketTls(near, tls)
    context = ssl.create_default_context(cafile=authority.path)
    context.maximum_version = version
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    steps = [client.do_handshake, transport.do_handshake]
    while steps:
        for step in list(steps):
            with contextlib.suppress(ssl.SSLWantReadError):
                step()
                steps.remove(step)
            far.sendall(outgoing.read())
            if select.select([far], [], [], 0.01)[0]:
                incoming.write(far.recv(1 << 16))
    space, total = memoryview(bytearray(1 << 20)), 0
    record = bytes(16_000)
    for _ in range(2 * WASTED_BYTES_MAX // len(record)):
        client.write(record)
        data = outgoing.read()
        far.sendall(data[:100])
        assert select.select([transport.sock], [], [], 30)[0]
        with contextlib.suppress(ssl.SSLWantReadError):
            total += transport.read(space)
        far.sendall(data[100:])
        total += repeat(partial(transport.read, space), transport.sock)
    transport.sock.close()
    assert total == 2 * WASTED_BYTES_MAX // len(record) * len(record)


def test_without_a_report_of_records_openssl_does_not_get_the_socket(sockets, tls, monkeypatch):
    monkeypatch.setattr(tls_transport, "kernel_has_tls", lambda: True)
    monkeypatch.setattr(tls_transport, "can_watch_records", lambda: False)
    assert isinstance(open_transport(sockets[0], tls), BufferedTls)
