"""The ASGI application of the console: sessions, rights, tokens of forms, security headers, errors as pages."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import quote, urlsplit

from klamm.client.errors import KafkaError, SomeFailed
from klamm.console.app.rendering import PageRenderer, page_response
from klamm.console.app.requests import FORM_TYPE, ConsoleRequest
from klamm.console.audit import AuditTrail
from klamm.console.clusters import ClusterLink
from klamm.console.core.roles import Action, Visitor
from klamm.console.history import SampleHistory
from klamm.console.login.passwords import PasswordLogin
from klamm.console.login.sessions import (
    FlashMessage,
    SessionStore,
    format_cookie,
    parse_cookie,
)
from klamm.console.pipelines import PipelineDirectory
from klamm.console.settings import ConsoleSettings
from klamm.console.shown_plans import ShownPlans
from klamm.http.app import HttpApp
from klamm.http.messages import Answered, HttpRequest, HttpResponse, Receive, Scope, Send
from klamm.http.refusals import HttpRefusal
from klamm.http.router import HttpRoute
from klamm.registry.client import UnknownSchema

if TYPE_CHECKING:
    from klamm.console.login.oidc import OidcLogin

PageEndpoint = Callable[[ConsoleRequest], Awaitable[HttpResponse]]

_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    b" form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
SECURITY_HEADERS: Final = (
    (
        b"content-security-policy",
        _POLICY,
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"geolocation=(), camera=(), microphone=()"),
)
_BODY_BYTES_MAX: Final = 4 << 20
_LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_REFRESH_S: Final = 3.0
"""How long a page waits for the first sample, and the answer to a form for one that shows the change."""

_CHANGE_S: Final = 60.0
"""Within the time limit of a request, so that its answer says that the outcome is not known."""
_FINISH_S: Final = 5.0
_DISK_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""Writes to an open file do not name it."""


@dataclass(frozen=True, slots=True)
class RouteRight:
    """The right that a route needs; `value` is the name in the path that it is about."""

    action: Action
    value: str | None = None
    everywhere: bool = False
    """Whether it concerns the cluster as a whole, so that a role for some topics is not enough."""


@dataclass(slots=True)
class ConsoleParts:
    """What the pages use."""

    settings: ConsoleSettings
    links: Mapping[str, ClusterLink]
    history: SampleHistory
    audit: AuditTrail
    sessions: SessionStore
    passwords: PasswordLogin | None
    refresh: Callable[[str], Awaitable[None]]
    """Collects a cluster at once."""
    now_ms: Callable[[], int]
    pipelines: PipelineDirectory
    secure_cookies: bool = False
    oidc: OidcLogin | None = None


