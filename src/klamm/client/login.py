"""The sasl.* settings as credentials: Java's JAAS line, or librdkafka's user and password."""

from __future__ import annotations

from typing import Final

from klamm.client.client_settings import ClientSettings
from klamm.model.errors import ConfigError
from klamm.security.core.jaas import parse_jaas
from klamm.security.core.secret import Secret
from klamm.security.login import MECHANISMS, ClientCredentials, credentials_from_jaas

_HOW: Final = "write sasl.username and sasl.password, or sasl.jaas.config"


def client_credentials(settings: ClientSettings) -> ClientCredentials | None:
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
    if jaas:
        return credentials_from_jaas(mechanism, parse_jaas(jaas), "sasl.jaas.config")
    if not user or not password:
        raise ConfigError(f"security.protocol={protocol} needs a password; {_HOW}")
    return ClientCredentials(mechanism, user, Secret(password))
