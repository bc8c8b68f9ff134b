"""The sasl.* settings as credentials: Java's JAAS line, librdkafka's user and password, or a source of tokens."""

from __future__ import annotations

from typing import Any, Final

from klamm.client.client_settings import ClientSettings
from klamm.model.errors import ConfigError
from klamm.security.core.jaas import parse_jaas
from klamm.security.core.oauthbearer import OAUTHBEARER
from klamm.security.core.secret import Secret
from klamm.security.login import MECHANISMS, ClientCredentials, Credentials, credentials_from_jaas

_HOW: Final = "write sasl.username and sasl.password, or sasl.jaas.config"


def client_credentials(settings: ClientSettings) -> Credentials | None:
    """Return what the client logs in with; None without SASL. ConfigError for settings that are missing."""
    protocol = settings.text("security.protocol").upper()
    if not protocol.startswith("SASL_"):
        return None
    mechanism = settings.text("sasl.mechanism") or settings.text("sasl.mechanisms")
    if not mechanism:
        raise ConfigError(f"security.protocol={protocol} needs sasl.mechanism; write one of {', '.join(MECHANISMS)}")
    mechanism = mechanism.upper()
    if mechanism not in MECHANISMS:
        raise ConfigError(f"sasl.mechanism={mechanism} is not supported; write one of {', '.join(MECHANISMS)}")
    jaas, user, password = (settings.text(f"sasl.{name}") for name in ("jaas.config", "username", "password"))
    if jaas and (user or password):
        raise ConfigError("sasl.jaas.config and sasl.username say the same thing; write one of them")
    if mechanism == OAUTHBEARER:
        return _bearer_credentials(settings, jaas)
    for name in ("sasl.login.class", "sasl.login.callback.handler.class"):
        if settings.text(name):
            raise ConfigError(f"{name} names Java code, which {mechanism} does not need; remove it")
    if jaas:
        return credentials_from_jaas(mechanism, parse_jaas(jaas), "sasl.jaas.config")
    if not user or not password:
        raise ConfigError(f"security.protocol={protocol} needs a password; {_HOW}")
    return ClientCredentials(mechanism, user, Secret(password))


def _bearer_credentials(settings: ClientSettings, jaas: str) -> Credentials:
    from klamm.security.bearer_credentials import read_bearer_credentials  # noqa: PLC0415 - only with OAUTHBEARER
    from klamm.security.bearer_tokens import BearerCredentials  # noqa: PLC0415

    provider = settings["sasl.oauth.token.provider"]
    if provider is not None:
        return BearerCredentials(_token_function(provider))
    return read_bearer_credentials(settings.by_name.get, parse_jaas(jaas) if jaas else None)


def _token_function(provider: Any) -> Any:
    # Objects with a method: kafka-python and aiokafka have the same setting.
    function = getattr(provider, "token", provider)
    if not callable(function):
        raise ConfigError("sasl.oauth.token.provider is a function, or an object with a method token")
    return function
