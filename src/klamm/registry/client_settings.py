"""Settings of a registry's client, by the names of Confluent's serializers."""

from __future__ import annotations

import base64
import ssl
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from klamm.model.errors import ConfigError

_PREFIX: Final = "schema.registry."
_ALIASES: Final = {"url": "schema.registry.url"}
_SETTINGS: Final = (
    "schema.registry.url",
    "basic.auth.user.info",
    "bearer.auth.token",
    "bearer.auth.token.file",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "request.timeout.ms",
    "max.retries",
    "cache.capacity",
    "cache.latest.ttl.sec",
)
# As long as Confluent's client in Python waits, tries again and caches.
_TIMEOUT_MS: Final = 30_000
_RETRIES: Final = 3
_CACHE_CAPACITY: Final = 10_000
_LATEST_TTL_S: Final = 300.0


class RegistrySettings(NamedTuple):
    """Addresses and credentials of a registry, and the limits of its client. Hashable: clients are shared by it."""

    urls: tuple[str, ...]
    basic: str | None = None
    token: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = None
    timeout_s: float = _TIMEOUT_MS / 1000
    retries: int = _RETRIES
    cache_capacity: int = _CACHE_CAPACITY
    latest_ttl_s: float = _LATEST_TTL_S
    token_file: str | None = None
    """A file with a token, which is read for each request: tokens expire, and what renews them replaces the file."""

    @property
    def has_login(self) -> bool:
        """Whether requests have credentials; a certificate is one of the connection."""
        return not (self.basic is None and self.token is None and self.token_file is None)

    def authorization(self) -> str | None:
        """Return the header with the credentials; ConfigError if the file of the token cannot be read."""
        if self.basic is not None:
            return "Basic " + base64.b64encode(self.basic.encode()).decode()
        token = self.token if self.token_file is None else _read_token(self.token_file)
        return None if token is None else f"Bearer {token}"

    def tls_context(self) -> ssl.SSLContext:
        """Return the context of HTTPS connections."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, self.key_password)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigError(f"the TLS files of the registry's client cannot be read: {error}") from None
        return context


def parse_settings(registry: str | Mapping[str, Any]) -> RegistrySettings:
    """Parse a URL, or the settings that Confluent's serializers take, with or without the prefix schema.registry."""
    given = {"schema.registry.url": registry} if isinstance(registry, str) else registry
    options = {_setting_name(name): value for name, value in given.items() if value is not None}
    urls, user = _parse_urls(str(options.get("schema.registry.url", "")))
    if options.get("ssl.key.location") and not options.get("ssl.certificate.location"):
        raise ConfigError("ssl.key.location is the key of a certificate: set ssl.certificate.location too")
    return RegistrySettings(
        urls,
        options.get("basic.auth.user.info") or user,
        options.get("bearer.auth.token"),
        options.get("ssl.ca.location"),
        options.get("ssl.certificate.location"),
        options.get("ssl.key.location"),
        options.get("ssl.key.password"),
        _number(options, "request.timeout.ms", _TIMEOUT_MS, 1) / 1000,
        int(_number(options, "max.retries", _RETRIES, 0)),
        int(_number(options, "cache.capacity", _CACHE_CAPACITY, 1)),
        _number(options, "cache.latest.ttl.sec", _LATEST_TTL_S, 0),
        options.get("bearer.auth.token.file"),
    )


def _read_token(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file of the registry's token cannot be read: {error}") from None
    if not token or not token.isprintable():
        raise ConfigError(f"{path} has no token for the registry")
    return token


def _setting_name(name: str) -> str:
    # Java's serializers take the same settings with the prefix.
    for candidate in (_ALIASES.get(name, name), name.removeprefix(_PREFIX)):
        if candidate in _SETTINGS:
            return candidate
    raise ConfigError(f"{name} is not a registry setting; there are {', '.join(_SETTINGS)}")


def _parse_urls(addresses: str) -> tuple[tuple[str, ...], str | None]:
    """Return the URLs without credentials, and those of the first that has some."""
    urls: list[str] = []
    user = None
    for address in filter(None, (part.strip() for part in addresses.split(","))):
        parts = urllib.parse.urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            break
        if parts.username is not None:
            credentials, _, _ = parts.netloc.rpartition("@")
            user = user or urllib.parse.unquote(credentials)
        # Without the credentials: urllib takes none from a URL, and errors show it.
        urls.append(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/"))
    else:
        if urls:
            return tuple(urls), user
    raise ConfigError("schema.registry.url names the registry: http://host:8081")


def _number(options: Mapping[str, Any], name: str, default: float, least: float) -> float:
    value = options.get(name, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}={value!r} is not a number") from None
    if not number >= least:
        raise ConfigError(f"{name}={value!r} is less than {least:g}")
    return number
