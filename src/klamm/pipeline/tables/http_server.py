"""Runs the HTTP application of tables in this process until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from klamm.http.binding import bind
from klamm.model.errors import ConfigError
from klamm.pipeline.tables.live_tables import LiveTables

if TYPE_CHECKING:
    from klamm.http.server import ServedApp

_CLOSE_S: Final = 2
"""How long open push queries may delay the end."""


class _OpenTables:
    """The service behind the application: tables that the caller opens and closes."""

    async def start(self) -> None:
        """Begin with tables that are followed already."""

    async def stop(self) -> None:
        """Leave the tables as they are."""


def make_tables(tables: LiveTables, listening: socket.socket, hosts: Collection[str] = ()) -> ServedApp:
    """Return the application of tables; `hosts` are names of a proxy in front of it."""
    try:
        from klamm.http.server import ServedApp  # noqa: PLC0415 - an extra
        from klamm.pipeline.tables.http import TableApp  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'klamm[http]'") from None
    app = TableApp(tables)
    app.hosts = frozenset(host.lower() for host in hosts)
    return ServedApp(app, _OpenTables(), listening, close_s=_CLOSE_S)


def serve_tables(
    tables: LiveTables, host: str, port: int, say: Callable[[str], None], hosts: Collection[str] = ()
) -> None:
    """Answer requests until SIGINT or SIGTERM; ConfigError when the address cannot be listened on."""
    with contextlib.closing(bind(host, port)) as listening:
        served = make_tables(tables, listening, hosts)
        from klamm.http.server import serve_until_signal  # noqa: PLC0415 - an extra, which is there

        address = listening.getsockname()
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        line = f"{len(tables.names)} tables are ready on http://{shown}:{address[1]}: {', '.join(tables.names)}"
        asyncio.run(serve_until_signal([served], functools.partial(say, line)))
