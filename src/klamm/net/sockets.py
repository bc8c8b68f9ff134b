"""What the server side of the network asks the operating system for, behind one seam."""

import os
import socket


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
