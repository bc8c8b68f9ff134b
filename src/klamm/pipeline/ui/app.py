"""The application of a pipeline: the page, its JSON, and requests to queries.

GET  /                   the page           GET  /api/status   status, and points of the last hour
GET  /api/dead_letters   the newest 20      POST /api/ACTION   pause, resume or restart, of ?query=NAME or of all
"""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from klamm.http.messages import HttpRequest, HttpResponse, json_response
from klamm.http.refusals import HttpRefusal
from klamm.pipeline.local_app import LocalApp
from klamm.pipeline.sql.core.query_progress import PipelineStatus
from klamm.pipeline.sql.status import ControlAction

with open(os.path.join(os.path.dirname(__file__), "page.html"), encoding="utf-8") as _file:
    PAGE: Final = _file.read()
_CONTENT_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
    " connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_PAGE_HEADERS: Final = (
    ("content-security-policy", _CONTENT_POLICY),
    ("cache-control", "no-store"),
    ("x-content-type-options", "nosniff"),
)

SendControl = Callable[[ControlAction, str | None], str]


class PipelineApp(LocalApp):
    """The application of one pipeline; pages of other sites and foreign host names are refused as everywhere."""

    host_hint: ClassVar[str] = "use localhost or 127.0.0.1"

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
        super().__init__("pipeline")
        self._pipeline = name
        self._token = token
        self._status = status
        self._points = points
        self._letters = letters
        self._send = send

        self.router.add("GET", "/", self.get_page)
        self.router.add("GET", "/api/status", self.get_status)
        self.router.add("GET", "/api/dead_letters", self.list_dead_letters)
        self.router.add("POST", "/api/{action}", self.control)

    async def get_page(self, _: HttpRequest) -> HttpResponse:
        """Return the page, with the token that its requests carry."""
        page = PAGE.replace("{{TOKEN}}", self._token)
        return HttpResponse(200, page.encode(), "text/html; charset=utf-8", _PAGE_HEADERS)

    async def get_status(self, _: HttpRequest) -> HttpResponse:
        """Return the status and its history."""
        return json_response({"pipeline": self._pipeline, **self._status(), "history": self._points()})

    async def list_dead_letters(self, _: HttpRequest) -> HttpResponse:
        """Return the newest dead letters; read from the cluster."""
        return json_response(await asyncio.to_thread(self._letters))

    async def control(self, request: HttpRequest) -> HttpResponse:
        """Send a request to queries; refused without the token."""
        if not hmac.compare_digest(request.headers.get("x-klamm-token", "").encode(), self._token.encode()):
            raise HttpRefusal(403, "the token is missing or wrong")
        try:
            action = ControlAction(request.values["action"])
        except ValueError:
            raise HttpRefusal(404, "write pause, resume or restart") from None
        query = request.text("query") if "query" in request.query else None
        if query is not None and query not in (self._status().get("queries") or {}):
            raise HttpRefusal(404, f"there is no query {query}")
        return json_response({"request": self._send(action, query)}, 202)
