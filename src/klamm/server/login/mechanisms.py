"""The SASL mechanisms of a listener: each makes the broker's side of a login."""

import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from klamm.metadata.image import MetadataImage
from klamm.model.clock import Clock
from klamm.security.core.delegation_tokens import TOKEN_ITERATIONS, has_expired, sign_token_id, token_password
from klamm.security.core.oauthbearer import BearerServer
from klamm.security.core.principal import Principal, parse_principal
from klamm.security.core.refusal import InvalidCredentials
from klamm.security.core.scram import ScramHash, ScramKeys, ScramServer, make_keys
from klamm.security.core.secret import Secret

if TYPE_CHECKING:
    from klamm.server.services import Services


class ServerMechanism(Protocol):
    """The broker's side of one login."""

    mechanism: str
    complete: bool
    user: str

    def step(self, token: bytes) -> bytes:
        """Return the answer to a token; LoginRefused or InvalidCredentials ends the login."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who has logged in, and until when the credentials are valid."""

    principal: Principal
    expires_at_ms: int | None = None
    """In the wall clock's milliseconds; None for credentials that do not expire."""


Begin = Callable[[], ServerMechanism]
Identify = Callable[[ServerMechanism], Identity]


@dataclass(frozen=True, slots=True)
class EnabledMechanism:
    """One mechanism of a listener."""

    begin: Begin
    identify: Identify
    reauthentication_ms: int = 0
    """connections.max.reauth.ms of the listener and mechanism; 0 for sessions without an end."""


class TokenCredentials:
    """The SCRAM credentials of delegation tokens, derived when a token first logs in."""

    CACHED_MAX = 10_000

    def __init__(self, secret_key: Secret | None, clock: Clock) -> None:
        self._secret_key = secret_key
        self._clock = clock
        self._salt_key = secrets.token_bytes(32)
        self._keys: dict[tuple[str, str], ScramKeys] = {}

    def find(self, image: MetadataImage, mechanism: ScramHash, token_id: str) -> ScramKeys | None:
        """Return the credential of a token; None if it does not exist, has expired, or tokens are disabled."""
        token = image.delegation_tokens.get(token_id)
        if token is None or self._secret_key is None or has_expired(token, self._clock.now_ms()):
            return None
        key = (mechanism.name, token_id)
        keys = self._keys.get(key)
        if keys is None:
            # On the loop: 2 ms, once per token and hash. Ids are random, so no peer can make the node derive others.
            password = token_password(sign_token_id(self._secret_key, token_id))
            salt = hmac.digest(self._salt_key, token_id.encode(), "sha256")[:16]
            keys = make_keys(mechanism, password, salt, TOKEN_ITERATIONS)
            if len(self._keys) >= self.CACHED_MAX:
                self._keys.pop(next(iter(self._keys)))
            self._keys[key] = keys
        return keys


def identify_scram(services: "Services", login: ServerMechanism) -> Identity:
    """Return the user, or the owner of the token that logged in; its session ends with the token."""
    assert isinstance(login, ScramServer)
    if not login.token_authentication:
        return identify_user(login)
    token = services.image.delegation_tokens.get(login.user)
    if token is None:
        raise InvalidCredentials("the delegation token was removed during the login")
    owner = parse_principal(token.owner)
    return Identity(Principal(owner.type, owner.name, token_authenticated=True), token.expiration_timestamp)


def identify_user(login: ServerMechanism) -> Identity:
    """Return the user that logged in with a password."""
    return Identity(Principal("User", login.user))


def identify_bearer(login: ServerMechanism) -> Identity:
    """Return the subject of a token; its session ends with the token."""
    assert isinstance(login, BearerServer)
    return Identity(Principal("User", login.user), login.expires_at_ms)


Mechanisms = Mapping[str, EnabledMechanism]