class ConsoleApp(HttpApp):
    """All pages of a console."""

    taken: ClassVar[tuple[str, ...]] = (FORM_TYPE,)
    given: ClassVar[tuple[str, ...]] = ()
    request_class: ClassVar[type[HttpRequest]] = ConsoleRequest
    # By tokens of its forms and by `_check_host`: an identity provider sends its visitors from another site.
    checks_origin: ClassVar[bool] = False

    def __init__(self, parts: ConsoleParts) -> None:
        super().__init__("console", body_bytes_max=_BODY_BYTES_MAX)
        self.parts = parts
        self.renderer = PageRenderer()
        self.change_s = _CHANGE_S
        self.plans = ShownPlans()
        self._changes: set[asyncio.Task[str]] = set()
        from klamm.console.app.pages import PAGES  # noqa: PLC0415 - pages import this module

        for page in PAGES:
            page(self).add_routes()

    # Routes

    def get(
        self, pattern: str, endpoint: PageEndpoint, right: RouteRight | None = None, *, public: bool = False
    ) -> None:
        """Serve a page."""
        self.router.add("GET", pattern, _Guarded(self, endpoint).get, public=public, tag=right)

    def get_stream(self, pattern: str, endpoint: PageEndpoint, right: RouteRight) -> None:
        """Serve a stream of events, without a time limit."""
        self.router.add("GET", pattern, _Guarded(self, endpoint).get, streams=True, tag=right)

    def post(
        self, pattern: str, endpoint: PageEndpoint, right: RouteRight | None = None, *, public: bool = False
    ) -> None:
        """Serve a form: its token and origin are checked before the endpoint is called."""
        self.router.add("POST", pattern, _Guarded(self, endpoint).post, public=public, tag=right)

    # Requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every answer has the security headers, errors too."""

        async def send_secured(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = list(message["headers"])
                names = {name for name, _ in headers}
                if b"cache-control" not in names:
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*headers, *SECURITY_HEADERS]}
            await send(message)

        await super().__call__(scope, receive, send_secured)

    async def authorize(self, request: HttpRequest, route: HttpRoute) -> None:
        """Find session and cluster; redirect to the login, or refuse what the visitor may not do."""
        assert isinstance(request, ConsoleRequest)
        self._check_host(request)
        if route.pattern.startswith("/static/"):
            return
        self._find_session(request)
        assert request.session is not None
        if request.session.visitor is None:
            if route.public:
                return
            wanted = request.target if request.method == "GET" else "/"
            raise Answered(redirect(f"/login?next={quote(wanted, safe='')}"))
        name = request.values.get("cluster")
        if name is not None:
            request.link = self.parts.links.get(name)
            # A cluster that may not be viewed does not exist for the visitor.
            if request.link is None or not request.visitor.may(Action.VIEW, name):
                request.link = None
                raise self._refusal_page(request, HttpRefusal(404, f"There is no cluster {name}"))
            await request.link.wait_for_sample(_REFRESH_S)
        right: RouteRight | None = route.tag
        if right is not None:
            try:
                if right.everywhere:
                    request.require_everywhere(right.action)
                request.require(right.action, None if right.value is None else request.values[right.value])
            except HttpRefusal as refusal:
                raise self._refusal_page(request, refusal) from None

    def _refusal_page(self, request: ConsoleRequest, refusal: HttpRefusal) -> Answered:
        return Answered(self.error_page(request, refusal))

    def _check_host(self, request: ConsoleRequest) -> None:
        """Refuse host names that are not ours: a page of another site may have its name resolve to this address."""
        settings = self.parts.settings
        if settings.needs_login and not settings.hosts:
            return
        host = request.headers.get("host", "").rpartition(":")
        name = host[0] if host[2].isdecimal() else host[0] + host[1] + host[2]
        if name.lower() not in _LOCAL_HOSTS and name not in settings.hosts:
            raise HttpRefusal(421, f"This console does not serve the host {name[:100]!r}; add it to `hosts`")

    def _find_session(self, request: ConsoleRequest) -> None:
        session = self.parts.sessions.find(parse_cookie(request.headers.get("cookie", "")))
        proxied = self._proxy_visitor(request)
        # A header of the proxy decides anew with every request: its logout is ours. A login by a password or by single
        # sign-on has no header, and ends by itself.
        if session is not None and session.by_proxy and session.visitor != proxied:
            session = None
        if session is None or (session.visitor is None and proxied is not None):
            visitor = proxied if self.parts.settings.needs_login else self.parts.settings.anonymous()
            session = self.parts.sessions.create(visitor, by_proxy=proxied is not None)
            request.is_new_session = True
        request.session = session

    def _proxy_visitor(self, request: ConsoleRequest) -> Visitor | None:
        proxy = self.parts.settings.proxy
        if proxy is None or request.peer not in proxy.peers:
            return None
        name = request.headers.get(proxy.header, "")
        if not name:
            return None
        user = self.parts.settings.users.get(name)
        return Visitor(name, proxy.roles if user is None else user.roles, self.parts.settings.read_only)

    # Answers

    def page(self, request: ConsoleRequest, template: str, status: int = 200, **values: Any) -> HttpResponse:
        """Render a page with what every page shows."""
        session = request.session
        visitor = None if session is None else session.visitor
        visible = [link for link in self.parts.links.values() if visitor.may(Action.VIEW, link.name)] if visitor else []
        html = self.renderer.render(
            template,
            {
                "request": request,
                "link": request.link,
                "sample": None if request.link is None else request.link.sample,
                "base": "" if request.link is None else f"/c/{quote(request.link.name, safe='')}",
                "clusters": visible,
                "visitor": visitor,
                "may": request.may if request.link is not None and visitor is not None else _may_nothing,
                "may_everywhere": (
                    request.may_everywhere if request.link is not None and visitor is not None else _may_nothing
                ),
                "Action": Action,
                "token": "" if session is None else session.token,
                "messages": [] if session is None else session.take_messages(),
                "needs_login": self.parts.settings.needs_login,
                "oidc": self.parts.settings.oidc,
                "has_passwords": self.parts.passwords is not None,
                "now_ms": self.parts.now_ms(),
                **values,
            },
        )
        return self.with_cookie(request, page_response(html, request.headers.get("accept-encoding", ""), status))

    def with_cookie(self, request: ConsoleRequest, response: HttpResponse) -> HttpResponse:
        """Set the cookie of a new session."""
        if request.is_new_session and request.session is not None:
            cookie = format_cookie(request.session, secure=self.parts.secure_cookies)
            response.headers = (*response.headers, ("set-cookie", cookie))
        return response

    def error_page(self, request: ConsoleRequest, refusal: HttpRefusal) -> HttpResponse:
        """Return the page of an error."""
        response = self.page(request, "error.html", refusal.status, code=refusal.status, message=refusal.message)
        response.headers = (*response.headers, *refusal.headers)
        return response

    def print_refusal(self, refusal: HttpRefusal) -> HttpResponse:
        """Return the page of an error that came before the session was found."""
        html = self.renderer.render("bare_error.html", {"status": refusal.status, "message": refusal.message})
        response = page_response(html, "", refusal.status)
        response.headers = refusal.headers
        return response

    def explain(self, error: Exception) -> HttpRefusal | None:
        """Return errors of the cluster as answers."""
        return explain_error(error)

    # Changes

    async def change(
        self,
        request: ConsoleRequest,
        action: str,
        resource: str,
        work: Callable[[], Awaitable[Any]],
        *,
        done: str,
        detail: dict[str, Any] | None = None,
        undo: str = "",
    ) -> bool:
        """Make a change in the cluster, audit it, and leave a message for the next page; whether it succeeded.

        A request that is given up, by its time limit or by the browser, leaves the change under way, and so its record
        is written.
        """
        assert request.session is not None
        task = asyncio.create_task(self._change(request, action, resource, work, detail or {}))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        failure = await asyncio.shield(task)
        if failure:
            request.session.messages.append(FlashMessage(failure, "bad"))
            return False
        request.session.messages.append(FlashMessage(done, "good", undo))
        # The next page should show the change; if the cluster is slow it shows it a little later.
        try:
            async with asyncio.timeout(_REFRESH_S):
                await self.parts.refresh(request.cluster.name)
        except TimeoutError:
            pass
        return True

    async def _change(
        self,
        request: ConsoleRequest,
        action: str,
        resource: str,
        work: Callable[[], Awaitable[Any]],
        detail: dict[str, Any],
    ) -> str:
        """Make a change and write its record; return why it failed, empty when it did not."""
        # What is recorded if this is cancelled, which only the end of the console does.
        outcome, text = "unknown", "the console was stopped"
        try:
            self.check_protected(request)
            async with asyncio.timeout(self.change_s):
                await work()
            outcome, text = "done", ""
        except HttpRefusal as refusal:
            outcome, text = "refused", refusal.message
        except TimeoutError as error:
            # Of a client too: the request may have reached the cluster.
            reason = str(error) or f"no answer within {self.change_s:g} seconds"
            outcome, text = "unknown", f"Whether it was done is not known: {reason}"
        except (KafkaError, SomeFailed, ValueError, TypeError) as error:
            outcome, text = "failed", str(error) or type(error).__name__
        except OSError as error:
            outcome, text = "failed", explain_os_error(error).message
        except Exception as error:
            outcome, text = "failed", type(error).__name__
            raise
        finally:
            link, person = request.cluster, request.visitor.name
            about = {**detail, "error": text} if text and outcome != "refused" else detail
            await self.parts.audit.write(link, person, request.peer, action, resource, outcome, about)
        return text

    async def finish_changes(self) -> None:
        """Wait a little for changes whose requests were given up, and for records of logins."""
        if self._changes:
            await asyncio.wait(set(self._changes), timeout=_FINISH_S)
        await self.parts.audit.close(_FINISH_S)

    def check_protected(self, request: ConsoleRequest) -> None:
        """Refuse a change in a protected cluster whose form does not carry its name."""
        cluster = request.cluster.cluster
        if cluster.protected and request.form("confirm") != cluster.name:
            raise HttpRefusal(403, f"{cluster.name} is protected: write its name to confirm the change")


