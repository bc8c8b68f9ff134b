"""Serves the page of a pipeline from a thread of the process that runs it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from klamm.http.binding import bind
from klamm.model.errors import ConfigError
from klamm.pipeline.metrics import parse_address
from klamm.pipeline.sql.status import Home
from klamm.pipeline.ui.history import StatusHistory

_CLOSE_S: Final = 2


class _HistoryService:
    """Takes points of the status while the page is served."""

    def __init__(self, history: StatusHistory) -> None:
        self._history = history
        self._stack = ExitStack()

    async def start(self) -> None:
        """Begin to take points."""
        self._stack.enter_context(self._history.running())

    async def stop(self) -> None:
        """End."""
        self._stack.close()


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
        from klamm.http.server import ServedApp  # noqa: PLC0415 - an extra
        from klamm.http.thread_server import serve_in_thread  # noqa: PLC0415
        from klamm.pipeline.ui.app import PipelineApp  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'klamm[http]'") from None
    host, port = parse_address(address)
    history = StatusHistory(status)
    # A new token for every run: a page of an earlier one cannot send requests.
    app = PipelineApp(
        name,
        secrets.token_urlsafe(24),
        status=status,
        points=history.points,
        letters=letters,
        send=home.send_request,
    )
    try:
        listening = bind(host, port)
    except ConfigError as error:
        raise ConfigError(f"--ui cannot listen on {host}:{port}: {error}") from None
    served = ServedApp(app, _HistoryService(history), listening, close_s=_CLOSE_S)
    address_of_page = str(listening.getsockname()[0]), listening.getsockname()[1]
    with serve_in_thread(served, "klamm-ui"):
        yield address_of_page
