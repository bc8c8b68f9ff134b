"""What encrypts a connection: OpenSSL over buffers of its own, or over the socket where the kernel encrypts.

Both have the calls of an `SSLSocket` that a channel needs, and its rule: a write that is not complete is repeated with
the same bytes.
"""

import contextlib
import socket
import ssl
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, Protocol

from klamm.net.tls_records import can_watch_records, wrap_watched

CHUNK_BYTES: Final = 64 * 1024
"""Of encrypted bytes, received at a time."""

RECEIVED_BYTES_PER_TURN: Final = 256 * 1024
"""Encrypted bytes per read of a peer whose records are mostly data."""

WARY_BYTES_PER_TURN: Final = 20 * 1024
"""Encrypted bytes per read of others: a key update has 27 bytes, and costs ten microseconds. Larger than a record."""

DATA_SHARE: Final = 8
WASTED_BYTES_MAX: Final = 64 * 1024
"""Encrypted bytes beyond DATA_SHARE times the data in them, before a peer is taken for one that only makes work."""

WITHOUT_DATA: Final = "too many TLS records without data"

PIECE_BYTES: Final = 128 * 1024
"""What is encrypted at a time: beyond 64 KiB larger pieces encrypt no faster."""

UNSENT_BYTES_MAX: Final = 2 * PIECE_BYTES
"""A piece, and the alerts and key updates behind it that the peer does not read."""

_SOL_TLS: Final = 282
_TLS_TX: Final = 1
_TLS_INFO_BYTES: Final = 56
"""Of Linux' struct tls12_crypto_info_aes_gcm_256; a smaller buffer than the kernel's struct is refused."""

_PROTOCOLS_OF_TCP: Final = Path("/proc/sys/net/ipv4/tcp_available_ulp")


class TlsTransport(Protocol):
    """The encryption of one connection."""

    sock: socket.socket
    """The socket that the channel watches, shuts down and closes."""

    def do_handshake(self) -> None:
        """Continue the handshake; raise SSLWantReadError or SSLWantWriteError while it waits for the peer."""

    def read(self, space: memoryview) -> int:
        """Decrypt into `space`; 0 if the peer has ended. Raise SSLWantReadError if nothing has come."""

    def has_pending(self) -> bool:
        """Whether a read would return bytes for which the socket is not readable."""

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Encrypt and send. After SSLWantWriteError the call is repeated with the same bytes at the front."""

    def getpeercert(self) -> bytes | None:
        """Return the certificate of the peer in DER form; None if it sent none."""

    def notify_close(self) -> None:
        """Send TLS's own end, without which the peer takes the end of the connection for an attack."""

    @property
    def kernel_encrypts(self) -> bool:
        """Whether the kernel encrypts what is written to the descriptor, so that sendfile may be used."""


@cache
def kernel_has_tls() -> bool:
    """Whether the module `tls` of Linux was loaded at the first connection."""
    try:
        return "tls" in _PROTOCOLS_OF_TCP.read_text().split()
    except OSError:
        return False


def open_transport(sock: socket.socket, tls: ssl.SSLContext) -> TlsTransport:
    """Return the server's side of a connection; the handshake has not begun."""
    return SocketTls(sock, tls) if kernel_has_tls() and can_watch_records() else BufferedTls(sock, tls)


class DataShare:
    """How much of what a peer sends is data: records without any make work, and no progress."""

    __slots__ = ("turn_bytes", "wasted")

    def __init__(self) -> None:
        self.turn_bytes = WARY_BYTES_PER_TURN
        """The encrypted bytes that the next read may take."""
        self.wasted = 0

    def judge(self, received: int, data: int) -> None:
        """Refuse a peer whose records have no data; read less at a time of one whose records have little."""
        self.wasted = max(self.wasted + received - DATA_SHARE * data, 0)
        if self.wasted > WASTED_BYTES_MAX:
            raise OSError(0, WITHOUT_DATA)
        self.turn_bytes = RECEIVED_BYTES_PER_TURN if 2 * data >= received else WARY_BYTES_PER_TURN


