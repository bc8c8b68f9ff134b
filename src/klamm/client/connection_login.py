"""The login of one connection to a SASL listener, and its renewal before it expires (KIP-368)."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from klamm.client.errors import KafkaError, error_for
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import BY_NAME, Api
from klamm.protocol.codec import encode_into
from klamm.security.core.refusal import LoginRefused
from klamm.security.login import Credentials, explain_refusal, log_in

if TYPE_CHECKING:
    from klamm.client.connection import Connection

HeldRequest = tuple["asyncio.Future[Any]", Api, int, list[Any], float | None, bool]
"""The arguments of `Connection.send_now`."""


class ConnectionLogin:
    """Logs a connection in and keeps it logged in; requests wait while the login is renewed."""

    def __init__(self, connection: Connection, credentials: Credentials) -> None:
        self._connection = connection
        self._credentials = credentials
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None
        self.held: list[HeldRequest] | None = None
        """Requests that wait until the login is renewed; None while it is not being renewed."""

    async def log_in(self) -> None:
        """Log in; AuthenticationError if the broker refuses."""
        connection, credentials = self._connection, self._credentials
        try:
            lifetime_ms = await log_in(self._ask, credentials, connection.versions)
        except LoginRefused as error:
            text = explain_refusal(connection.address, credentials, error)
            raise error_for(ErrorCode.SASL_AUTHENTICATION_FAILED, text) from None
        if lifetime_ms:
            # Java's clients, too, renew at 85 to 95 %, at random: those that began together do not renew together.
            part = random.uniform(0.85, 0.95)  # noqa: S311 - no secret
            self._timer = self._loop.call_later(part * lifetime_ms / 1000, self._begin_renewal)

    def close(self) -> None:
        """Renew the login no more; requests that wait for it fail."""
        if self._timer is not None:
            self._timer.cancel()

    def _begin_renewal(self) -> None:
        if self._connection.closed is None:
            self._renewing = self._loop.create_task(self._renew(), name=f"klamm login {self._connection.address}")

    async def _renew(self) -> None:
        # Other requests are held: one among the tokens would make the broker close the connection.
        held: list[HeldRequest] = []
        self.held = held
        try:
            await self.log_in()
        except (KafkaError, OSError) as error:
            self._connection.fail(error)
        finally:
            self.held = None
        for request in held:
            self._connection.send_now(*request)

    def _ask(self, request: Any, version: int) -> asyncio.Future[Any]:
        pieces: list[Any] = []
        encode_into(request, version, pieces)
        future: asyncio.Future[Any] = self._loop.create_future()
        api = BY_NAME[type(request).__name__.removesuffix("Request")]
        self._connection.send_now(future, api, version, pieces)
        return future
