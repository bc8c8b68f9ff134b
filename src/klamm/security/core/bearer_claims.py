"""The claims of a bearer token: who it identifies, until when, and for whom it was issued. Pure.

A token is a JSON Web Token (RFC 7519): header, claims and signature in base64url. What is checked here is the form and
the claims; `klamm.security.token_signatures` verifies signatures.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

TOKEN_CHARACTERS_MAX: Final = 32 * 1024
"""More than identity providers issue; a peer that is not logged in must not make the broker parse more."""

_TIME_MAX: Final = 253_402_300_799
"""The last second of the year 9999: later times do not fit the milliseconds of a session."""

_PART: Final = re.compile(r"[-_a-zA-Z0-9]*")


class InvalidToken(Exception):
    """A token that does not identify a user; the text is for the log, the peer gets `response`."""

    def __init__(self, reason: str, scope: str = "") -> None:
        super().__init__(reason)
        status = "insufficient_scope" if scope else "invalid_token"
        self.response = f'{{"status":"{status}"' + (f', "scope":"{scope}"' if scope else "") + "}"
        """The error of RFC 7628 as Kafka writes it."""


@dataclass(frozen=True, slots=True)
class BearerIdentity:
    """Who a token identifies, and until when."""

    subject: str
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class TokenParts:
    """A token taken apart; nothing of it is verified yet."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any]
    signature: bytes

    @property
    def algorithm(self) -> str:
        """The signature algorithm that the header names."""
        return str(self.header.get("alg", ""))

    @property
    def key_id(self) -> str | None:
        """The id of the key that the header names."""
        value = self.header.get("kid")
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """What the claims of a token must say."""

    subject_claim: str = "sub"
    scope_claim: str = "scope"
    audiences: tuple[str, ...] = ()
    """A token must name one of them; empty for any."""
    issuer: str | None = None
    clock_skew_s: float = 30.0
    requires_issue_time: bool = True
    """Whether a token without iat is refused."""
    required_scopes: tuple[str, ...] = ()


def split_token(token: str) -> TokenParts:
    """Take a token apart; InvalidToken if it is not three parts of base64url with JSON objects in the first two."""
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise InvalidToken(f"the token has more than {TOKEN_CHARACTERS_MAX} characters")
    parts = token.split(".")
    if len(parts) != 3:
        raise InvalidToken(f"the token has {len(parts)} parts, not 3")
    header, claims = (_parse_object(part, name) for part, name in zip(parts[:2], ("header", "claims"), strict=True))
    return TokenParts(header, claims, _decode(parts[2], "signature"))


def check_claims(claims: Mapping[str, Any], rules: ClaimRules, now_s: float) -> BearerIdentity:
    """Return who a token identifies; InvalidToken names the claim that is missing or wrong."""
    expires_at = _read_time(claims, "exp", required=True)
    assert expires_at is not None
    # The skew widens both ends: clocks of the provider and the broker differ.
    if now_s - rules.clock_skew_s >= expires_at:
        raise InvalidToken(f"the token has expired (exp {expires_at:.0f})")
    issued_at = _read_time(claims, "iat", required=rules.requires_issue_time)
    if issued_at is not None and issued_at > expires_at:
        raise InvalidToken("the token was issued after it expires (iat)")
    if issued_at is not None and issued_at > now_s + rules.clock_skew_s:
        raise InvalidToken(f"the token is issued in the future (iat {issued_at:.0f})")
    not_before = _read_time(claims, "nbf", required=False)
    if not_before is not None and not_before > expires_at:
        raise InvalidToken("the token expires before it is valid (nbf)")
    if not_before is not None and not_before > now_s + rules.clock_skew_s:
        raise InvalidToken(f"the token is not valid yet (nbf {not_before:.0f})")
    _check_parties(claims, rules)
    subject = claims.get(rules.subject_claim)
    if not isinstance(subject, str) or not subject.strip():
        raise InvalidToken(f"the token has no subject (claim {rules.subject_claim})")
    # Last, because its refusal names the scopes to the peer: only for a token that is valid otherwise.
    scopes = _read_scopes(claims, rules.scope_claim)
    missing = [scope for scope in rules.required_scopes if scope not in scopes]
    if missing:
        raise InvalidToken(f"the token lacks scope {' '.join(missing)}", " ".join(rules.required_scopes))
    return BearerIdentity(subject.strip(), int(expires_at * 1000))


def check_unsecured(token: str, rules: ClaimRules, now_s: float) -> BearerIdentity:
    """Return who a token without signature claims to be; such a token proves nothing."""
    parts = split_token(token)
    if parts.algorithm != "none" or parts.signature:
        raise InvalidToken("the token is signed, but the listener takes unsecured tokens only")
    return check_claims(parts.claims, rules, now_s)


def read_expiry(token: str) -> float | None:
    """Return when a token expires, without any check; None if it does not say so, as opaque tokens."""
    try:
        return _read_time(split_token(token).claims, "exp", required=False)
    except InvalidToken:
        return None


def format_unsecured(claims: Mapping[str, Any]) -> str:
    """Return a token without signature."""
    parts = (json.dumps(part, separators=(",", ":")).encode() for part in ({"alg": "none"}, claims))
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + "."


def _check_parties(claims: Mapping[str, Any], rules: ClaimRules) -> None:
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise InvalidToken("the token has another issuer (iss)")
    if rules.audiences:
        audience = claims.get("aud")
        # RFC 7519, 4.1.3: a single audience may be a text.
        audiences = audience if isinstance(audience, list) else [audience]
        if not any(isinstance(name, str) and name in rules.audiences for name in audiences):
            raise InvalidToken("the token is for another audience (aud)")


def _read_scopes(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    value = claims.get(name)
    if value is None:
        return frozenset()
    # RFC 8693 has a text with spaces; several providers issue a list.
    scopes = value.split() if isinstance(value, str) else value
    if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
        raise InvalidToken(f"the scope is neither a text nor a list of texts (claim {name})")
    return frozenset(scopes)


def _read_time(claims: Mapping[str, Any], name: str, *, required: bool) -> float | None:
    value = claims.get(name)
    if value is None and not required:
        return None
    # bool is an int in Python.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _TIME_MAX:
        raise InvalidToken(f"the token has no valid time {name}")
    return float(value)


def _parse_object(part: str, name: str) -> Mapping[str, Any]:
    try:
        value = json.loads(_decode(part, name))
    # RecursionError: a few thousand opening brackets suffice.
    except (ValueError, RecursionError):
        raise InvalidToken(f"the {name} of the token is no JSON") from None
    if not isinstance(value, dict):
        raise InvalidToken(f"the {name} of the token is no JSON object")
    return value


def _decode(part: str, name: str) -> bytes:
    if not _PART.fullmatch(part):
        raise InvalidToken(f"the {name} of the token is no base64url")
    try:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except binascii.Error:
        raise InvalidToken(f"the {name} of the token is no base64url") from None
