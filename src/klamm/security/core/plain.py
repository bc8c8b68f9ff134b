"""SASL PLAIN (RFC 4616): user and password in one token, which only TLS protects."""

from collections.abc import Mapping
from typing import Final

from klamm.security.core.jaas import LoginModule
from klamm.security.core.refusal import InvalidCredentials, LoginRefused
from klamm.security.core.secret import Secret

PLAIN: Final = "PLAIN"
_USER: Final = "user_"
_NO_USER: Final = Secret("")


def plain_users(module: LoginModule) -> dict[str, Secret]:
    """Return the users of a PlainLoginModule: its options user_NAME=PASSWORD."""
    return {name.removeprefix(_USER): secret for name, secret in module.options.items() if name.startswith(_USER)}


def plain_token(user: str, password: Secret) -> bytes:
    """Return the token that logs a user in."""
    return f"\0{user}\0{password.reveal()}".encode()


class PlainServer:
    """The broker's side of one login; there is one token and no answer to it."""

    mechanism = PLAIN

    def __init__(self, users: Mapping[str, Secret]) -> None:
        self._users = users
        self.user = ""
        """The user, once `step` has returned."""
        self.complete = False

    def step(self, token: bytes) -> bytes:
        """Check the token; LoginRefused or InvalidCredentials if it does not prove a user."""
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise InvalidCredentials("the PLAIN token is not UTF-8") from None
        if len(parts) != 3:
            raise InvalidCredentials(f"the PLAIN token has {len(parts)} parts, not 3")
        authorization_id, user, password = parts
        if not user:
            raise LoginRefused("Authentication failed: username not specified")
        if not password:
            raise LoginRefused("Authentication failed: password not specified")
        # Unknown users take the same comparison: the time must not tell whether a user exists.
        expected = self._users.get(user, _NO_USER)
        if not expected.equals(password) or user not in self._users:
            raise LoginRefused("Authentication failed: Invalid username or password")
        # CVE-2017-12610: a client could name any other user here and become it.
        if authorization_id not in ("", user):
            raise LoginRefused(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.user, self.complete = user, True
        return b""
