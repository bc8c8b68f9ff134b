"""What the server side of the network asks the operating system for, behind one seam."""

import os
import socket
from typing import Any

_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)


class Sockets:
    """The real sockets."""

    sendfile = staticmethod(os.sendfile)

    def listen(self, host: str, port: int, *, backlog: int, receive_buffer_bytes: int = -1) -> socket.socket:
        """A listening socket that does not block; OSError when the address cannot be had."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if receive_buffer_bytes > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            sock.bind((host, port))
            sock.listen(backlog)
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)
        return sock


def gather(sock: Any, size: int) -> None:
    """Have the kernel tell of new bytes when there are `size` of them, or the connection ends; 1 for any.

    What has come is acknowledged at once: a peer whose send buffer is full waits for that, and the kernel is in no
    hurry when it has little to acknowledge.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    if size > 1 and _QUICKACK is not None:
        sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