class SocketTls:
    """OpenSSL reads and writes the socket: two system calls for each record, but the kernel can encrypt."""

    def __init__(self, sock: socket.socket, tls: ssl.SSLContext) -> None:
        self._tls = wrap_watched(sock, tls)
        self.sock: socket.socket = self._tls
        self._share = DataShare()

    def do_handshake(self) -> None:
        """Continue the handshake; raise SSLWantReadError or SSLWantWriteError while it waits for the peer."""
        self._tls.allow(WASTED_BYTES_MAX)
        try:
            self._tls.do_handshake()
        except OSError:
            if self._tls.is_exceeded:
                raise OSError(0, WITHOUT_DATA) from None
            raise

    def read(self, space: memoryview) -> int:
        """Decrypt into `space`; 0 if the peer has ended. Raise SSLWantReadError if nothing has come."""
        count, received, size = 0, 0, 1
        # A call returns one record of 16 KiB at most: several of them make a turn worth its cost. After the end the
        # socket stays readable, and the next read returns the end again.
        while size > 0 and count < len(space) and received < self._share.turn_bytes:
            self._tls.allow(WARY_BYTES_PER_TURN)
            try:
                size = self._tls.recv_into(space[count:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                size = -1
            except OSError:
                if not self._tls.is_exceeded:
                    raise
            received += self._tls.received
            count += max(size, 0)
            if self._tls.is_exceeded:
                raise OSError(0, WITHOUT_DATA)
        # Also without a new record: the header of a large one may have come with an earlier read.
        self._share.judge(received, count)
        if size < 0 and not count:
            raise ssl.SSLWantReadError
        return count

    def has_pending(self) -> bool:
        """Whether OpenSSL holds decrypted bytes, for which the socket is not readable."""
        return self._tls.pending() > 0

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Encrypt and send. After SSLWantWriteError the call is repeated with the same bytes at the front."""
        return self._tls.send(data)

    def getpeercert(self) -> bytes | None:
        """Return the certificate of the peer in DER form; None if it sent none."""
        return self._tls.getpeercert(binary_form=True)

    def notify_close(self) -> None:
        """Send TLS's own end; the answer is not awaited."""
        self._tls.unwrap()

    @property
    def kernel_encrypts(self) -> bool:
        """Whether OpenSSL has handed the keys to the kernel."""
        try:
            return bool(self._tls.getsockopt(_SOL_TLS, _TLS_TX, _TLS_INFO_BYTES))
        except OSError:
            return False


class BufferedTls:
    """OpenSSL over memory: many records per system call.

    librdkafka makes two records of each message it produces, and OpenSSL over a socket makes two calls to read a
    record; over memory they cost half the CPU.
    """

    kernel_encrypts: Final = False

    def __init__(self, sock: socket.socket, tls: ssl.SSLContext) -> None:
        self.sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._ended = False
        self._has_pending = False
        self._share = DataShare()
        self._unsent = memoryview(b"")
        # Bytes of an incomplete `send`: their encrypted form is in `_unsent`.
        self._encrypted = 0

    def do_handshake(self) -> None:
        """Continue the handshake; raise SSLWantReadError or SSLWantWriteError while it waits for the peer."""
        is_complete = False
        # Before OpenSSL is called, which has nothing to do without input. One call, and little of it, as of a peer
        # without data: a handshake may be cut into records of one byte.
        self._receive(WARY_BYTES_PER_TURN)
        try:
            # At the end of the input OpenSSL raises the error of an incomplete handshake.
            self._tls.do_handshake()
            is_complete = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self._send_control()  # the alert that says why
            raise
        if not self._send_control():
            raise ssl.SSLWantWriteError
        if not is_complete:
            raise ssl.SSLWantReadError
        # The first frames may have come with the end of the handshake.
        self._has_pending = self._incoming.pending > 0

    def read(self, space: memoryview) -> int:
        """Decrypt into `space`; 0 if the peer has ended. Raise SSLWantReadError if nothing has come."""
        # With a buffer it returns a count; the stubs know the other form only.
        read: Callable[[int, memoryview], int] = self._tls.read  # type: ignore[assignment]
        capacity, count, received = len(space), 0, 0
        needs_input, is_drained = not self._has_pending, False
        self._has_pending = False
        while count < capacity:
            if needs_input:
                size_max = min(self._share.turn_bytes - received, CHUNK_BYTES)
                size = self._receive(size_max)
                received += size
                if not size and not self._ended:
                    break
                # Less than fits: another call would say that there is no more. What comes later makes an event.
                needs_input, is_drained = False, size < size_max
            try:
                size = read(capacity - count, space[count:])
            except ssl.SSLWantReadError:
                if is_drained:
                    break
                needs_input = True
                continue
            except ssl.SSLEOFError:
                size = 0  # without TLS's own end, as many clients do
            if not size:
                self._ended = True
                # The next read returns the end, for which there may be no event.
                self._has_pending = count > 0
                break
            count += size
        else:
            self._has_pending = self._tls.pending() > 0 or self._incoming.pending > 0
        if self._outgoing.pending:
            self._send_control()
        if received:
            self._share.judge(received, count)
        if not count and not self._ended:
            raise ssl.SSLWantReadError
        return count

    def _receive(self, size_max: int) -> int:
        """Take encrypted bytes from the socket; 0 if there are none, or no more will come."""
        if self._ended or size_max <= 0:
            return 0
        try:
            data = self.sock.recv(size_max)
        except (BlockingIOError, InterruptedError):
            return 0
        if not data:
            self._ended = True
            self._incoming.write_eof()
        return self._incoming.write(data) if data else 0

    def has_pending(self) -> bool:
        """Whether the last read left bytes, or the end, behind."""
        return self._has_pending

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Encrypt and send a piece. After SSLWantWriteError the call is repeated with the same bytes at the front."""
        if self._unsent:
            if not self._flush():
                raise ssl.SSLWantWriteError
            if self._encrypted:
                size, self._encrypted = self._encrypted, 0
                return size
        size = self._tls.write(data if len(data) <= PIECE_BYTES else memoryview(data)[:PIECE_BYTES])
        self._unsent = memoryview(self._outgoing.read())
        if not self._flush():
            self._encrypted = size
            raise ssl.SSLWantWriteError
        return size

    def _send_control(self) -> bool:
        """Send what OpenSSL writes of itself (handshake, tickets, alerts, key updates); True once all is sent."""
        if self._outgoing.pending:
            if len(self._unsent) + self._outgoing.pending > UNSENT_BYTES_MAX:
                raise OSError(0, "the peer does not read alerts and key updates")
            self._unsent = memoryview(bytes(self._unsent) + self._outgoing.read())
        return self._flush()

    def _flush(self) -> bool:
        """Send what is encrypted; True once nothing is left."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self.sock.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return False
        return True

    def getpeercert(self) -> bytes | None:
        """Return the certificate of the peer in DER form; None if it sent none."""
        return self._tls.getpeercert(binary_form=True)

    def notify_close(self) -> None:
        """Send TLS's own end; neither its answer nor room in the socket is awaited."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        self._send_control()
