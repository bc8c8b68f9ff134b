"""Signatures of bearer tokens, verified with an identity provider's public keys (RFC 7517, JSON Web Key Set).

PyJWT and cryptography are imported here only: they are an extra, and nodes without OAUTHBEARER do not load them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from klamm.model.errors import ConfigError
from klamm.security.core.bearer_claims import BearerIdentity, ClaimRules, InvalidToken, check_claims, split_token

try:
    import jwt
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from jwt.algorithms import ECAlgorithm, RSAAlgorithm
except ModuleNotFoundError as error:
    message = "OAUTHBEARER needs PyJWT and cryptography, which are not installed: pip install 'klamm[oauth]'"
    raise ConfigError(message) from error

KEYS_MAX: Final = 1000
"""Of one set; identity providers publish two or three."""

RSA_BITS_MIN: Final = 2048
"""RFC 7518, 3.3."""

# HS* is left out on purpose: its key is a shared secret, and a public key taken for one would sign.
_ALGORITHMS: Final = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
}
_SUPPORTED: Final = tuple(name for names in _ALGORITHMS.values() for name in names)


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key, and the algorithms that it may verify."""

    key_id: str | None
    algorithms: tuple[str, ...]
    key: "RSAPublicKey | EllipticCurvePublicKey"


@dataclass(frozen=True, slots=True)
class KeySet:
    """The public keys of an identity provider."""

    keys: tuple[PublicKey, ...] = ()

    def find(self, key_id: str | None, algorithm: str) -> PublicKey | None:
        """Return the key of a signature; without an id the only key for the algorithm, or none."""
        keys = [key for key in self.keys if algorithm in key.algorithms and key_id in (None, key.key_id)]
        return keys[0] if len(keys) == 1 or (keys and key_id is not None) else None


def parse_key_set(data: bytes) -> KeySet:
    """Parse the JSON of a key set; ValueError if it is none, or has no key for signatures."""
    try:
        entries = json.loads(data)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError('no JSON object with "keys"') from None
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise ValueError(f"keys is no list of at most {KEYS_MAX}")
    keys = tuple(key for key in map(_parse_key, entries) if key is not None)
    if not keys:
        raise ValueError("no RSA or EC key for signatures")
    return KeySet(keys)


def _parse_key(entry: Any) -> PublicKey | None:
    """Return a key; None for one that verifies no signatures here: other keys of the set are used all the same."""
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    kind, curve, own = entry.get("kty"), entry.get("crv"), entry.get("alg")
    name = kind if kind == "RSA" else curve if kind == "EC" else None
    algorithms = _ALGORITHMS.get(name, ()) if isinstance(name, str) else ()
    if own is not None:
        algorithms = tuple(algorithm for algorithm in algorithms if algorithm == own)
    if not algorithms:
        return None
    try:
        key: Any = (RSAAlgorithm if kind == "RSA" else ECAlgorithm).from_jwk(_public_part(entry))
    except (jwt.InvalidKeyError, ValueError, TypeError):
        return None
    if isinstance(key, RSAPublicKey) and key.key_size < RSA_BITS_MIN:
        return None
    key_id = entry.get("kid")
    return PublicKey(key_id if isinstance(key_id, str) else None, algorithms, key)


def _public_part(entry: Mapping[str, Any]) -> dict[str, Any]:
    # A file may contain the private parts, too, by mistake: they are not needed to verify.
    return {name: entry[name] for name in ("kty", "crv", "n", "e", "x", "y") if name in entry}


def check_signed(token: str, keys: KeySet, rules: ClaimRules, now_s: float) -> BearerIdentity:
    """Return who a signed token identifies; InvalidToken otherwise, UnknownKey if no key of the set fits."""
    parts = split_token(token)
    algorithm = parts.algorithm
    if algorithm not in _SUPPORTED:
        raise InvalidToken(f"the algorithm {algorithm[:20]!r} is not one of {', '.join(_SUPPORTED)}")
    key = keys.find(parts.key_id, algorithm)
    if key is None:
        raise UnknownKey(f"no key for {algorithm} with kid {(parts.key_id or '')[:100]!r}")
    try:
        jwt.PyJWS(algorithms=[algorithm]).decode_complete(token, key.key, algorithms=[algorithm])
    except jwt.PyJWTError as error:
        raise InvalidToken(f"the signature is not valid: {error}") from None
    return check_claims(parts.claims, rules, now_s)


class UnknownKey(InvalidToken):
    """A token whose key is not in the set: the identity provider may have a newer set."""
