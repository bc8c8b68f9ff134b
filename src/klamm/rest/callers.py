"""Clients with the logins of callers: the cluster verifies them, and its ACLs decide what a request may do.

A caller's first request opens clients that log in with its password (SASL/PLAIN or SCRAM) or its token (OAUTHBEARER).
Further requests share them. Logins are verified again every minute by a connection of its own, so that a changed
password counts. Idle clients are closed, and those of a token when it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.errors import AuthenticationError, KafkaError
from klamm.http.refusals import HttpRefusal
from klamm.registry.client import Registry
from klamm.registry.client_settings import RegistrySettings
from klamm.rest.clients import RestClients, RoleSettings
from klamm.rest.core.callers import (
    CallerCredentials,
    CallerEntry,
    CallerLogin,
    CallerTable,
    parse_authorization,
)
from klamm.rest.core.refusals import refusal_of
from klamm.rest.producing import RecordCounts
from klamm.security.core.principal import Principal
from klamm.telemetry import get_logger

_log = get_logger("rest")

_VERIFIED_MS: Final = 60_000
"""So long a login counts before it is verified again."""
_SWEEP_S: Final = 1.0
_LOGINS_MAX: Final = 8
"""Logins at a time, since a flood of wrong passwords must not become a flood of connections to the cluster."""
_WAITING_MAX: Final = 100
_CHALLENGES: Final = (
    ("www-authenticate", 'Basic realm="REST proxy", charset="UTF-8"'),
    ("www-authenticate", 'Bearer realm="REST proxy"'),
)

RestCaller = CallerEntry[RestClients]


class NewestToken:
    """The newest token of one subject: consumer instances outlive the token that they were created with."""

    def __init__(self, credentials: CallerCredentials) -> None:
        self._credentials = credentials

    def offer(self, credentials: CallerCredentials) -> None:
        """Use a token that the cluster has accepted, if it lasts longer."""
        if (credentials.expires_s or 0) >= (self._credentials.expires_s or 0):
            self._credentials = credentials

    def token(self) -> Any:
        """Return the token, and when it ends; the client calls this before it logs in."""
        credentials = self._credentials
        if credentials.expires_s is None:
            return credentials.secret.reveal()
        return credentials.secret.reveal(), credentials.expires_s


class CallerPool:
    """Clients by login; an HttpLogin for the application."""

    def __init__(
        self,
        login: CallerLogin,
        settings: RoleSettings,
        registry: RegistrySettings | None,
        counts: RecordCounts,
        *,
        callers_max: int,
        idle_ms: int,
    ) -> None:
        self._login = login
        self._settings = settings
        self._registry = registry
        self._counts = counts
        self.table: CallerTable[RestClients] = CallerTable(callers_max, idle_ms)
        self.refused = 0
        self._key = secrets.token_bytes(32)
        self._pending: dict[bytes, asyncio.Task[RestCaller]] = {}
        """Logins in progress; requests with the same one wait for it together."""
        self._tokens: weakref.WeakValueDictionary[Principal, NewestToken] = weakref.WeakValueDictionary()
        self._logins = asyncio.Semaphore(_LOGINS_MAX)
        self._waiting = 0
        self._sweeper: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    # HttpLogin

    async def start(self) -> None:
        """Begin to close idle clients; called on the event loop of the server."""
        self._sweeper = asyncio.create_task(self._sweep(), name="caller expiry")

    def close(self) -> None:
        """End; `stop` closes the clients."""
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def authenticate(self, headers: Mapping[str, str], peer: str, _certificate: bytes | None = None) -> Principal:
        """Return the caller that the cluster has accepted; HttpRefusal 401 without one.

        A certificate is no login there: without its key the proxy cannot present it to the cluster.
        """
        return (await self.find(headers, peer)).credentials.principal

    # Clients

    async def find(self, headers: Mapping[str, str], peer: str = "-") -> RestCaller:
        """Return the clients of a request's login, after the cluster has accepted it."""
        credentials = parse_authorization(headers.get("authorization", ""))
        if credentials is None or credentials.has_expired(time.time()):
            raise _login_refusal()
        fingerprint = credentials.fingerprint(self._key)
        caller = self.table.find(fingerprint)
        if caller is not None and _now_ms() - caller.verified_ms < _VERIFIED_MS:
            return caller
        task = self._pending.get(fingerprint)
        if task is None:
            if self._waiting >= _WAITING_MAX:
                raise HttpRefusal(429, "too many logins at the same time", (("retry-after", "1"),))
            task = asyncio.create_task(self._log_in(fingerprint, credentials, peer), name="caller login")
            self._pending[fingerprint] = task
            task.add_done_callback(partial(self._forget_login, fingerprint))
        # A client that disconnects does not end the login, for which others may wait.
        return await asyncio.shield(task)

    def _forget_login(self, fingerprint: bytes, task: asyncio.Task[RestCaller]) -> None:
        del self._pending[fingerprint]
        if not task.cancelled():
            task.exception()  # without this, asyncio would report it if the request has gone meanwhile

    async def _log_in(self, fingerprint: bytes, credentials: CallerCredentials, peer: str) -> RestCaller:
        self._waiting += 1
        try:
            async with self._logins:
                caller = self.table.find(fingerprint)
                if caller is None:
                    return await self._open(fingerprint, credentials)
                await self._verify_again(caller)
                return caller
        except AuthenticationError as error:
            self.refused += 1
            _log.warning("login refused by the cluster", peer=peer, principal=credentials.principal, error=error)
            raise _login_refusal() from None
        except KafkaError as error:
            raise refusal_of(error) from None
        finally:
            self._waiting -= 1

    async def _open(self, fingerprint: bytes, credentials: CallerCredentials) -> RestCaller:
        token = NewestToken(credentials) if credentials.is_token else None
        clients = self._make_clients(credentials, token)
        try:
            # Its own token alone, not the newest of the subject: this is what the cluster verifies.
            await clients.start()
        except BaseException:
            await clients.close()
            raise
        if token is not None:
            shared = self._tokens.setdefault(credentials.principal, token)
            shared.offer(credentials)
            clients.settings = self._settings.map(
                partial(self._login.settings, credentials=credentials, provider=shared)
            )
        now_ms = _now_ms()
        caller = RestCaller(fingerprint, credentials, clients, now_ms, now_ms)
        try:
            evicted = self.table.add(caller)
        except HttpRefusal:
            await clients.close()
            raise
        if evicted is not None:
            self._close_later(evicted)
        return caller

    def _make_clients(self, credentials: CallerCredentials, token: NewestToken | None) -> RestClients:
        settings = self._settings.map(partial(self._login.settings, credentials=credentials, provider=token))
        registry = self._registry
        # A registry with a login of the proxy's own keeps it.
        if registry is not None and not registry.has_login:
            secret = credentials.secret.reveal()
            registry = (
                registry._replace(token=secret)
                if credentials.is_token
                else registry._replace(basic=f"{credentials.user}:{secret}")
            )
        return RestClients(settings, None if registry is None else Registry(registry), self._counts)

    async def _verify_again(self, caller: RestCaller) -> None:
        """Log in once more, on a connection of its own: those that are open were verified when they were opened."""
        probe = AsyncAdmin(
            self._login.settings(self._settings.admin, caller.credentials, NewestToken(caller.credentials))
        )
        try:
            await probe.start()
        except AuthenticationError:
            if self.table.remove(caller):
                self._close_later(caller)
            raise
        finally:
            await probe.close()
        caller.verified_ms = _now_ms()

    async def acquire(self, headers: Mapping[str, str], peer: str) -> RestCaller:
        """Return the clients of a request's login, and keep them open until `release`."""
        caller = await self.find(headers, peer)
        if caller.clients.closed:
            # Other callers needed the place before this request got its turn.
            caller = await self.find(headers, peer)
        if caller.clients.closed:
            raise HttpRefusal(42901, "too many callers use the proxy")
        self.table.begin_use(caller)
        return caller

    def release(self, caller: RestCaller) -> None:
        """Let the idle time begin; clients that were removed meanwhile are closed."""
        self.table.end_use(caller, _now_ms())
        if not caller.uses and self.table.find(caller.fingerprint) is not caller:
            self._close_later(caller)

    def _close_later(self, caller: RestCaller) -> None:
        # Clients in use are closed by the last request that uses them.
        if caller.uses or caller.clients.closed:
            return
        task = asyncio.create_task(caller.clients.close())
        caller.clients.closed = True
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            for caller in self.table.remove_expired(_now_ms(), time.time()):
                _log.info("clients of a caller closed", principal=caller.credentials.principal)
                self._close_later(caller)

    async def stop(self) -> None:
        """Close all clients."""
        self.close()
        for task in [*self._pending.values()]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        entries = self.table.remove_all()
        await asyncio.gather(*(entry.clients.close() for entry in entries), *self._closing, return_exceptions=True)


def _login_refusal() -> HttpRefusal:
    return HttpRefusal(40101, "Unauthorized", _CHALLENGES)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
