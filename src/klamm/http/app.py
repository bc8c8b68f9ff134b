"""The ASGI callable of a service: login, bodies within limits, one route, errors as JSON, access log, counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Protocol

from klamm.http.media_types import check_content_type, choose_content_type
from klamm.http.messages import (
    JSON,
    Answered,
    BodyStream,
    HttpRequest,
    HttpResponse,
    Receive,
    Scope,
    Send,
    json_response,
    parse_query,
    send_response,
    too_long,
)
from klamm.http.metrics import RequestMetrics
from klamm.http.origins import check_origin
from klamm.http.refusals import HttpRefusal
from klamm.http.router import HttpRoute, PathRouter, split_path
from klamm.security.core.principal import ANONYMOUS, Principal
from klamm.telemetry import Level, Logger, get_logger

CERTIFICATE: Final = "klamm.client_certificate"
"""In the scope of a request: the certificate of the client, in DER, which the listener has verified. ASGI's extension
for TLS has it as PEM, which would be converted twice, and uvicorn does not fill it."""
BODY_BYTES_MAX: Final = 8 << 20
BODY_IDLE_S: Final = 30.0
"""Without a chunk of a body for so long, the request is given up."""
REQUEST_S: Final = 90.0
_UNMATCHED: Final = "unmatched"
_DISCARDED_MAX: Final = 1 << 16
"""Bytes of a refused body that are read, so that the connection can be used again."""


class HttpLogin(Protocol):
    """Checks the credentials of requests."""

    async def start(self) -> None:
        """Begin."""

    def close(self) -> None:
        """End."""

    async def authenticate(self, headers: Mapping[str, str], peer: str, certificate: bytes | None, /) -> Principal:
        """Return the principal; HttpRefusal 401 without valid credentials.

        `certificate` is that of the client, in DER, which the listener has verified.
        """


class HttpApp:
    """An ASGI application; a service adds its routes, and overrides what its interface does in another way.

    Errors are answered as `{"error_code": ..., "message": ...}`. The life of the service is no matter of the
    application: it is started before and stopped after the server.
    """

    taken: ClassVar[tuple[str, ...]] = (JSON,)
    """Media types of bodies; () takes all."""
    given: ClassVar[tuple[str, ...]] = (JSON,)
    """Media types of answers, the default first; () does not negotiate."""
    request_class: ClassVar[type[HttpRequest]] = HttpRequest
    checks_origin: ClassVar[bool] = True
    """Whether requests of other sites' pages are refused; an application with pages of its own does it by itself."""
    host_hint: ClassVar[str] = "--server-name adds it"
    """What to do about a refused host."""
    logs_requests: ClassVar[bool] = True
    """False logs them at the level DEBUG."""
    timeout_code: ClassVar[int] = 503
    failure_code: ClassVar[int] = 500

    def __init__(self, name: str, *, login: HttpLogin | None = None, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self.name = name
        """Of the service, in log lines and metrics: klamm_NAME_http_requests_total."""
        self.login = login
        self.body_bytes_max = body_bytes_max
        self.hosts: frozenset[str] = frozenset()
        """Names in the URL of the service, beside those of this machine: that of a proxy in front of it."""
        self.metrics = RequestMetrics(f"klamm_{name}")
        self.router = PathRouter()
        self._log: Logger = get_logger(name)

    # What a service may override

    def route(self, method: str, raw_path: str) -> tuple[HttpRoute, dict[str, str]]:
        """Return the route of a path and the values in it."""
        return self.router.match(method, split_path(raw_path))

    def choose_content_type(self, headers: Mapping[str, str], route: HttpRoute) -> str:
        """Return the media type of answers that have none of their own; 406 when the client takes none."""
        return self.given[0] if route.quiet else choose_content_type(headers, self.given)

    def check_content_type(self, headers: Mapping[str, str], route: HttpRoute) -> None:  # noqa: ARG002 - for overrides
        """Refuse a body by its media type, with 415."""
        if self.taken:
            check_content_type(headers, self.taken)

    async def authorize(self, request: HttpRequest, route: HttpRoute) -> None:
        """Refuse what the principal of the request may not do, with 403."""

    def explain(self, error: Exception) -> HttpRefusal | None:  # noqa: ARG002 - for overrides
        """Return the refusal that an error of the service means; None for an error that is a bug."""
        return None

    def print_refusal(self, refusal: HttpRefusal) -> HttpResponse:
        """Return the answer for a refusal."""
        response = json_response({"error_code": refusal.error_code, "message": refusal.message}, refusal.status)
        response.headers = refusal.headers
        return response

    # Life

    async def start(self) -> None:
        """Begin to check logins."""
        if self.login is not None:
            await self.login.start()

    def close(self) -> None:
        """End."""
        if self.login is not None:
            self.login.close()

    # ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a websocket is refused with 403, and any other protocol by an exception, as ASGI says."""
        if scope["type"] != "http":
            await _refuse_scope(scope, receive, send)
            return
        began = time.perf_counter()
        exchange = _Exchange(scope, receive)
        self.metrics.in_flight += 1
        status = 499  # the client's disconnect, as nginx counts it
        try:
            response = await self._respond(exchange)
            if exchange.leaves_body():
                # Otherwise the server would read and discard the rest of it, which need not have an end.
                response.headers = (*response.headers, ("connection", "close"))
            await send_response(response, send, with_body=scope["method"] != "HEAD", body=exchange.body)
            status = response.status
        finally:
            self.metrics.in_flight -= 1
            for callback in exchange.request.when_answered if exchange.request is not None else ():
                callback()
            seconds = time.perf_counter() - began
            self.metrics.count(scope["method"], exchange.pattern, status, seconds)
            if self._log.enabled(Level.INFO):
                self._log_request(exchange, status, seconds)

    def _log_request(self, exchange: _Exchange, status: int, seconds: float) -> None:
        is_quiet = not self.logs_requests or (exchange.route is not None and exchange.route.quiet)
        write_line = self._log.debug if is_quiet else self._log.info
        # Not the query: clients put credentials there by mistake.
        write_line(
            "request",
            method=exchange.scope["method"],
            path=exchange.raw_path,
            status=status,
            ms=round(seconds * 1000, 2),
            peer=exchange.peer,
            principal=exchange.principal,
        )

    async def _respond(self, exchange: _Exchange) -> HttpResponse:
        content_type = self.given[0] if self.given else JSON
        try:
            if self.checks_origin:
                hosts = None if self.login is not None else self.hosts
                check_origin(exchange.scope, exchange.headers, hosts, self.host_hint)
            route, values = self.route(exchange.scope["method"], exchange.raw_path)
            exchange.route = route
            if self.given:
                content_type = self.choose_content_type(exchange.headers, route)
            if self.login is not None and not route.public:
                exchange.principal = await self.login.authenticate(
                    exchange.headers, exchange.peer, exchange.scope.get(CERTIFICATE)
                )
            response = await self._call(exchange, route, values)
        except Answered as answered:
            response = answered.response
        except HttpRefusal as refusal:
            response = self.print_refusal(refusal)
        except TimeoutError:
            response = self.print_refusal(HttpRefusal(self.timeout_code, "The request was not answered in time"))
        except Exception as error:  # noqa: BLE001 - a bug must not close the connection of other requests
            refusal_or_bug = self.explain(error)
            if refusal_or_bug is None:
                self._log.failure("request failed", error, method=exchange.scope["method"], route=exchange.pattern)
                message = f"Error in the {self.name}; its log has the reason"
                refusal_or_bug = HttpRefusal(self.failure_code, message)
            response = self.print_refusal(refusal_or_bug)
        if not response.content_type:
            response.content_type = content_type
        return response

    async def _call(self, exchange: _Exchange, route: HttpRoute, values: dict[str, str]) -> HttpResponse:
        scope, headers = exchange.scope, exchange.headers
        query = scope.get("query_string", b"")
        target = f"{exchange.raw_path}?{query.decode('latin-1')}" if query else exchange.raw_path
        request = self.request_class(
            scope["method"], target, parse_query(query), headers, b"", values, exchange.peer, exchange.principal
        )
        exchange.request = request
        # Before the body: who may not do it should not make the service read megabytes.
        await self.authorize(request, route)
        declared = headers.get("content-length", "")
        # Most requests have no body: a GET is answered without waiting for the end of one.
        empty = declared in ("", "0") and "transfer-encoding" not in headers
        exchange.body = BodyStream(exchange.receive, empty=empty, idle_s=BODY_IDLE_S)
        if not empty:
            self.check_content_type(headers, route)
        if route.streams:
            request.stream = exchange.body
            return await route.endpoint(request)
        if declared.isdecimal() and int(declared) > self.body_bytes_max:
            raise too_long(self.body_bytes_max)
        async with asyncio.timeout(REQUEST_S):
            if not empty:
                request.body = await exchange.body.read(self.body_bytes_max)
            return await route.endpoint(request)


class UnsupportedScopeError(Exception):
    """Raised for a protocol other than HTTP.

    A server takes it as the answer to the scope `lifespan` and goes on: the service is started and stopped without it.
    """


async def _refuse_scope(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "websocket":
        raise UnsupportedScopeError(f"ASGI scope {scope['type']!r} is not supported")
    # A close before the handshake is accepted is answered with 403 by the server.
    if (await receive())["type"] == "websocket.connect":
        await send({"type": "websocket.close"})


class _Exchange:
    """A request while it is answered, with what its log line needs."""

    __slots__ = ("body", "headers", "peer", "principal", "raw_path", "receive", "request", "route", "scope")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.receive = receive
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.raw_path: str = scope["raw_path"].decode("latin-1")
        client: Any = scope.get("client")
        self.peer: str = client[0] if client else "-"
        self.principal: Principal = ANONYMOUS
        self.route: HttpRoute | None = None
        self.body: BodyStream | None = None
        self.request: HttpRequest | None = None

    def leaves_body(self) -> bool:
        """Whether a long body, or one of unknown length, is not read to its end when the response begins."""
        if self.body is not None and self.body.ended:
            return False
        declared = self.headers.get("content-length", "")
        return "transfer-encoding" in self.headers or (declared.isdecimal() and int(declared) > _DISCARDED_MAX)

    @property
    def pattern(self) -> str:
        return _UNMATCHED if self.route is None else self.route.pattern
