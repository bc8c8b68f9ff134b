"""The SASL mechanisms of a listener: each makes the broker's side of a login."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from klamm.security.core.oauthbearer import BearerServer
from klamm.security.core.principal import Principal


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


def identify_user(login: ServerMechanism) -> Identity:
    """Return the user that logged in with a password."""
    return Identity(Principal("User", login.user))


def identify_bearer(login: ServerMechanism) -> Identity:
    """Return the subject of a token; its session ends with the token."""
    assert isinstance(login, BearerServer)
    return Identity(Principal("User", login.user), login.expires_at_ms)


Mechanisms = Mapping[str, EnabledMechanism]
