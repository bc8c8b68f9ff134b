"""The authenticated identity of a connection, as Kafka's KafkaPrincipal."""

from typing import Final, NamedTuple


class Principal(NamedTuple):
    """A principal: its type, "User" for all that Kafka's principal builder makes, and its name."""

    type: str
    name: str
    token_authenticated: bool = False
    """Whether it logged in with a delegation token, which may not create or renew tokens."""

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


def parse_principal(text: str) -> Principal:
    """Parse "User:alice"; ValueError for text without a type or a name."""
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise ValueError(f"{text!r} is no principal; write TYPE:NAME, e.g. User:alice")
    return Principal(kind, name)


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
"""The principal of PLAINTEXT connections, and of TLS connections without a client certificate."""
