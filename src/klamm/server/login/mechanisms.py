"""The SASL mechanisms of a listener: each makes the broker's side of a login."""

import hashlib
import heapq
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from klamm.metadata.image import MetadataImage
from klamm.model.clock import Clock
from klamm.protocol.messages.metadata_records import UserScramCredentialRecord
from klamm.security.core.delegation_tokens import TOKEN_ITERATIONS, has_expired, sign_token_id, token_password
from klamm.security.core.oauthbearer import BearerServer
from klamm.security.core.principal import Principal, parse_principal
from klamm.security.core.refusal import InvalidCredentials
from klamm.security.core.scram import (
    ITERATIONS_MIN,
    SALT_BYTES,
    DecoyShape,
    ScramHash,
    ScramKeys,
    ScramServer,
    decoy_keys,
    make_keys,
)
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


TOKEN_SALT_BYTES: Final = 16

BeginMechanism = Callable[[], ServerMechanism]
Identify = Callable[[ServerMechanism], Identity]


@dataclass(frozen=True, slots=True)
class EnabledMechanism:
    """One mechanism of a listener."""

    begin: BeginMechanism
    identify: Identify
    reauthentication_ms: int = 0
    """connections.max.reauth.ms of the listener and mechanism; 0 for sessions without an end."""


class ScramDecoys:
    """Credentials for users that do not exist, which look like those of users that do.

    They depend on credentials of the metadata log alone, so that every node makes the same ones, also after a restart.
    No single user knows the secret: it is made of the keys of three.
    """

    KEYS: Final = 3
    SHAPES_MAX: Final = 64
    NEW_USER: Final = DecoyShape(SALT_BYTES, ITERATIONS_MIN)
    TOKEN: Final = DecoyShape(TOKEN_SALT_BYTES, TOKEN_ITERATIONS)

    def __init__(self) -> None:
        self._process_secret = secrets.token_bytes(32)
        self._scram: Mapping[tuple[int, str], UserScramCredentialRecord] | None = None
        self._secrets: dict[int, bytes] = {}
        self._shapes: dict[int, list[DecoyShape]] = {}

    def make(self, image: MetadataImage, mechanism: ScramHash, user: str, is_token: bool) -> ScramKeys:
        """Return the credential of an unknown user, or token."""
        if is_token:  # the salts of tokens are of this process, too
            return decoy_keys(mechanism, user, self._process_secret, (self.TOKEN,))
        if image.scram is not self._scram:
            self._follow(image.scram)
        secret = self._secrets.get(mechanism.number, self._process_secret)
        return decoy_keys(mechanism, user, secret, self._shapes.get(mechanism.number, (self.NEW_USER,)))

    def _follow(self, scram: Mapping[tuple[int, str], UserScramCredentialRecord]) -> None:
        self._scram = scram
        self._secrets, self._shapes = {}, {}
        for number in {number for number, _ in scram}:
            users = heapq.nsmallest(self.SHAPES_MAX, (name for mechanism, name in scram if mechanism == number))
            records = [scram[number, name] for name in users]
            self._secrets[number] = hashlib.sha256(
                b"".join(record.stored_key for record in records[: self.KEYS])
            ).digest()
            self._shapes[number] = [DecoyShape(len(record.salt), record.iterations) for record in records]


class TokenCredentials:
    """The SCRAM credentials of delegation tokens, derived when a token first logs in."""

    CACHED_MAX = 10_000

    def __init__(self, secret_key: Secret | None, clock: Clock) -> None:
        self._secret_key = secret_key
        self._clock = clock
        self._salt_key = secrets.token_bytes(32)
        self._keys: dict[tuple[str, str], ScramKeys] = {}

    @property
    def enabled(self) -> bool:
        """Whether tokens can log in to this node."""
        return self._secret_key is not None

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
            salt = hmac.digest(self._salt_key, token_id.encode(), "sha256")[:TOKEN_SALT_BYTES]
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
