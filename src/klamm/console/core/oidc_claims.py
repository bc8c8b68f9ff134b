"""What a login by OpenID Connect sends and checks, without I/O: the request, the ID token's claims, its roles."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from klamm.console.core.roles import ConsoleRole
from klamm.security.core.bearer_claims import InvalidToken

_NAME_CHARS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class ProviderEndpoints:
    """Addresses of a provider, from its discovery document."""

    authorization: str
    token: str
    keys: str


@dataclass(frozen=True, slots=True)
class PendingLogin:
    """A login that was sent to the provider and did not come back yet."""

    state: str
    nonce: str
    verifier: str
    target: str
    """The page that was wanted."""
    began_s: float


def parse_endpoints(document: Any, issuer: str) -> ProviderEndpoints:
    """Return the addresses of a discovery document; ValueError for one that is of another issuer or incomplete."""
    if not isinstance(document, Mapping) or document.get("issuer") != issuer:
        raise ValueError(f"the discovery document is not of {issuer}")
    addresses = []
    for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
        address = document.get(name)
        # A provider with HTTPS whose endpoints have none would send codes and secrets in the clear.
        if not isinstance(address, str) or not address.startswith(f"{urlsplit(issuer).scheme}://"):
            raise ValueError(f"the discovery document has no valid {name}")
        addresses.append(address)
    return ProviderEndpoints(*addresses)


def authorization_url(
    endpoint: str, pending: PendingLogin, client_id: str, redirect_url: str, scopes: Iterable[str]
) -> str:
    """Return where the browser is sent to log in."""
    fields = {
        "response_type": "code",
        "client_id": client_id,
        "redirect_uri": redirect_url,
        "scope": " ".join(scopes),
        "state": pending.state,
        "nonce": pending.nonce,
        "code_challenge": make_challenge(pending.verifier),
        "code_challenge_method": "S256",
    }
    return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(fields)}"


def make_challenge(verifier: str) -> str:
    """Return the challenge of a code verifier (RFC 7636, 4.2)."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")


def check_login_claims(claims: Mapping[str, Any], client_id: str, nonce: str) -> None:
    """Check what is in an ID token only (OpenID Connect Core, 3.1.3.7); InvalidToken otherwise."""
    if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
        raise InvalidToken("the token is of another login (nonce)")
    audience, party = claims.get("aud"), claims.get("azp")
    if party is not None and party != client_id:
        raise InvalidToken("the token was issued to another client (azp)")
    if isinstance(audience, list) and len(audience) > 1 and party is None:
        raise InvalidToken("the token has several audiences and names no authorized party (azp)")


def name_of(claims: Mapping[str, Any], claim: str) -> str:
    """Return the name of a user: of the claim, or the subject where the provider does not send it."""
    name = claims.get(claim)
    if not isinstance(name, str) or not name.strip():
        name = str(claims["sub"])
    # For pages, logs and the audit: no line breaks.
    return " ".join(name.split())[:_NAME_CHARS_MAX]


def roles_of(
    claims: Mapping[str, Any],
    claim: str,
    by_value: Mapping[str, tuple[ConsoleRole, ...]],
    default: tuple[ConsoleRole, ...],
) -> tuple[ConsoleRole, ...]:
    """Return the roles of a user: those of the values of a claim, such as groups, beside those that all users have."""
    value: Any = claims
    # `realm_access.roles` is a path, as Keycloak has it; a claim whose name has dots is found as it is.
    for part in [claim] if claim in claims else claim.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    values = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    roles = {role.name: role for role in default}
    for group in values:
        for role in by_value.get(group, ()) if isinstance(group, str) else ():
            roles[role.name] = role
    return tuple(roles.values())
