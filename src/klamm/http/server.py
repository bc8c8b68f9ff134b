"""Serves applications from a process: starts services, serves until a signal, stops in order.

A port is bound before (`binding`), so that a port in use is reported at once; requests that come before the service has
started wait in the socket's queue. On a signal a server takes no new connections, answers the requests it has, and then
the service is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import uvicorn

from klamm.http.app import HttpApp
from klamm.http.binding import BACKLOG
from klamm.http.connection import HttpConnection
from klamm.model.garbage_collection import freeze_survivors
from klamm.telemetry import get_logger

_log = get_logger("http")

_CONNECTIONS_MAX: Final = 2000
_CLOSE_S: Final = 10
_IDLE_S: Final = 75
_HEAD_S: Final = 30.0
_STALL_S: Final = 60.0


class HttpService(Protocol):
    """What runs behind an application."""

    async def start(self) -> None:
        """Begin; requests may be answered when this returns."""

    async def stop(self) -> None:
        """End; no request is being answered."""


@dataclass(frozen=True, slots=True)
class ServedApp:
    """An application, the service behind it, and where it listens."""

    app: HttpApp
    service: HttpService
    listening: socket.socket
    tls: ssl.SSLContext | None = None
    connections_max: int = _CONNECTIONS_MAX
    close_s: int = _CLOSE_S
    """How long open requests may delay the end."""
    head_s: float = _HEAD_S
    """How long a connection may take to send the head of a request, from its first byte or from the connection on."""
    stall_s: float = _STALL_S
    """How long a client may take nothing of its answer."""


async def serve_until_signal(served: Sequence[ServedApp], on_ready: Callable[[], None]) -> None:
    """Run until SIGINT or SIGTERM; in the main thread only, of a process that does nothing else."""
    freeze_survivors()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, _stop, stopping)
    try:
        await serve(served, on_ready, stopping)
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _stop(stopping: asyncio.Event) -> None:
    _log.info("stopping")
    stopping.set()


async def serve(served: Sequence[ServedApp], on_ready: Callable[[], None], stopping: asyncio.Event) -> None:
    """Run until `stopping` is set; errors of the start, such as an unreachable cluster, are raised.

    Services start in the order given and stop in the opposite one: a later one may be a client of an earlier one,
    so each serves before the next begins.
    """
    waiting = asyncio.create_task(stopping.wait())
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(waiting.cancel)
        servers: list[asyncio.Task[None]] = []
        for entry in served:
            stack.callback(entry.app.close)
            stack.push_async_callback(entry.service.stop)
            starting = asyncio.create_task(_start(entry))
            await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
                return
            starting.result()
            servers.append(await stack.enter_async_context(_serving(entry)))
        on_ready()
        await asyncio.wait((*servers, waiting), return_when=asyncio.FIRST_COMPLETED)


async def _start(entry: ServedApp) -> None:
    await entry.app.start()
    await entry.service.start()


class _Server(uvicorn.Server):  # type: ignore[misc]  # an extra, whose types are not read
    """A server whose signals are handled by the process around it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the handlers as they are."""
        yield


@contextlib.asynccontextmanager
async def _serving(served: ServedApp) -> Any:
    config = uvicorn.Config(
        served.app,
        http=partial(HttpConnection, head_s=served.head_s, stall_s=served.stall_s),
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        # Headers that name another peer are for a proxy in front, which is none of the defaults.
        proxy_headers=False,
        limit_concurrency=served.connections_max,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=served.close_s,
        backlog=BACKLOG,
    )
    config.load()
    config.ssl = served.tls
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[served.listening]), name="klamm http server")
    try:
        yield serving
    finally:
        server.should_exit = True
        await serving
