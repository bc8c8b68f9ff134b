"""Logins by an OpenID Connect provider: authorization code with PKCE (RFC 7636).

The provider's addresses are those of its discovery document. A login is bound to the browser by a cookie, and its ID
token is verified by the provider's keys.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from klamm.console.core.oidc_claims import (
    PendingLogin,
    ProviderEndpoints,
    authorization_url,
    check_login_claims,
    name_of,
    parse_endpoints,
    roles_of,
)
from klamm.console.core.roles import ConsoleRole
from klamm.console.settings import OidcSettings
from klamm.security.core.bearer_claims import ClaimRules, InvalidToken, split_token
from klamm.security.http import HttpError, HttpSettings, basic_authorization, fetch, form
from klamm.security.token_signatures import KeySet, UnknownKey, check_signed, parse_key_set

COOKIE: Final = "klamm_oidc"
PATH: Final = "/login/oidc"
LOGIN_S: Final = 600
"""How long a person may take at the provider."""
_PENDING_MAX: Final = 1000
"""The oldest is dropped: anyone can begin a login."""
_PROVIDER_S: Final = 3600.0
"""How long addresses and keys are used before they are read again."""
_KEYS_S: Final = 60.0
"""At the earliest after which unknown key ids make the keys be read again."""
_REQUEST_S: Final = 5.0


class LoginFailed(Exception):
    """A login that is refused; the text is for the person."""


@dataclass(frozen=True, slots=True)
class OidcIdentity:
    """Who logged in, with which roles, and the page that was wanted."""

    name: str
    roles: tuple[ConsoleRole, ...]
    target: str


class OidcLogin:
    """Logins by one provider."""

    def __init__(self, settings: OidcSettings, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self._clock_s = clock_s
        self._http = HttpSettings(_REQUEST_S, settings.ca)
        self._pending: OrderedDict[str, PendingLogin] = OrderedDict()
        self._endpoints: ProviderEndpoints | None = None
        self._keys = KeySet()
        self._read_s = 0.0
        self._reading = asyncio.Lock()

    async def begin(self, target: str) -> tuple[str, str]:
        """Return the value of the cookie, and the address for the browser; LoginFailed without a provider."""
        endpoints = await self._provider()
        pending = PendingLogin(
            secrets.token_urlsafe(24),
            secrets.token_urlsafe(24),
            secrets.token_urlsafe(48),
            target,
            self._clock_s(),
        )
        handle = secrets.token_urlsafe(24)
        self._pending[handle] = pending
        while len(self._pending) > _PENDING_MAX:
            self._pending.popitem(last=False)
        settings = self.settings
        return handle, authorization_url(
            endpoints.authorization, pending, settings.client_id, settings.redirect_url, settings.scopes
        )

    async def finish(self, handle: str, state: str, code: str, issuer: str) -> OidcIdentity:
        """Return who logged in, from what the provider sent the browser back with; LoginFailed otherwise."""
        # Once: a code and a state that were seen in a history or a log are worth nothing.
        pending = self._pending.pop(handle, None)
        if pending is None or self._clock_s() - pending.began_s > LOGIN_S:
            raise LoginFailed("The login took too long, or began in another browser. Try again.")
        if not hmac.compare_digest(state.encode(), pending.state.encode()):
            raise LoginFailed("The answer is of another login. Try again.")
        # RFC 9207: a provider that names itself in the answer must be the right one.
        if issuer and issuer != self.settings.issuer:
            raise LoginFailed("The answer is of another provider. Try again.")
        if not code:
            raise LoginFailed("The provider refused the login.")
        endpoints = await self._provider()
        token = await asyncio.to_thread(self._exchange, endpoints.token, code, pending.verifier)
        try:
            claims = await self._verify(token, pending.nonce)
        except InvalidToken as error:
            raise LoginFailed(f"The provider's ID token is not valid: {error}") from None
        name = name_of(claims, self.settings.name_claim)
        roles = roles_of(claims, self.settings.roles_claim, self.settings.roles_by_value, self.settings.roles)
        if not roles:
            raise LoginFailed(f"{name} has no role in this console.")
        return OidcIdentity(name, roles, pending.target)

    async def _verify(self, token: str, nonce: str) -> dict[str, Any]:
        settings = self.settings
        rules = ClaimRules(audiences=(settings.client_id,), issuer=settings.issuer)
        try:
            check_signed(token, self._keys, rules, time.time())
        except UnknownKey:
            # The provider may have begun to sign with a new key.
            await self._provider(max_age_s=_KEYS_S)
            check_signed(token, self._keys, rules, time.time())
        claims = dict(split_token(token).claims)
        check_login_claims(claims, settings.client_id, nonce)
        return claims

    async def _provider(self, max_age_s: float = _PROVIDER_S) -> ProviderEndpoints:
        async with self._reading:
            if self._endpoints is None or self._clock_s() - self._read_s > max_age_s:
                try:
                    endpoints, self._keys = await asyncio.to_thread(self._read_provider)
                except (OSError, ValueError, RecursionError) as error:
                    # What was read before stays in use while the provider is down.
                    if self._endpoints is None:
                        raise LoginFailed(f"The provider of logins cannot be used: {error}") from None
                    endpoints = self._endpoints
                self._endpoints, self._read_s = endpoints, self._clock_s()
            return self._endpoints

    def _read_provider(self) -> tuple[ProviderEndpoints, KeySet]:
        address = f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration"
        endpoints = parse_endpoints(json.loads(fetch(address, self._http)), self.settings.issuer)
        return endpoints, parse_key_set(fetch(endpoints.keys, self._http))

    def _exchange(self, address: str, code: str, verifier: str) -> str:
        settings = self.settings
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": settings.redirect_url,
            "code_verifier": verifier,
            "client_id": settings.client_id,
        }
        headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
        if settings.client_secret is not None:
            secret = settings.client_secret.reveal()
            headers["Authorization"] = basic_authorization(settings.client_id, secret, urlencode=True)
        try:
            return str(json.loads(fetch(address, self._http, body=form(fields), headers=headers))["id_token"])
        except HttpError as error:
            raise LoginFailed(f"The provider did not accept the login: {error}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise LoginFailed("The provider answered without an ID token.") from None


def format_login_cookie(handle: str, *, secure: bool) -> str:
    """Return the cookie of a login, or with an empty handle the one that deletes it.

    Lax, unlike that of a session: the answer of the provider is a request from another site.
    """
    age_s = LOGIN_S if handle else 0
    return f"{COOKIE}={handle}; Path={PATH}; Max-Age={age_s}; HttpOnly; SameSite=Lax{'; Secure' if secure else ''}"
