"""The ASGI application: the page, its JSON, and requests to queries.

GET  /                   the page           GET  /api/status   status, and points of the last hour
GET  /api/dead_letters   the newest 20      POST /api/ACTION   pause, resume or restart, of ?query=NAME or of all
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Route

from klamm.pipeline.sql.core.query_progress import PipelineStatus
from klamm.pipeline.sql.status import ControlAction

with open(os.path.join(os.path.dirname(__file__), "page.html"), encoding="utf-8") as _file:
    PAGE: Final = _file.read()
_PAGE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
    " connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}

SendControl = Callable[[ControlAction, str | None], str]


class PipelineEndpoints:
    """The endpoints of one pipeline."""

    def __init__(
        self,
        name: str,
        token: str,
        *,
        status: Callable[[], PipelineStatus],
        points: Callable[[], Mapping[str, Any]],
        letters: Callable[[], list[dict[str, Any]]],
        send: SendControl,
    ) -> None:
        self._name = name
        self._token = token
        self._status = status
        self._points = points
        self._letters = letters
        self._send = send

    def routes(self) -> list[Route]:
        """Return the routes, for this application or inside of another."""
        return [
            Route("/", self.page),
            Route("/api/status", self.status),
            Route("/api/dead_letters", self.dead_letters),
            Route("/api/{action:str}", self.control, methods=["POST"]),
        ]

    async def page(self, _: Request) -> HTMLResponse:
        """Return the page, with the token that its requests carry."""
        return HTMLResponse(PAGE.replace("{{TOKEN}}", self._token), headers=_PAGE_HEADERS)

    async def status(self, _: Request) -> JSONResponse:
        """Return the status and its history."""
        return JSONResponse({"pipeline": self._name, **self._status(), "history": self._points()})

    async def dead_letters(self, _: Request) -> JSONResponse:
        """Return the newest dead letters; read from the cluster."""
        return JSONResponse(await run_in_threadpool(self._letters))

    async def control(self, request: Request) -> JSONResponse:
        """Send a request to queries; refused without the token, and from pages of another origin."""
        origin = request.headers.get("origin")
        # A browser sends the origin with every POST; other programs need not.
        if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
            return JSONResponse({"error": "the request comes from another origin"}, 403)
        if not hmac.compare_digest(request.headers.get("x-klamm-token", "").encode(), self._token.encode()):
            return JSONResponse({"error": "the token is missing or wrong"}, 403)
        try:
            action = ControlAction(request.path_params["action"])
        except ValueError:
            return JSONResponse({"error": "write pause, resume or restart"}, 404)
        query = request.query_params.get("query")
        if query is not None and query not in (self._status().get("queries") or {}):
            return JSONResponse({"error": f"there is no query {query}"}, 404)
        return JSONResponse({"request": self._send(action, query)}, 202)


def make_app(endpoints: PipelineEndpoints) -> Starlette:
    """Return the application of a pipeline."""
    return Starlette(routes=endpoints.routes())
