"""All broker settings of Kafka 4.3, joined from their families, and their synonyms.

A setting may be set for one listener (`listener.name.<listener>.<setting>`); `broker_key` finds its definition.
Settings of earlier Kafka versions and of plugins have no definition: they are accepted without effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from klamm.model.broker_catalog.general import GENERAL
from klamm.model.broker_catalog.groups import GROUPS
from klamm.model.broker_catalog.logs import LOGS
from klamm.model.broker_catalog.network import NETWORK
from klamm.model.broker_catalog.oauth import OAUTH
from klamm.model.broker_catalog.operations import OPERATIONS
from klamm.model.broker_catalog.own import OWN
from klamm.model.broker_catalog.quorum import QUORUM
from klamm.model.broker_catalog.remote import REMOTE
from klamm.model.broker_catalog.replication import REPLICATION
from klamm.model.broker_catalog.sasl import SASL
from klamm.model.broker_catalog.share import SHARE
from klamm.model.broker_catalog.tls import TLS
from klamm.model.broker_catalog.transactions import TRANSACTIONS
from klamm.model.config import ConfigDef, ConfigKey, SettingValue, UpdateMode
from klamm.model.config_rules import check_overrides
from klamm.model.errors import ConfigError

FAMILIES: Final[dict[str, tuple[ConfigKey, ...]]] = {
    "General": GENERAL,
    "Network": NETWORK,
    "Logs": LOGS,
    "Replication": REPLICATION,
    "Quorum": QUORUM,
    "Groups": GROUPS,
    "Share groups": SHARE,
    "Transactions": TRANSACTIONS,
    "Metrics and quotas": OPERATIONS,
    "Remote storage": REMOTE,
    "TLS": TLS,
    "SASL": SASL,
    "OAuth": OAUTH,
    "Klamm's own": OWN,
}

BROKER_CONFIGS: Final = ConfigDef("broker setting", (key for family in FAMILIES.values() for key in family))

DYNAMIC_ONLY: Final = frozenset(
    {
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
"""Settings that can only be set dynamically; a properties file must not contain them."""

_ROLL = ("log.roll.ms", "log.roll.hours")
_JITTER = ("log.roll.jitter.ms", "log.roll.jitter.hours")
_RETENTION = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")

BROKER_SYNONYMS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(_ROLL, _ROLL),
    **dict.fromkeys(_JITTER, _JITTER),
    **dict.fromkeys(_RETENTION, _RETENTION),
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
}
"""Settings that mean the same in other units; of those that are set, the first one in the tuple wins."""

_LISTENER: Final = re.compile(r"listener\.name\.[^.]+\.(.+)")
# Behind a listener prefix these have the name of a SASL mechanism too: listener.name.a.plain.sasl.jaas.config.
_PER_MECHANISM: Final = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)
_STORES: Final = ("ssl.keystore.", "ssl.truststore.", "ssl.key.password")
_FREE_PREFIXES: Final = ("config.providers.", "rlmm.config.", "rsm.config.", "zookeeper.")
# Settings that Kafka 4 removed or never defined (authorizers read their own): a file that has them must still start.
_KNOWN_BY_NAME: Final = frozenset(
    {
        "allow.everyone.if.no.acl.found",
        "broker.id.generation.enable",
        "control.plane.listener.name",
        "controlled.shutdown.max.retries",
        "controlled.shutdown.retry.backoff.ms",
        "eligible.leader.replicas.enable",
        "group.coordinator.new.enable",
        "group.share.enable",
        "group.share.max.groups",
        "inter.broker.protocol.version",
        "leader.imbalance.per.broker.percentage",
        "log.message.downconversion.enable",
        "log.message.format.version",
        "log.message.timestamp.difference.max.ms",
        "offsets.topic.compression.type",
        # Properties of the JVM in Kafka.
        "org.apache.kafka.sasl.oauthbearer.allowed.files",
        "org.apache.kafka.sasl.oauthbearer.allowed.urls",
        "password.encoder.cipher.algorithm",
        "password.encoder.iterations",
        "password.encoder.key.length",
        "password.encoder.keyfactory.algorithm",
        "password.encoder.old.secret",
        "password.encoder.secret",
        "reserved.broker.max.id",
        "super.users",
    }
)


def listener_base(name: str) -> str | None:
    """The setting behind a listener prefix; None when `name` has no such prefix."""
    match = _LISTENER.fullmatch(name)
    if match is None:
        return None
    base = match.group(1)
    # All of OAuth's: other mechanisms have none.
    if base.startswith("oauthbearer.sasl."):
        return base.removeprefix("oauthbearer.")
    return next((setting for setting in _PER_MECHANISM if base.endswith(setting)), base)


def is_store_setting(name: str) -> bool:
    """Whether a name is that of a key or trust store of a listener, which may change while the node runs."""
    return (listener_base(name) or "").startswith(_STORES)


def broker_key(name: str) -> ConfigKey | None:
    """The definition of a name, with or without listener prefix; None when there is none."""
    return BROKER_CONFIGS.keys.get(name) or BROKER_CONFIGS.keys.get(listener_base(name) or "")


def known_by_name(name: str) -> bool:
    """Whether a name belongs to a plugin or an earlier Kafka: accepted without effect."""
    return name in _KNOWN_BY_NAME or name.startswith(_FREE_PREFIXES)


def explain_unknown(name: str) -> str:
    """Return the error text for an unknown name, with the nearest one, also behind the prefix of a listener."""
    import difflib  # noqa: PLC0415 - slow to import, and needed for a mistyped name only

    base = listener_base(name)
    near = [*difflib.get_close_matches(name, _KNOWN_BY_NAME, n=1, cutoff=0.8)]
    if base is None and not near:
        return BROKER_CONFIGS.unknown(name)
    nearest = BROKER_CONFIGS.nearest(base) if base is not None else None
    if nearest is not None:
        assert base is not None
        near = [name.removesuffix(base) + nearest]
    return f"{name} is not a broker setting" + (f"; did you mean {near[0]}?" if near else "")


def broker_synonyms(name: str) -> tuple[str, ...]:
    """The names under which a setting may be set, the most specific first."""
    base = listener_base(name)
    if base is not None:
        return (name, base)
    return BROKER_SYNONYMS.get(name, (name,))


def read_broker_values(texts: Mapping[str, str]) -> dict[str, SettingValue]:
    """The values of broker settings; those of plugins and invalid ones are left out."""
    values: dict[str, SettingValue] = {}
    for name, text in texts.items():
        key = broker_key(name)
        if key is not None:
            try:
                values[name] = key.parse(text)
            except ConfigError:
                continue  # as if it were not set: the next layer or the default holds
    return values


def validate_dynamic_broker_config(name: str, value: str | None, *, per_broker: bool) -> None:
    """Raise ConfigError for a change that a running broker cannot apply; `value` None checks only the name.

    Cluster-wide settings may be set for one broker too; per-broker ones never for all.
    """
    key = broker_key(name)
    if key is None:
        raise ConfigError(explain_unknown(name))
    if key.update_mode is UpdateMode.READ_ONLY:
        raise ConfigError(f"{name} cannot change while the broker runs; set it in the properties file and restart")
    # A change must not be accepted that has no effect; of these settings Klamm changes the stores of listeners.
    if key.name.startswith(("ssl.", "sasl.", "principal.builder.")):
        if not key.name.startswith(_STORES):
            raise ConfigError(f"{name} cannot change while the broker runs; set it in the properties file and restart")
        if name in BROKER_CONFIGS:
            raise ConfigError(f"{name} can be changed of one listener only; write listener.name.<listener>.{name}")
    if key.update_mode is UpdateMode.PER_BROKER and not per_broker:
        raise ConfigError(f"{name} cannot be set for all brokers at once; name the broker it is for")
    if value is not None:
        key.parse(value)
        if name == "max.connections.per.ip.overrides":
            check_overrides(value)
