"""Why a login is refused: what the peer gets to read, and what only the log gets."""

from klamm.model.errors import ErrorCode, KlammError


class LoginRefused(KlammError):
    """The peer is not who it claims to be; the text is sent to it."""

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(ErrorCode.SASL_AUTHENTICATION_FAILED, text)
        self.reason = reason or text
        """For the log; it may say more than the text."""


class InvalidCredentials(Exception):
    """A token that is malformed or proves nothing; the text is for the log, the peer gets the same one for all."""


def describe_invalid_credentials(mechanism: str, *, renewal: bool = False) -> str:
    """Return Kafka's text for every invalid token, which says nothing about the reason."""
    during = "re-authentication" if renewal else "authentication"
    return f"Authentication failed during {during} due to invalid credentials with SASL mechanism {mechanism}"
