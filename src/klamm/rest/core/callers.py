"""Credentials of callers that are passed on to the cluster, and how long their clients are kept. Pure.

Nothing is verified here: the cluster does that when the caller's client logs in. What a token says of its subject and
its end is believed only after that.
"""

from __future__ import annotations

import base64
import hmac
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from klamm.http.refusals import HttpRefusal
from klamm.security.core.bearer_claims import InvalidToken, read_expiry, split_token
from klamm.security.core.oauthbearer import OAUTHBEARER
from klamm.security.core.principal import Principal
from klamm.security.core.secret import Secret

PASSWORD_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_HEADER_LENGTH_MAX: Final = 64 << 10

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallerCredentials:
    """What a request logs in with."""

    principal: Principal
    """Who the caller is, if the cluster accepts the login. A token's type is `Token`: only the cluster can tell which
    of its claims is the name of the user."""
    user: str | None
    secret: Secret
    """The password, or the token if there is no user."""
    expires_s: float | None = None
    """When the token ends, in seconds since 1970."""

    @property
    def is_token(self) -> bool:
        """Whether it is a bearer token."""
        return self.user is None

    def has_expired(self, now_s: float) -> bool:
        """Whether the token has ended."""
        return self.expires_s is not None and now_s >= self.expires_s

    def fingerprint(self, key: bytes) -> bytes:
        """Return what the login is remembered by; useless without the key, which is of this process."""
        name = "bearer" if self.user is None else f"basic {self.user}"
        return hmac.digest(key, f"{name}:{self.secret.reveal()}".encode(), "sha256")


def parse_authorization(header: str) -> CallerCredentials | None:
    """Parse an Authorization header, basic or bearer; None for any other."""
    scheme, _, text = header.partition(" ")
    text = text.strip()
    if not text or len(header) > _HEADER_LENGTH_MAX:
        return None
    if scheme.lower() == "basic":
        return _parse_basic(text)
    if scheme.lower() == "bearer" and text.isascii() and " " not in text:
        return CallerCredentials(Principal("Token", _read_subject(text)), None, Secret(text), read_expiry(text))
    return None


def _parse_basic(text: str) -> CallerCredentials | None:
    try:
        user, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
    except ValueError:
        return None
    if not colon or not user or not password or "\0" in user + password:
        return None
    return CallerCredentials(Principal("User", user), user, Secret(password))


def _read_subject(token: str) -> str:
    """Return issuer and subject of a token, so that its successor is the same caller; its hash if it has none."""
    try:
        claims = split_token(token).claims
        issuer, subject = claims.get("iss"), claims.get("sub")
    except InvalidToken:
        subject = None
    if not isinstance(subject, str) or not subject:
        return hmac.digest(b"opaque token", token.encode(), "sha256").hex()
    return f"{issuer}/{subject}" if isinstance(issuer, str) and issuer else subject


@dataclass(frozen=True, slots=True)
class CallerLogin:
    """How callers log in to the cluster."""

    bootstrap: str | None = None
    """Another listener than the proxy's own."""
    mechanism: str | None = None
    """Of passwords; by default the proxy's own, or PLAIN."""

    def settings(self, own: Mapping[str, Any], credentials: CallerCredentials, provider: Any = None) -> dict[str, Any]:
        """Return the settings of a caller's client: the proxy's own without its login, and with the caller's."""
        settings = {name: value for name, value in own.items() if not _is_login(name)}
        protocol = str(_get(own, "security.protocol") or "PLAINTEXT").upper()
        settings["security.protocol"] = "SASL_SSL" if protocol.endswith("SSL") else "SASL_PLAINTEXT"
        if self.bootstrap is not None:
            settings["bootstrap.servers"] = self.bootstrap
        if credentials.is_token:
            return settings | {"sasl.mechanism": OAUTHBEARER, "sasl.oauth.token.provider": provider}
        mechanism = self.mechanism or str(_get(own, "sasl.mechanism") or _get(own, "sasl.mechanisms") or "").upper()
        return settings | {
            "sasl.mechanism": mechanism if mechanism in PASSWORD_MECHANISMS else "PLAIN",
            "sasl.username": credentials.user,
            "sasl.password": credentials.secret.reveal(),
        }


def _is_login(name: str) -> bool:
    return name.replace("_", ".").startswith(("sasl.", "security.protocol"))


def _get(settings: Mapping[str, Any], name: str) -> Any:
    return settings.get(name, settings.get(name.replace(".", "_")))


@dataclass(slots=True)
class CallerEntry(Generic[T]):
    """The clients of one caller."""

    fingerprint: bytes
    credentials: CallerCredentials
    clients: T
    verified_ms: int
    """When the cluster accepted the login."""
    used_ms: int
    uses: int = field(default=0)
    """Requests that use them now."""


class CallerTable(Generic[T]):
    """The clients of all callers, the one that was used last at the end; time is an argument."""

    def __init__(self, callers_max: int, idle_ms: int) -> None:
        self._callers_max = callers_max
        self._idle_ms = idle_ms
        self._entries: OrderedDict[bytes, CallerEntry[T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, fingerprint: bytes) -> CallerEntry[T] | None:
        """Return the clients of a login."""
        return self._entries.get(fingerprint)

    def add(self, entry: CallerEntry[T]) -> CallerEntry[T] | None:
        """Add clients; returns those that had to go, the longest unused. 429 when all are in use."""
        evicted = None
        if len(self._entries) >= self._callers_max:
            evicted = next((other for other in self._entries.values() if not other.uses), None)
            if evicted is None:
                raise HttpRefusal(42901, f"{self._callers_max} callers use the proxy, and no more are allowed")
            del self._entries[evicted.fingerprint]
        self._entries[entry.fingerprint] = entry
        return evicted

    def begin_use(self, entry: CallerEntry[T]) -> None:
        """Keep the clients from being closed until `end_use`."""
        entry.uses += 1
        if self._entries.get(entry.fingerprint) is entry:
            self._entries.move_to_end(entry.fingerprint)

    def end_use(self, entry: CallerEntry[T], now_ms: int) -> None:
        """Let the idle time begin."""
        entry.uses -= 1
        entry.used_ms = now_ms

    def remove(self, entry: CallerEntry[T]) -> bool:
        """Remove clients; False when they were removed before."""
        if self._entries.get(entry.fingerprint) is not entry:
            return False
        del self._entries[entry.fingerprint]
        return True

    def remove_expired(self, now_ms: int, now_s: float) -> list[CallerEntry[T]]:
        """Remove and return the clients that were idle for too long, or whose token has ended; not those in use."""
        expired = [
            entry
            for entry in self._entries.values()
            if not entry.uses and (now_ms - entry.used_ms >= self._idle_ms or entry.credentials.has_expired(now_s))
        ]
        for entry in expired:
            self.remove(entry)
        return expired

    def remove_all(self) -> list[CallerEntry[T]]:
        """Remove and return all clients, when the proxy stops."""
        entries = list(self._entries.values())
        self._entries.clear()
        return entries
