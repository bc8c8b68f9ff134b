"""Delegation tokens (KIP-48): who may have, renew and describe one, until when, and its HMAC. Pure."""

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from klamm.security.core.principal import Principal
from klamm.security.core.secret import Secret

TOKEN_ITERATIONS: Final = 4096
"""Of the SCRAM credentials of a token; Kafka's clients accept no fewer."""


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """delegation.token.*"""

    secret_key: Secret | None = None
    """None disables tokens."""
    max_lifetime_ms: int = 604_800_000
    renewal_ms: int = 86_400_000
    """delegation.token.expiry.time.ms: the lifetime until the first renewal, and from one to the next."""


class StoredToken(Protocol):
    """A token as the metadata log has it."""

    owner: str
    requester: str
    renewers: list[str]
    issue_timestamp: int
    max_timestamp: int
    expiration_timestamp: int
    token_id: str


def sign_token_id(secret_key: Secret, token_id: str) -> bytes:
    """Return the HMAC of a token, which is its password; every node with the key computes the same."""
    return hmac.digest(secret_key.reveal().encode(), token_id.encode(), "sha512")


def token_password(token_hmac: bytes) -> Secret:
    """Return the password of a SCRAM login with a token."""
    return Secret(base64.b64encode(token_hmac).decode())


def find_by_hmac(tokens: Mapping[str, StoredToken], secret_key: Secret, token_hmac: bytes) -> StoredToken | None:
    """Return the token that an HMAC belongs to."""
    # Requests carry the HMAC alone, and it is not stored: a copy of the metadata log must be no login.
    for token in tokens.values():
        if hmac.compare_digest(sign_token_id(secret_key, token.token_id), token_hmac):
            return token
    return None


def has_expired(token: StoredToken, now_ms: int) -> bool:
    """Whether a token is no longer valid; the log may contain it until the controller removes it."""
    return token.max_timestamp < now_ms or token.expiration_timestamp < now_ms


def may_renew(token: StoredToken, principal: Principal) -> bool:
    """Whether a principal may renew and expire a token: its owner and its renewers."""
    name = str(principal)
    return name == token.owner or name in token.renewers


def concerns(token: StoredToken, principal: str) -> bool:
    """Whether a principal sees a token without further rights: its owner, requester and renewers."""
    return principal in (token.owner, token.requester) or principal in token.renewers
