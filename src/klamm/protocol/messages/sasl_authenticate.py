"""SaslAuthenticate, v0-2: carry the tokens of the chosen SASL mechanism.

v1 session lifetime · v2 flexible
"""

from klamm.protocol.schema import blob, int16, int64, message, string, wire


@message(api_key=36, versions=(0, 2), flexible=2)
class SaslAuthenticateRequest:
    """Bring the client's next token."""

    auth_bytes: bytes = wire(blob)


@message(api_key=36, versions=(0, 2), flexible=2)
class SaslAuthenticateResponse:
    """The server's next token, or why the client is refused."""

    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
    auth_bytes: bytes = wire(blob)
    # 0: the client need not authenticate again (KIP-368).
    session_lifetime_ms: int = wire(int64, since=1)
