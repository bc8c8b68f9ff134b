"""A login as a client: what a client, or a node, sends after connecting to a SASL listener."""

import secrets
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from klamm.model.errors import ConfigError, ErrorCode
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest
from klamm.security.bearer_tokens import BearerCredentials, TokenUnavailable
from klamm.security.core.jaas import LoginModule
from klamm.security.core.oauthbearer import OAUTHBEARER
from klamm.security.core.plain import PLAIN, plain_token
from klamm.security.core.refusal import InvalidCredentials, LoginRefused
from klamm.security.core.scram import SCRAM_MECHANISMS, ScramClient
from klamm.security.core.secret import Secret

HANDSHAKE_VERSION: Final = 1
AUTHENTICATE_VERSION: Final = 2
SASL_AUTHENTICATE: Final = 36
MECHANISMS: Final = (PLAIN, *SCRAM_MECHANISMS, OAUTHBEARER)
"""What a client can log in with."""

Ask = Callable[[Any, int], Awaitable[Any]]
"""Sends a request of a version and returns its response."""


class ClientMechanism(Protocol):
    """The client's side of one login."""

    complete: bool

    def first(self) -> bytes:
        """Return the first token."""

    def step(self, answer: bytes) -> bytes:
        """Return the token that follows an answer."""


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """What a client logs in with."""

    mechanism: str
    user: str
    password: Secret
    token_authentication: bool = False
    """Whether user and password are the id and the HMAC of a delegation token."""

    def begin(self) -> ClientMechanism:
        """Begin a login."""
        if self.mechanism == PLAIN:
            return PlainClient(self.user, self.password)
        return ScramClient(
            SCRAM_MECHANISMS[self.mechanism],
            self.user,
            self.password,
            nonce=secrets.token_urlsafe(24),
            token_authentication=self.token_authentication,
        )


Credentials = ClientCredentials | BearerCredentials
"""What a client logs in with: a password, or a token."""


class PlainClient:
    """The client's side of PLAIN: one token, answered by nothing."""

    def __init__(self, user: str, password: Secret) -> None:
        self._token = plain_token(user, password)
        self.complete = False

    def first(self) -> bytes:
        """Return the only token."""
        self.complete = True
        return self._token

    def step(self, answer: bytes) -> bytes:
        """Accept the end of the login."""
        return answer[:0]


def credentials_from_jaas(mechanism: str, module: LoginModule, where: str) -> ClientCredentials:
    """Return the credentials of a JAAS line; `where` names its setting in errors."""
    expected = {PLAIN: "PlainLoginModule"}.get(mechanism, "ScramLoginModule")
    if mechanism not in MECHANISMS or mechanism == OAUTHBEARER:
        raise ConfigError(f"SASL mechanism {mechanism} is not supported; use one of {', '.join(MECHANISMS)}")
    if module.class_name != expected:
        raise ConfigError(f"{where} has {module.class_name}; {mechanism} needs {expected}")
    user, password = module.option("username"), module.option("password")
    if not user or not password:
        raise ConfigError(f"{where} has no username or no password")
    token = module.option("tokenauth")
    return ClientCredentials(mechanism, user.reveal(), password, token is not None and token.reveal().lower() == "true")


def explain_refusal(address: str, credentials: Credentials, error: LoginRefused) -> str:
    """Return the text for a login that failed, at the broker or before it."""
    if isinstance(error, TokenUnavailable):
        return str(error)
    return f"{address} refuses the login as {credentials.user}: {error}"


def login_steps(
    credentials: Credentials, versions: Mapping[int, tuple[int, int]] | None = None
) -> Generator[tuple[Any, int], Any, int]:
    """Yield the requests of a login with their versions, take the responses, and return the lifetime of the login.

    The lifetime is in milliseconds, 0 for no limit. LoginRefused if the broker refuses.
    """
    mechanism = credentials.mechanism
    handshake = yield SaslHandshakeRequest(mechanism=mechanism), HANDSHAKE_VERSION
    if handshake.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(handshake.mechanisms) or "none"
        raise LoginRefused(f"SASL mechanism {mechanism} is not enabled; the broker has {offered}")
    if handshake.error_code:
        raise LoginRefused(f"the listener begins no login ({ErrorCode(handshake.error_code).name})")
    version = min((versions or {}).get(SASL_AUTHENTICATE, (0, AUTHENTICATE_VERSION))[1], AUTHENTICATE_VERSION)
    login = credentials.begin()
    token = login.first()
    try:
        while True:
            answer = yield SaslAuthenticateRequest(auth_bytes=token), version
            if answer.error_code:
                raise LoginRefused(answer.error_message or ErrorCode(answer.error_code).name)
            token = login.step(bytes(answer.auth_bytes))
            if login.complete:
                return int(answer.session_lifetime_ms)
    except InvalidCredentials as error:
        raise LoginRefused(f"the broker does not prove its own identity: {error}") from None


async def log_in(ask: Ask, credentials: Credentials, versions: Mapping[int, tuple[int, int]] | None = None) -> int:
    """Log in with `ask`, and return the lifetime of the login in milliseconds, 0 for no limit."""
    import asyncio  # noqa: PLC0415 - commands log in over blocking sockets, and importing it is slow

    loop = asyncio.get_running_loop()
    if isinstance(credentials, BearerCredentials):
        await credentials.refresh()
    steps = login_steps(credentials, versions)
    question, lifetime_ms = _advance(steps, None)
    while question is not None:
        response = await ask(*question)
        # In a thread: salting a password takes milliseconds, in which the loop would serve no other connection.
        question, lifetime_ms = await loop.run_in_executor(None, _advance, steps, response)
    return lifetime_ms


def log_in_blocking(
    ask: Callable[[Any, int], Any],
    credentials: Credentials,
    versions: Mapping[int, tuple[int, int]] | None = None,
) -> int:
    """`log_in` for a connection that blocks."""
    if isinstance(credentials, BearerCredentials):
        credentials.refresh_blocking()
    steps = login_steps(credentials, versions)
    question, lifetime_ms = _advance(steps, None)
    while question is not None:
        question, lifetime_ms = _advance(steps, ask(*question))
    return lifetime_ms


def _advance(steps: Generator[tuple[Any, int], Any, int], response: Any) -> tuple[tuple[Any, int] | None, int]:
    # Not StopIteration itself: a future cannot carry it.
    try:
        return steps.send(response), 0
    except StopIteration as end:
        return None, int(end.value)
