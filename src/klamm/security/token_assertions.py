"""Assertions: signed statements that a client exchanges for a token instead of a secret (RFC 7523, KIP-1139).

An assertion is read from a file that another program keeps up to date, or made here: the claims of a template file,
those of the settings, and the times, in this order; later ones replace earlier ones.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.model.errors import ConfigError
from klamm.security.core.secret import Secret

GRANT_TYPE: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ALGORITHMS: Final = ("RS256", "ES256")


@dataclass(frozen=True, slots=True)
class AssertionFile:
    """A file with a signed assertion."""

    path: str

    def __call__(self) -> str:
        """Read it: the program that writes it may have replaced it."""
        from klamm.security.http import read_bounded  # noqa: PLC0415 - slow to import, and most logins have passwords

        return read_bounded(self.path).decode().strip()


@dataclass(frozen=True, slots=True)
class AssertionSigner:
    """Makes assertions and signs them with a private key."""

    key_path: str
    passphrase: Secret | None = None
    algorithm: str = "RS256"
    claims: Mapping[str, str] = field(default_factory=dict)
    """iss, sub and aud, as far as they are set."""
    lifetime_s: int = 300
    valid_before_s: int = 60
    """The time before now from which it is valid: the clock of the provider may be behind."""
    has_id: bool = False
    template_path: str | None = None

    def __call__(self) -> str:
        """Sign a new one. Key and template are read each time, so that a changed file needs no restart."""
        try:
            import jwt  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError(
                "assertions of OAUTHBEARER need PyJWT; install it with: pip install 'klamm[oauth]'"
            ) from None
        header, claims = self._read_template()
        now = int(time.time())
        claims |= self.claims
        claims |= {"iat": now, "exp": now + self.lifetime_s, "nbf": now - self.valid_before_s}
        if self.has_id:
            import uuid  # noqa: PLC0415 - slow to import, and commands read the names of this module

            claims["jti"] = str(uuid.uuid4())
        signed: str = jwt.encode(claims, self._load_key(), self.algorithm, headers=header or None)
        return signed

    def _read_template(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the header and the claims of the template file: {"header": {...}, "payload": {...}}."""
        if self.template_path is None:
            return {}, {}
        from klamm.security.http import read_bounded  # noqa: PLC0415 - as above

        try:
            template = json.loads(read_bounded(self.template_path))
            return dict(template.get("header") or {}), dict(template.get("payload") or {})
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise ConfigError(
                f"{self.template_path} is no template of an assertion; write JSON with the objects header and payload"
            ) from None

    def _load_key(self) -> Any:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415 - an extra

        from klamm.security.http import read_bounded  # noqa: PLC0415 - as above

        password = None if self.passphrase is None else self.passphrase.reveal().encode()
        try:
            return load_pem_private_key(read_bounded(self.key_path), password)
        except (ValueError, TypeError) as error:
            # OpenSSL's texts name no file, and none of them has the password.
            raise ConfigError(f"{self.key_path} cannot be read as a private key in PEM: {error}") from None
