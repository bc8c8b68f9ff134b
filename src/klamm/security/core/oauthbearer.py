"""SASL OAUTHBEARER (RFC 7628): the messages that carry a bearer token."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from klamm.security.core.refusal import InvalidCredentials
from klamm.security.core.scram import escape_name, unescape_name
from klamm.security.core.secret import Secret

OAUTHBEARER: Final = "OAUTHBEARER"
SEPARATOR: Final = "\x01"
INVALID_TOKEN: Final = b'{"status":"invalid_token"}'
"""What a broker answers to a token that it refuses; the client then sends one separator, and gets the error."""

_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authorization>{_NAME}))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTH: Final = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_.a-zA-Z0-9]+)")


@dataclass(frozen=True, slots=True)
class BearerMessage:
    """A client's message: its token, the user it wants to be, and extensions."""

    token: Secret
    authorization_id: str = ""
    extensions: Mapping[str, str] | None = None


def format_bearer(message: BearerMessage) -> bytes:
    """Return the bytes of a client's message."""
    authorization = f"a={escape_name(message.authorization_id)}" if message.authorization_id else ""
    pairs = "".join(f"{key}={value}{SEPARATOR}" for key, value in (message.extensions or {}).items())
    return f"n,{authorization},{SEPARATOR}auth=Bearer {message.token.reveal()}{SEPARATOR}{pairs}{SEPARATOR}".encode()


def parse_bearer(data: bytes) -> BearerMessage:
    """Parse a client's message; InvalidCredentials if it is none."""
    match = _FIRST.fullmatch(data.decode("latin-1"))
    if match is None:
        raise InvalidCredentials("invalid OAUTHBEARER client message")
    pairs = dict(pair.split("=", 1) for pair in match["pairs"].split(SEPARATOR) if pair)
    auth = _AUTH.fullmatch(pairs.pop("auth", ""))
    if auth is None or auth["scheme"].lower() != "bearer":
        raise InvalidCredentials("the OAUTHBEARER message has no bearer token")
    return BearerMessage(Secret(auth["token"]), unescape_name(match["authorization"] or ""), pairs)
