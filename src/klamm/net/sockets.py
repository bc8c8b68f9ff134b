"""Calls of the operating system for the server side of the network; the simulation replaces them here."""

import os
import socket
from typing import Any

_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)


class Sockets:
    """The real sockets."""

    sendfile = staticmethod(os.sendfile)

    def read_file(self, source: int, space: memoryview, position: int) -> int:
        """Read bytes of a file that are encrypted before they are sent; 0 at its end."""
        return os.preadv(source, [space], position)

    def listen(self, host: str, port: int, *, backlog: int, receive_buffer_bytes: int = -1) -> socket.socket:
        """A listening socket that does not block; OSError when the address cannot be had."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            # Or a restart fails while connections of the last process are in TIME_WAIT.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Before `listen`: accepted sockets inherit it, and the TCP window scale is fixed by the handshake.
            if receive_buffer_bytes > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            sock.bind((host, port))
            sock.listen(backlog)
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)
        return sock


def set_receive_low_water(sock: Any, size: int) -> None:
    """Make the socket readable once `size` bytes have come, or the connection ends; 1 for any."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    # What has come is acknowledged at once: a peer whose send buffer is full waits for that, and the kernel delays the
    # acknowledgement while the process reads nothing. TCP_QUICKACK is not permanent, so it is set with every change.
    if size > 1 and _QUICKACK is not None:
        sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)


def strip_mapping(ip: str) -> str:
    """Return an IPv4 address as such: a listener on all addresses of IPv6 reports it as ::ffff:192.0.2.1.

    Limits and ACLs name the IPv4 address, and a DENY of it must not be passed by.
    """
    return ip[7:] if ip.startswith("::ffff:") and "." in ip else ip
