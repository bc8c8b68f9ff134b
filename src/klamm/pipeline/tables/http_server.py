"""Runs the HTTP application of tables in this process until it is stopped."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Final

from klamm.model.errors import ConfigError
from klamm.pipeline.tables.live_tables import LiveTables

_BACKLOG: Final = 100
_CLOSE_S: Final = 2
"""How long open push queries may delay the end."""


def serve_tables(tables: LiveTables, host: str, port: int, say: Callable[[str], None]) -> None:
    """Answer requests until SIGINT or SIGTERM; OSError when the address cannot be listened on."""
    try:
        import uvicorn  # noqa: PLC0415 - an extra

        from klamm.pipeline.tables.http import make_app  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'klamm[http]'") from None
    with _listen(host, port) as listening:
        address = listening.getsockname()
        config = uvicorn.Config(
            make_app(tables),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_CLOSE_S,
            lifespan="off",
        )
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        say(f"{len(tables.names)} tables are ready on http://{shown}:{address[1]}: {', '.join(tables.names)}")
        # uvicorn raises a signal again after it has closed: Ctrl-C is how this ends.
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


@contextlib.contextmanager
def _listen(host: str, port: int) -> Iterator[socket.socket]:
    # Bound before the server starts, so that a taken port is one sentence and port 0 can be told.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio sets TCP_NODELAY by it; without, every answer waits for a delayed ACK.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        # Requests that come before the server runs wait in the queue instead of being refused.
        listening.listen(_BACKLOG)
        yield listening
