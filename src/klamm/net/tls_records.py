"""Counts the TLS records that OpenSSL reads from a socket of its own accord.

One call of OpenSSL reads records until one has data. A peer that sends key updates (TLS 1.3) or handshakes only would
keep the loop in that call for as long as it sends, and OpenSSL has no limit for them.
"""

import contextlib
import socket
import ssl
from typing import Final, cast

_HEADER: Final = 0x100
"""OpenSSL's SSL3_RT_HEADER: the header of a record, before the record is decrypted."""

_HEADER_BYTES: Final = 5
_DRAIN_BYTES: Final = 1 << 16
_DRAINS_MAX: Final = 1024
"""64 MB: more than a receive buffer of the kernel holds."""

# What ssl.SSLContext sets, too, but without its conversion to enums, which takes longer than to decrypt a small record.
_MESSAGE_CALLBACK: Final = getattr(ssl.SSLContext.__base__, "_msg_callback", None)


def can_watch_records() -> bool:
    """Whether this Python reports records; the attribute is for debugging, and not documented."""
    return _MESSAGE_CALLBACK is not None


class WatchedSocket(ssl.SSLSocket):
    """A socket over TLS that ends when one call of OpenSSL has read more than it may."""

    received = 0
    """Encrypted bytes of the records that were begun since `allow`."""
    is_exceeded = False
    """Whether the connection was ended."""
    _allowed = 0

    def allow(self, size: int) -> None:
        """Let the next call read records of so many encrypted bytes."""
        self.received, self._allowed = 0, size

    def count(self, size: int) -> None:
        """Count a record; beyond what is allowed, end the connection below OpenSSL."""
        self.received += size
        if self.received <= self._allowed or self.is_exceeded:
            return
        self.is_exceeded = True
        # OpenSSL goes on until the socket is empty. After a shutdown in both directions the kernel resets the
        # connection when more data come; what it holds already is dropped here.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self, socket.SHUT_RDWR)
            for _ in range(_DRAINS_MAX):
                if not socket.socket.recv(self, _DRAIN_BYTES):
                    break


def wrap_watched(sock: socket.socket, tls: ssl.SSLContext) -> WatchedSocket:
    """Return the server's side of a connection whose records are counted."""
    if tls.sslsocket_class is not WatchedSocket:
        assert _MESSAGE_CALLBACK is not None
        tls.sslsocket_class = WatchedSocket
        _MESSAGE_CALLBACK.__set__(tls, _count_record)
    return cast("WatchedSocket", tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False))


def _count_record(
    sock: object, direction: str, _version: int, content_type: int, _message_type: int, data: bytes
) -> None:
    if content_type == _HEADER and direction == "read" and isinstance(sock, WatchedSocket):
        sock.count(_HEADER_BYTES + int.from_bytes(data[3:5]))
