"""GET /, /login, /login/oidc, /login/oidc/callback, /static/{name}; POST /login, /logout."""

from __future__ import annotations

from klamm.console.app.application import redirect
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.rendering import static_response
from klamm.console.app.requests import ConsoleRequest
from klamm.console.core.roles import Action, Visitor
from klamm.console.login.passwords import TooManyAttempts
from klamm.console.login.sessions import parse_cookie
from klamm.http.messages import HttpResponse, json_response
from klamm.http.refusals import HttpRefusal


class AccountPages(PageGroup):
    """The way in."""

    def add_routes(self) -> None:
        """Serve these pages."""
        self.app.get("/", self.show_start)
        self.app.get("/login", self.show_login, public=True)
        self.app.post("/login", self.log_in, public=True)
        if self.parts.oidc is not None:
            self.app.get("/login/oidc", self.begin_oidc, public=True)
            self.app.get("/login/oidc/callback", self.finish_oidc, public=True)
        self.app.post("/logout", self.log_out)
        self.app.router.add("GET", "/static/{name}", self.send_static, public=True, quiet=True)
        self.app.router.add("GET", "/health/live", self.report_health, public=True, quiet=True)

    async def show_start(self, request: ConsoleRequest) -> HttpResponse:
        """GET /: the overview of the first cluster, or a list of all."""
        names = [name for name in self.parts.links if request.visitor.may(Action.VIEW, name)]
        if len(names) == 1:
            return self.app.with_cookie(request, redirect(f"/c/{names[0]}"))
        return self.app.page(request, "clusters.html", title="Clusters", section="")

    async def show_login(self, request: ConsoleRequest) -> HttpResponse:
        """GET /login."""
        assert request.session is not None
        if request.session.visitor is not None:
            return redirect("/")
        return self.app.page(request, "login.html", title="Log in", next=safe_path(request.text("next")), failed="")

    async def log_in(self, request: ConsoleRequest) -> HttpResponse:
        """POST /login: check the password; the session after it has another id than before."""
        assert request.session is not None
        if self.parts.passwords is None:
            raise HttpRefusal(404, "This console has no local users")
        name, target = request.form("name")[:200], safe_path(request.form("next"))
        password = request.fields.get("password", [""])[0][:1000]
        try:
            user = await self.parts.passwords.check(name, password, request.peer)
            failed = "" if user else "Name or password is wrong."
        except TooManyAttempts:
            user, failed = None, "Too many failed logins; wait a minute."
        if user is None:
            self._audit(request, name, failed)
            return self.app.page(request, "login.html", 401, title="Log in", next=target, failed=failed)
        self.parts.sessions.end(request.session)
        visitor = Visitor(user.name, user.roles, self.parts.settings.read_only)
        request.session = self.parts.sessions.create(visitor)
        request.is_new_session = True
        self._audit(request, name)
        return self.app.with_cookie(request, redirect(target))

    async def begin_oidc(self, request: ConsoleRequest) -> HttpResponse:
        """GET /login/oidc?next=: send the browser to the provider."""
        from klamm.console.login.oidc import LoginFailed, format_login_cookie  # noqa: PLC0415 - an extra

        assert self.parts.oidc is not None
        target = safe_path(request.text("next"))
        try:
            handle, address = await self.parts.oidc.begin(target)
        except LoginFailed as error:
            return self._fail_oidc(request, str(error), target)
        response = redirect(address)
        cookie = format_login_cookie(handle, secure=self._has_https)
        response.headers = (*response.headers, ("set-cookie", cookie))
        return response

    async def finish_oidc(self, request: ConsoleRequest) -> HttpResponse:
        """GET /login/oidc/callback?code=&state=: the answer of the provider."""
        from klamm.console.login.oidc import COOKIE, LoginFailed, format_login_cookie  # noqa: PLC0415 - an extra

        assert self.parts.oidc is not None
        handle = parse_cookie(request.headers.get("cookie", ""), COOKIE)
        try:
            identity = await self.parts.oidc.finish(
                handle, request.text("state"), request.text("code"), request.text("iss")
            )
        except LoginFailed as error:
            return self._fail_oidc(request, str(error), "/")
        if request.session is not None:
            self.parts.sessions.end(request.session)
        visitor = Visitor(identity.name, identity.roles, self.parts.settings.read_only)
        request.session = self.parts.sessions.create(visitor)
        request.is_new_session = True
        self._audit(request, identity.name)
        response = self.app.page(request, "login_done.html", target=identity.target)
        response.headers = (*response.headers, ("set-cookie", format_login_cookie("", secure=self._has_https)))
        return response

    def _fail_oidc(self, request: ConsoleRequest, reason: str, target: str) -> HttpResponse:
        # Whose login it was is not known: the provider did not say, or cannot be believed.
        self._audit(request, "", reason)
        return self.app.page(request, "login.html", 401, title="Log in", next=target, failed=reason)

    def _audit(self, request: ConsoleRequest, person: str, reason: str = "") -> None:
        """Record a login, or with a reason one that failed."""
        self.parts.audit.write_login(self.parts.links.values(), person, request.peer, reason)

    @property
    def _has_https(self) -> bool:
        """Whether browsers reach this console by HTTPS, perhaps of a proxy before it."""
        oidc = self.parts.settings.oidc
        return self.parts.secure_cookies or (oidc is not None and oidc.redirect_url.startswith("https:"))

    async def log_out(self, request: ConsoleRequest) -> HttpResponse:
        """POST /logout."""
        assert request.session is not None
        self.parts.sessions.end(request.session)
        return redirect("/login")

    async def send_static(self, request: ConsoleRequest) -> HttpResponse:
        """GET /static/{name}: a file that was loaded at the start."""
        file = self.app.renderer.static.get(request.values["name"])
        if file is None:
            raise HttpRefusal(404, "There is no such file")
        return static_response(file, request.headers.get("accept-encoding", ""))

    async def report_health(self, _: ConsoleRequest) -> HttpResponse:
        """GET /health/live."""
        response = json_response({"status": "live"})
        response.content_type = "application/json"
        return response


def safe_path(text: str) -> str:
    """Return a path of this console; `/` for addresses of other sites: browsers take a second slash for a host."""
    if not text.startswith("/") or text.startswith(("//", "/\\")) or any(ord(char) < 33 for char in text):
        return "/"
    return text
