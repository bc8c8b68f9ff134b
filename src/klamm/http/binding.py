"""Binds the ports of services; without an HTTP server, which a process that passes its sockets on does not need."""

from __future__ import annotations

import socket
from typing import Final

from klamm.model.errors import ConfigError

BACKLOG: Final = 1024


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; ConfigError when the port is taken or the address is not of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is named. Without it the body of an answer, sent after the head,
    # waits for the client's delayed acknowledgement: 40 ms a request.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno is not None and error.strerror == "Address already in use":
            raise ConfigError(f"port {port} on {host} is taken by another process") from None
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return listening
