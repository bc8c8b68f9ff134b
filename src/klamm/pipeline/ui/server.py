"""Serves the page of a pipeline from a thread of the process that runs it."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.metrics import parse_address
from klamm.pipeline.sql.status import Home
from klamm.pipeline.ui.history import StatusHistory

_CLOSE_S: Final = 2
_BACKLOG: Final = 100


@contextmanager
def serve_ui(
    name: str,
    address: str | int | None,
    status: Callable[[], Mapping[str, Any]],
    home: Home,
    letters: Callable[[], list[dict[str, Any]]],
) -> Iterator[tuple[str, int] | None]:
    """Serve the page while the block runs; without an address nothing listens. Port 0 takes any free port."""
    if address is None:
        yield None
        return
    try:
        import uvicorn  # noqa: PLC0415 - an extra

        from klamm.pipeline.ui.app import PipelineEndpoints, make_app  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'klamm[http]'") from None
    host, port = parse_address(address)
    history = StatusHistory(status)
    # A new token for every run: a page of an earlier one cannot send requests.
    endpoints = PipelineEndpoints(
        name,
        secrets.token_urlsafe(24),
        status=status,
        points=history.points,
        letters=letters,
        send=home.send_request,
    )
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        # Requests that come before the server runs wait in the queue instead of being refused.
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError(f"--ui cannot listen on {host}:{port}: {error.strerror or error}") from None
    config = uvicorn.Config(
        make_app(endpoints),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=_CLOSE_S,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="klamm-ui", daemon=True)
    with history.running():
        thread.start()
        try:
            yield str(listening.getsockname()[0]), listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(2 * _CLOSE_S)
            listening.close()
