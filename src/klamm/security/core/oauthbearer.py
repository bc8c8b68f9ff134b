"""SASL OAUTHBEARER (RFC 7628): the messages that carry a bearer token, and both sides of a login."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from klamm.security.core.bearer_claims import BearerIdentity, InvalidToken
from klamm.security.core.refusal import InvalidCredentials, LoginRefused
from klamm.security.core.scram import escape_name, unescape_name
from klamm.security.core.secret import Secret

OAUTHBEARER: Final = "OAUTHBEARER"
SEPARATOR: Final = "\x01"

_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authorization>{_NAME}))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTH: Final = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_.~+/=a-zA-Z0-9]+)")
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")


@dataclass(frozen=True, slots=True)
class BearerMessage:
    """A client's message: its token, the user it acts as, and extensions."""

    token: Secret
    authorization_id: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict)


def format_bearer(message: BearerMessage) -> bytes:
    """Return the bytes of a client's message."""
    authorization = f"a={escape_name(message.authorization_id)}" if message.authorization_id else ""
    pairs = "".join(f"{key}={value}{SEPARATOR}" for key, value in message.extensions.items())
    return f"n,{authorization},{SEPARATOR}auth=Bearer {message.token.reveal()}{SEPARATOR}{pairs}{SEPARATOR}".encode()


def parse_bearer(data: bytes) -> BearerMessage:
    """Parse a client's message; InvalidCredentials if it is none."""
    # Latin-1 takes every byte; what is not ASCII is then refused by the pattern, in one place.
    match = _FIRST.fullmatch(data.decode("latin-1"))
    if match is None:
        raise InvalidCredentials("invalid OAUTHBEARER client message")
    pairs = dict(pair.split("=", 1) for pair in match["pairs"].split(SEPARATOR) if pair)
    auth = _AUTH.fullmatch(pairs.pop("auth", ""))
    if auth is None or auth["scheme"].lower() != "bearer":
        raise InvalidCredentials("the OAUTHBEARER message has no bearer token")
    return BearerMessage(Secret(auth["token"]), unescape_name(match["authorization"] or ""), pairs)


def check_extension(name: str, value: str) -> None:
    """Raise ValueError for an extension that no message can carry."""
    if not _EXTENSION_NAME.fullmatch(name) or name == "auth":
        raise ValueError(f"{name!r} is no name of an extension: write letters only, and not auth")
    if not _EXTENSION_VALUE.fullmatch(value):
        raise ValueError(f"the value of extension {name} is empty or has characters that a message cannot carry")


Validate = Callable[[Secret], BearerIdentity]
"""Returns who a token identifies; InvalidToken if it is refused."""


class BearerServer:
    """The broker's side of one login: the token, and one more message if it is refused."""

    mechanism = OAUTHBEARER

    def __init__(self, validate: Validate) -> None:
        self._validate = validate
        self._refusal: InvalidToken | None = None
        self.user = ""
        """The subject of the token, once `complete`."""
        self.expires_at_ms: int | None = None
        self.complete = False

    def step(self, token: bytes) -> bytes:
        """Return nothing for a valid token; for an invalid one the reason, which the client acknowledges."""
        if self._refusal is not None:
            # RFC 7628, 3.2.3: the client answers the error with one separator. Kafka takes another token here, too;
            # then one connection could try tokens without the delay of a refusal.
            raise LoginRefused(self._refusal.response, str(self._refusal))
        message = parse_bearer(token)
        try:
            identity = self._validate(message.token)
        except InvalidToken as error:
            self._refusal = error
            return error.response.encode()
        # CVE-2017-12610, here for tokens: a client could name any other user and become it.
        if message.authorization_id not in ("", identity.subject):
            raise LoginRefused(
                f"Authentication failed: Client requested an authorization id ({message.authorization_id}) that is"
                f" different from the token's principal name ({identity.subject})"
            )
        self.user, self.expires_at_ms, self.complete = identity.subject, identity.expires_at_ms, True
        return b""


class BearerClient:
    """The client's side of one login."""

    def __init__(self, token: Secret, extensions: Mapping[str, str] | None = None) -> None:
        self._message = format_bearer(BearerMessage(token, extensions=extensions or {}))
        self.complete = False

    def first(self) -> bytes:
        """Return the message with the token."""
        return self._message

    def step(self, answer: bytes) -> bytes:
        """Accept the end of the login, or acknowledge an error, which the broker then repeats as its refusal."""
        if answer:
            return SEPARATOR.encode()
        self.complete = True
        return b""
