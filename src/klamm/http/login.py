"""Logins of HTTP requests: names and passwords of a file (basic), signed tokens (bearer), client certificates."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from klamm.http.authfile import AuthFile, FileUser, fingerprint, parse_auth_file
from klamm.http.refusals import HttpRefusal
from klamm.model.errors import ConfigError
from klamm.security.core.bearer_claims import ClaimRules, InvalidToken
from klamm.security.core.distinguished_name import subject_name
from klamm.security.core.principal import Principal
from klamm.security.core.principal_mapping import MappingRule, NoMatchingRule, map_subject
from klamm.security.core.secret import Secret
from klamm.telemetry import get_logger

if TYPE_CHECKING:
    from klamm.security.key_store import KeyStore

_log = get_logger("http")

_CHECK_S: Final = 1.0
"""How often the file is looked at for changes."""
_REMEMBERED_MAX: Final = 1000
_HASHES_MAX: Final = 2
"""Passwords hashed at a time: each takes 16 MB and a core for tens of milliseconds."""
_WAITING_MAX: Final = 100
_UNKNOWN_USER: Final = FileUser("", "scrypt", "no user", Secret("none"))


class LoginScheme(Protocol):
    """One way of logging in."""

    name: str
    """Of the Authorization header, in lower case."""
    challenge: str
    """For the WWW-Authenticate header."""

    async def authenticate(self, credentials: str) -> Principal | None:
        """Return the principal; None for credentials that are not valid."""


class HttpLogins:
    """The logins of a service: a request has to pass one of the schemes, or to come with a certificate.

    A request with credentials is that of their principal, also over a connection with a certificate: a proxy in front
    has one of its own.
    """

    def __init__(
        self,
        schemes: Sequence[LoginScheme],
        key_store: KeyStore | None = None,
        certificates: CertificateLogin | None = None,
    ) -> None:
        self._schemes = {scheme.name: scheme for scheme in schemes}
        self._challenges = tuple(("www-authenticate", scheme.challenge) for scheme in schemes)
        self._key_store = key_store
        self._certificates = certificates

    async def start(self) -> None:
        """Fetch keys, if tokens are verified, and wait for the first answer."""
        if self._key_store is not None:
            self._key_store.start(asyncio.get_running_loop())
            await self._key_store.wait_for_first_load()

    def close(self) -> None:
        """Fetch no more."""
        if self._key_store is not None:
            self._key_store.close()

    async def authenticate(self, headers: Mapping[str, str], peer: str, certificate: bytes | None = None) -> Principal:
        """Return the principal; HttpRefusal 401 without valid credentials."""
        name, _, credentials = headers.get("authorization", "").partition(" ")
        if not name and certificate is not None and self._certificates is not None:
            try:
                return self._certificates.authenticate(certificate)
            except (NoMatchingRule, ValueError) as error:
                _log.warning("login refused", peer=peer, scheme="certificate", reason=error)
                raise HttpRefusal(401, "Unauthorized", self._challenges) from None
        scheme = self._schemes.get(name.lower())
        principal = await scheme.authenticate(credentials.strip()) if scheme is not None else None
        if principal is None:
            if scheme is not None:
                _log.warning("login refused", peer=peer, scheme=scheme.name)
            raise HttpRefusal(401, "Unauthorized", self._challenges)
        return principal


class CertificateLogin:
    """Subjects of client certificates, which the listener has verified, as users (ssl.principal.mapping.rules)."""

    def __init__(self, rules: Sequence[MappingRule]) -> None:
        self._rules = rules
        self._known: dict[bytes, Principal] = {}
        """By certificate: reading one costs more than most requests, and a rule tens of milliseconds at worst."""

    def authenticate(self, certificate: bytes) -> Principal:
        """Return the principal; NoMatchingRule or ValueError if its subject has no name."""
        principal = self._known.get(certificate)
        if principal is None:
            principal = Principal("User", map_subject(self._rules, subject_name(certificate)))
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            self._known[certificate] = principal
        return principal


class WatchedAuthFile:
    """The newest contents of a file that could be parsed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp = (0, 0, 0)
        self._checked_at = time.monotonic()
        self.generation = 0
        """Changes with the contents."""
        self.contents = AuthFile()
        self._load()

    def current(self) -> AuthFile:
        """Return the contents; a file that has become invalid leaves the old ones in force."""
        now = time.monotonic()
        if now - self._checked_at >= _CHECK_S:
            self._checked_at = now
            try:
                self._load()
            except ConfigError as error:
                _log.error("authfile not loaded", path=self._path, error=error)
        return self.contents

    def _load(self) -> None:
        try:
            status = os.stat(self._path)
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._stamp:
                return
            with open(self._path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self._path} cannot be read: {getattr(error, 'strerror', error)}") from None
        # Before the parse: an invalid file is reported once, not every second.
        self._stamp = stamp
        self.contents = parse_auth_file(text, self._path)
        self.generation += 1


class BasicLogin:
    """Names and passwords of a file (RFC 7617)."""

    name = "basic"

    def __init__(self, file: WatchedAuthFile, realm: str) -> None:
        self._file = file
        self.challenge = f'Basic realm="{realm}", charset="UTF-8"'
        self._hashes = asyncio.Semaphore(_HASHES_MAX)
        self._waiting = 0
        self._key = secrets.token_bytes(32)
        self._remembered: dict[bytes, int] = {}
        """Fingerprints of verified passwords, by the generation of the file: a hash per request would cost 50 ms."""

    async def authenticate(self, credentials: str) -> Principal | None:
        """Verify a name and password."""
        try:
            user, colon, password = base64.b64decode(credentials, validate=True).decode().partition(":")
        except ValueError:
            return None
        if not colon or not user:
            return None
        contents, generation = self._file.current(), self._file.generation
        mark = fingerprint(self._key, user, password)
        if self._remembered.get(mark) != generation:
            if not await self._verify(contents.users.get(user, _UNKNOWN_USER), password):
                return None
            if len(self._remembered) >= _REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[mark] = generation
        return Principal("User", user)

    async def _verify(self, user: FileUser, password: str) -> bool:
        # A flood of wrong passwords must not queue without end, nor take the threads of other work.
        if self._waiting >= _WAITING_MAX:
            raise HttpRefusal(429, "too many logins at the same time", (("retry-after", "1"),))
        self._waiting += 1
        try:
            async with self._hashes:
                return await asyncio.to_thread(user.verify, password)
        finally:
            self._waiting -= 1


class BearerLogin:
    """Tokens signed by an identity provider (RFC 6750)."""

    name = "bearer"

    def __init__(self, key_store: KeyStore, rules: ClaimRules, realm: str) -> None:
        self._key_store = key_store
        self._rules = rules
        self.challenge = f'Bearer realm="{realm}"'

    async def authenticate(self, credentials: str) -> Principal | None:
        """Verify a token."""
        try:
            identity = self._key_store.validate(self._rules, Secret(credentials))
        except InvalidToken as error:
            _log.info("token refused", reason=error)
            return None
        return Principal("User", identity.subject)