def redirect(path: str) -> HttpResponse:
    """Return a redirect that the browser follows with GET."""
    return HttpResponse(303, b"", "text/plain", (("location", path),))


def explain_error(error: Exception) -> HttpRefusal | None:
    """Return the answer for an error of the cluster; None for a bug."""
    if isinstance(error, KafkaError | SomeFailed):
        code = getattr(error, "code", None)
        name = getattr(code, "name", "")
        if "AUTHORIZATION" in name:
            return HttpRefusal(403, f"The cluster refuses the console's user: {error}")
        if name in ("UNKNOWN_TOPIC_OR_PARTITION", "GROUP_ID_NOT_FOUND", "TRANSACTIONAL_ID_NOT_FOUND"):
            return HttpRefusal(404, str(error))
        return HttpRefusal(502, str(error) or type(error).__name__)
    if isinstance(error, UnknownSchema):
        return HttpRefusal(404, f"The registry does not have it: {error}")
    if isinstance(error, OSError):
        return explain_os_error(error)
    return None


def explain_os_error(error: OSError) -> HttpRefusal:
    """Return the answer for an error of a file or a connection."""
    if error.filename is not None:
        return HttpRefusal(500, f"A file of the console's machine cannot be used: {error}")
    if error.errno in _DISK_ERRORS:
        return HttpRefusal(500, f"A disk of the console's machine cannot be used: {error}")
    return HttpRefusal(502, f"The cluster cannot be reached: {error}")


