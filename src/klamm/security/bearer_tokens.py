"""Where a client, or a node, gets its bearer tokens: a function, an identity provider, a file.

A token is kept until it is due (`sasl.login.refresh.*`), and fetched by the next login: connections log in again before
their session ends, so that a token is replaced before it expires.
"""

import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from klamm.security.core.bearer_claims import format_unsecured, read_expiry
from klamm.security.core.oauthbearer import OAUTHBEARER, BearerClient
from klamm.security.core.refusal import LoginRefused
from klamm.security.core.secret import Secret
from klamm.security.core.token_refresh import RefreshRules
from klamm.security.token_assertions import GRANT_TYPE
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    import asyncio

    from klamm.security.http import HttpSettings

log = get_logger("login")

TokenProvider = Callable[[], Any]
"""Returns a token, or a token and the time at which it expires in seconds since 1970, or an awaitable of either."""

_UNKNOWN_LIFETIME_S: Final = 0.0
"""A token that does not say when it expires is not kept: each login fetches one."""


class TokenUnavailable(LoginRefused):
    """There is no token to log in with; the broker was not reached."""


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """The URL of an identity provider that answers with tokens."""

    url: str
    http: "HttpSettings"
    retry_ms: int = 100
    retry_max_ms: int = 10_000
    """Both the longest wait and all waits together, as in Kafka."""

    def request(self, fields: Mapping[str, str], headers: Mapping[str, str] | None = None) -> tuple[str, float]:
        """Request a token, more than once if the provider cannot answer. It blocks."""
        from klamm.security.http import HttpError  # noqa: PLC0415 - slow to import, and most logins have passwords

        waited_ms, wait_ms = 0, self.retry_ms
        while True:
            try:
                return self._request_once(fields, headers or {})
            except HttpError as error:
                if not error.is_retriable or waited_ms + wait_ms > self.retry_max_ms:
                    raise
            time.sleep(wait_ms / 1000)
            waited_ms, wait_ms = waited_ms + wait_ms, wait_ms * 2

    def _request_once(self, fields: Mapping[str, str], headers: Mapping[str, str]) -> tuple[str, float]:
        from klamm.security.http import HttpError, fetch, form  # noqa: PLC0415

        accepted = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
        requested_at = time.time()
        data = fetch(self.url, self.http, body=form(fields), headers={**accepted, **headers})
        try:
            answer = json.loads(data)
            token, lifetime = answer["access_token"], float(answer.get("expires_in", _UNKNOWN_LIFETIME_S))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise HttpError("the identity provider answers without an access_token", 400) from None
        return str(token), requested_at + lifetime


@dataclass(frozen=True, slots=True)
class OidcProvider:
    """Tokens by the client credentials grant (RFC 6749, 4.4)."""

    endpoint: TokenEndpoint
    client_id: str
    client_secret: Secret
    scope: str
    urlencode: bool = False
    """sasl.oauthbearer.header.urlencode"""

    def __call__(self) -> tuple[str, float]:
        """Request a token. It blocks."""
        from klamm.security.http import basic_authorization  # noqa: PLC0415 - as above

        authorization = basic_authorization(self.client_id, self.client_secret.reveal(), urlencode=self.urlencode)
        fields = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        return self.endpoint.request(fields, {"Authorization": authorization})


@dataclass(frozen=True, slots=True)
class JwtBearerProvider:
    """Tokens in exchange for an assertion (RFC 7523, 2.1): the client has a private key and no secret."""

    endpoint: TokenEndpoint
    make_assertion: Callable[[], str]
    scope: str

    def __call__(self) -> tuple[str, float]:
        """Request a token. It blocks."""
        fields = {"grant_type": GRANT_TYPE, "assertion": self.make_assertion()}
        return self.endpoint.request({**fields, **({"scope": self.scope} if self.scope else {})})


@dataclass(frozen=True, slots=True)
class FileProvider:
    """Tokens from a file that another program keeps up to date."""

    path: str

    def __call__(self) -> str:
        """Read the file."""
        from klamm.security.http import read_bounded  # noqa: PLC0415 - as above

        return read_bounded(self.path).decode().strip()


@dataclass(frozen=True, slots=True)
class UnsecuredProvider:
    """Tokens without signature, for listeners that take them."""

    claims: Mapping[str, Any]
    lifetime_s: float = 3600.0

    def __call__(self) -> str:
        """Write a token."""
        now = time.time()
        return format_unsecured({**self.claims, "iat": now, "exp": now + self.lifetime_s})


@dataclass(slots=True)
class BearerCredentials:
    """What a client logs in with: the newest token of a provider."""

    provider: TokenProvider = field(repr=False)
    user: str = "the subject of the token"
    """For messages: the client id, where there is one."""
    extensions: Mapping[str, str] = field(default_factory=dict)
    rules: RefreshRules = field(default_factory=RefreshRules)
    mechanism: str = OAUTHBEARER
    _token: Secret | None = field(default=None, repr=False)
    _expires_at: float = 0.0
    _refresh_at: float = 0.0
    _lock: "asyncio.Lock | None" = field(default=None, repr=False)

    def begin(self) -> BearerClient:
        """Begin a login with the token that `refresh` has fetched."""
        assert self._token is not None
        return BearerClient(self._token, self.extensions)

    async def refresh(self) -> None:
        """Fetch a token if the present one is due; connections that log in together fetch one."""
        import asyncio  # noqa: PLC0415 - commands log in over blocking sockets, and importing it is slow

        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if time.time() < self._refresh_at:
                return
            try:
                self._keep(await self._fetch(asyncio.get_running_loop()))
            except Exception as error:  # noqa: BLE001 - a provider may raise anything
                self._fail(error)

    async def _fetch(self, loop: "asyncio.AbstractEventLoop") -> Any:
        import inspect  # noqa: PLC0415 - as asyncio

        if inspect.iscoroutinefunction(self.provider):
            return await self.provider()
        # In a thread: it may wait for an identity provider, in which time the loop would serve no connection.
        result = await loop.run_in_executor(None, self.provider)
        return await result if inspect.isawaitable(result) else result

    def refresh_blocking(self) -> None:
        """`refresh` for a connection that blocks."""
        if time.time() < self._refresh_at:
            return
        try:
            result = self.provider()
            if hasattr(result, "__await__"):
                import asyncio  # noqa: PLC0415 - as above

                result = asyncio.run(_wait(result))
            self._keep(result)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)

    def _keep(self, result: Any) -> None:
        token, expires_at = result if isinstance(result, tuple | list) else (result, None)
        if isinstance(token, bytes):
            token = token.decode()
        if not isinstance(token, str) or not token:
            raise TypeError(f"it returned a {type(token).__name__}, not a token")
        now = time.time()
        # The token's own time first: the one beside it may be rounded, or count from the response.
        self._expires_at = read_expiry(token) or float(expires_at or now)
        chance = random.random()  # noqa: S311 - no secret
        self._refresh_at = self.rules.find_refresh_time(now, self._expires_at, chance)
        self._token = Secret(token)

    def _fail(self, error: Exception) -> None:
        # Kafka, too, goes on with the present token: an identity provider that is down for a minute stops no client.
        if self._token is not None and time.time() < self._expires_at:
            log.warning("token not refreshed", reason=error)
            return
        if isinstance(error, OSError) and getattr(error, "is_retriable", True):
            raise error
        raise TokenUnavailable(f"no token to log in with: {error}") from None


async def _wait(result: Awaitable[Any]) -> Any:
    return await result
