"""The security of a node's listeners, and of its own connections to others, read from the configuration.

Only settings are read here, no files: what contradicts itself or is not supported is refused before the node starts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.model.broker_configs import listener_base
from klamm.model.errors import ConfigError
from klamm.security.core.jaas import LoginModule, parse_jaas
from klamm.security.core.oauthbearer import OAUTHBEARER
from klamm.security.core.plain import PLAIN, plain_users
from klamm.security.core.principal_mapping import MappingRule, parse_mapping_rules
from klamm.security.core.scram import SCRAM_MECHANISMS
from klamm.security.core.secret import Secret
from klamm.security.login import Credentials, credentials_from_jaas
from klamm.server.login.bearer_settings import SERVER_HANDLER, BearerSettings, read_bearer, read_own_bearer, simple_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.security.tls import TlsSettings
    from klamm.server.boot.config import NodeConfig
    from klamm.server.boot.listeners import Listener

MECHANISMS: Final = (PLAIN, *SCRAM_MECHANISMS, OAUTHBEARER)
"""The SASL mechanisms that listeners may enable."""

_KAFKA_MECHANISMS: Final = (*MECHANISMS, "GSSAPI")
_PREFIXED: Final = re.compile(r"listener\.name\.(?P<listener>[^.]+)\.(?P<rest>.+)")
_CLASSES: Final = (
    SERVER_HANDLER,
    "sasl.client.callback.handler.class",
    "sasl.login.class",
    "sasl.login.callback.handler.class",
)
_LISTENER_SETTINGS: Final = frozenset(
    {"connections.max.reauth.ms", "principal.builder.class", "max.connections", "max.connection.creation.rate"}
)
_DEFAULT_BUILDER: Final = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"


@dataclass(frozen=True, slots=True)
class SaslMechanism:
    """A mechanism of a listener, as configured."""

    name: str
    users: Mapping[str, Secret]
    """PLAIN: the users of the JAAS line."""
    reauthentication_ms: int
    bearer: BearerSettings | None = None
    """OAUTHBEARER: how tokens are validated."""


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """What protects a listener."""

    listener: str
    protocol: str
    tls: TlsSettings | None = None
    mapping_rules: tuple[MappingRule, ...] = ()
    mechanisms: tuple[SaslMechanism, ...] = ()


def is_listener_setting(name: str) -> bool:
    """Whether a setting has an effect with the prefix of a listener."""
    return name.startswith(("ssl.", "sasl.")) or name in _LISTENER_SETTINGS


def uses_tls(protocol: str) -> bool:
    """Whether a security protocol encrypts."""
    return protocol in ("SSL", "SASL_SSL")


def uses_sasl(protocol: str) -> bool:
    """Whether a security protocol begins with a login."""
    return protocol in ("SASL_PLAINTEXT", "SASL_SSL")


def authenticates(config: NodeConfig, listener: Listener) -> bool:
    """Whether a listener serves only clients that have proved who they are."""
    protocol = listener.security_protocol
    required = config.listener_value(listener.name, "ssl.client.auth") == "required"
    return uses_sasl(protocol) or (protocol == "SSL" and required)


def read_listener_security(config: NodeConfig, listener: Listener) -> ListenerSecurity:
    """Return what protects a listener; ConfigError names the listener."""
    protocol = listener.security_protocol
    try:
        return ListenerSecurity(
            listener.name,
            protocol,
            _read_server_tls(config, listener.name, protocol) if uses_tls(protocol) else None,
            parse_mapping_rules(str(config.listener_value(listener.name, "ssl.principal.mapping.rules") or "")),
            _read_mechanisms(config, listener.name) if uses_sasl(protocol) else (),
        )
    except ConfigError as error:
        raise ConfigError(f"listener {listener.name}: {error}") from None


def read_tls(config: NodeConfig, listener: str, protocol: str) -> TlsSettings:
    """Return the ssl.* settings of a listener."""
    # Imported late: most nodes have no TLS, and the module of Python is large.
    from klamm.security.tls import read_tls_settings  # noqa: PLC0415

    builder = config.listener_value(listener, "principal.builder.class")
    if builder != _DEFAULT_BUILDER:
        raise ConfigError(f"principal.builder.class={builder} is Java code, which Klamm does not run; remove it")

    def read(name: str) -> str | Sequence[str] | None:
        # Kafka, too, ignores it without prefix here: the clients of SASL_SSL have passwords, not certificates.
        if name == "ssl.client.auth" and protocol == "SASL_SSL" and not config.sets_for_listener(listener, name):
            return "none"
        value = config.listener_value(listener, name)
        assert isinstance(value, str | tuple | None)
        return value

    return read_tls_settings(read)


def _read_server_tls(config: NodeConfig, listener: str, protocol: str) -> TlsSettings:
    from klamm.security.tls import check_has_key  # noqa: PLC0415 - as above

    return check_has_key(read_tls(config, listener, protocol))


def _read_mechanisms(config: NodeConfig, listener: str) -> tuple[SaslMechanism, ...]:
    names = config.listener_value(listener, "sasl.enabled.mechanisms")
    assert isinstance(names, tuple)
    if not names:
        raise ConfigError("sasl.enabled.mechanisms is empty; write e.g. SCRAM-SHA-512")
    mechanisms = []
    for name in names:
        if name not in MECHANISMS:
            raise ConfigError(
                f"sasl.enabled.mechanisms has {name}, which Klamm does not support; write one or more of"
                f" {', '.join(MECHANISMS)}"
            )
        _check_classes(config, listener, name)
        reauthentication_ms = config.listener_value(listener, "connections.max.reauth.ms", name)
        assert isinstance(reauthentication_ms, int)
        users = plain_users(_read_plain_module(config, listener)) if name == PLAIN else {}
        bearer = read_bearer(config, listener, read_module(config, listener, name)) if name == OAUTHBEARER else None
        mechanisms.append(SaslMechanism(name, users, reauthentication_ms, bearer))
    return tuple(mechanisms)


def _check_classes(config: NodeConfig, listener: str, mechanism: str) -> None:
    for setting in _CLASSES:
        value = simple_name(config.listener_value(listener, setting, mechanism))
        # One setting may name the handler of OAUTHBEARER for all mechanisms of the listener: others do not use it.
        if value and not value.startswith("OAuthBearer"):
            raise ConfigError(f"{setting} names Java code, which Klamm does not run; remove it")


def _read_plain_module(config: NodeConfig, listener: str) -> LoginModule:
    module = read_module(config, listener, PLAIN)
    if module is None:
        raise ConfigError(
            f"PLAIN needs its users; write listener.name.{listener.lower()}.plain.sasl.jaas.config="
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="PASSWORD";'
        )
    if module.class_name != "PlainLoginModule":
        raise ConfigError(f"the JAAS line of PLAIN has {module.class_name}; write PlainLoginModule")
    return module


def read_module(config: NodeConfig, listener: str, mechanism: str) -> LoginModule | None:
    """Return the JAAS line of a mechanism on a listener; None if there is none."""
    text = config.listener_value(listener, "sasl.jaas.config", mechanism)
    return parse_jaas(str(text)) if text else None


def read_own_credentials(config: NodeConfig, listener: str, setting: str) -> Credentials | None:
    """Return what this node logs in with at a listener of other nodes; `setting` names the mechanism."""
    if not uses_sasl(config.security_protocols[listener]):
        return None
    mechanism = str(config.value(setting))
    if mechanism not in MECHANISMS:
        raise ConfigError(f"{setting}={mechanism} is not supported; write one of {', '.join(MECHANISMS)}")
    if mechanism in SCRAM_MECHANISMS and setting == "sasl.mechanism.controller.protocol":
        raise ConfigError(
            f"{setting}={mechanism}: SCRAM credentials are in the metadata log, which controllers serve only once they"
            " are logged in; write PLAIN, or use SSL with ssl.client.auth=required"
        )
    where = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
    module = read_module(config, listener, mechanism)
    if mechanism == OAUTHBEARER:
        return read_own_bearer(config, listener, module)
    if module is None:
        raise ConfigError(f"this node has no user for listener {listener}; write {where} with username and password")
    return credentials_from_jaas(mechanism, module, where)


def read_outbound(config: NodeConfig, listener: str, setting: str) -> tuple[TlsSettings | None, Credentials | None]:
    """Return the TLS settings and the user with which this node connects to a listener of other nodes."""
    protocol = config.security_protocols[listener]
    tls = read_tls(config, listener, protocol) if uses_tls(protocol) else None
    return tls, read_own_credentials(config, listener, setting)


def inner_listeners(config: NodeConfig) -> dict[str, str]:
    """Return the listeners that nodes connect to each other on, and the settings that name their mechanisms."""
    listeners = {config.controller_listener_names[0]: "sasl.mechanism.controller.protocol"}
    if config.is_broker:
        listeners[config.inter_broker_listener_name] = "sasl.mechanism.inter.broker.protocol"
    return listeners


def own_host(config: NodeConfig, listener: str) -> str | None:
    """Return the host by which other nodes connect to a listener of this one; None if only the system has its name."""
    hosts = [other.host for other in config.advertised_listeners if other.name == listener]
    if listener in config.controller_listener_names:
        hosts += [voter.host for voter in config.voters if voter.node_id == config.node_id]
    hosts += [other.host for other in config.listeners if other.name == listener]
    return hosts[0] if hosts and hosts[0] not in ("", "0.0.0.0", "::") else None  # noqa: S104 - compared with


def check_prefixes(config: NodeConfig) -> None:
    """Raise ConfigError for a setting of a listener or mechanism that does not exist: it would have no effect."""
    listeners = {name.lower() for name in config.security_protocols}
    for key in config.static:
        match = _PREFIXED.fullmatch(key)
        base = listener_base(key)
        if match is None or base is None or not is_listener_setting(base):
            continue
        name, mechanism = match["listener"], match["rest"].removesuffix(base).removesuffix(".")
        if name not in listeners:
            hint = f"; write {name.lower()!r}" if name.lower() in listeners else ""
            raise ConfigError(f"{key} is a setting of listener {name!r}, which is in no listener map{hint}")
        if mechanism and mechanism.upper() not in _KAFKA_MECHANISMS:
            raise ConfigError(
                f"{key} is a setting of SASL mechanism {mechanism!r}, which does not exist;"
                f" write one of {', '.join(known.lower() for known in MECHANISMS)}"
            )


def check_security(config: NodeConfig) -> None:
    """Raise ConfigError for settings of any listener that cannot work."""
    check_prefixes(config)
    if config.static.get("security.providers"):
        raise ConfigError("security.providers names Java code, which Klamm does not run; remove it")
    for listener in config.listeners:
        read_listener_security(config, listener)
    for name, setting in inner_listeners(config).items():
        read_outbound(config, name, setting)