def _may_nothing(*_: object) -> bool:
    return False


class _Guarded:
    """An endpoint with its errors as pages, and the checks of forms."""

    def __init__(self, app: ConsoleApp, endpoint: PageEndpoint) -> None:
        self._app = app
        self._endpoint = endpoint

    async def get(self, request: ConsoleRequest) -> HttpResponse:
        try:
            return await self._endpoint(request)
        except HttpRefusal as refusal:
            return self._app.error_page(request, refusal)
        except (KafkaError, SomeFailed, UnknownSchema, OSError) as error:
            refusal_of_cluster = explain_error(error)
            assert refusal_of_cluster is not None
            return self._app.error_page(request, refusal_of_cluster)

    async def post(self, request: ConsoleRequest) -> HttpResponse:
        try:
            check_origin(request.headers)
            request.parse_form()
            assert request.session is not None
            if not request.session.accepts(request.form("_token")):
                raise HttpRefusal(403, "The form is of another session; load the page again")
        except HttpRefusal as refusal:
            return self._app.error_page(request, refusal)
        return await self.get(request)


def check_origin(headers: Mapping[str, str]) -> None:
    """Refuse forms of other sites; a browser names the origin of every POST."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HttpRefusal(403, "The form comes from another site")
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != headers.get("host"):
        raise HttpRefusal(403, "The form comes from another origin")
