"""Rules between the configs of a node: errors say what to write, warnings what the effect will be."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from klamm.model.broker_catalog.own import INSECURE_LISTENERS
from klamm.model.broker_configs import BROKER_CONFIGS, broker_key, listener_base
from klamm.model.config import SettingValue
from klamm.model.config_rules import check_overrides
from klamm.model.errors import ConfigError
from klamm.model.properties import parse_properties
from klamm.model.replica_selectors import LEADER, RACK_AWARE
from klamm.model.topic_names import name_complaint
from klamm.security.core.principal import parse_principal
from klamm.server.boot.listener_security import authenticates, uses_sasl, uses_tls
from klamm.server.boot.listeners import Listener, VoterAddress

if TYPE_CHECKING:
    from klamm.server.boot.config import NodeConfig

_AT_MOST: Final = (
    ("broker.heartbeat.interval.ms", "broker.session.timeout.ms"),
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("group.consumer.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms"),
    ("group.consumer.min.assignment.interval.ms", "group.consumer.assignment.interval.ms"),
    ("group.consumer.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"),
    ("group.share.min.session.timeout.ms", "group.share.max.session.timeout.ms"),
    ("group.streams.min.session.timeout.ms", "group.streams.max.session.timeout.ms"),
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
    ("replica.fetch.wait.max.ms", "replica.socket.timeout.ms"),
)
"""Pairs of which the first may not be larger than the second."""

_NOT_ZERO: Final = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
_PROVIDED: Final = re.compile(r"\$\{([A-Za-z0-9_-]+):")


def check_roles(static: Mapping[str, str], values: Mapping[str, SettingValue]) -> frozenset[str]:
    """Return the roles of this node; raises ConfigError without process.roles, as for a ZooKeeper-era file."""
    roles = values.get("process.roles")
    if not isinstance(roles, tuple):
        # Files of Kafka up to 3.x name ZooKeeper instead of roles.
        zookeeper = " (ZooKeeper is not used any more)" if "zookeeper.connect" in static else ""
        raise ConfigError(f"process.roles is missing{zookeeper}; write process.roles=broker,controller")
    if "node.id" not in values:
        raise ConfigError("node.id is missing; write a number that no other node has, e.g. node.id=1")
    if values["node.id"] != values["broker.id"]:
        raise ConfigError(
            f"node.id={values['node.id']} and broker.id={values['broker.id']} name the same thing;"
            " write the same number or leave broker.id out"
        )
    if not isinstance(values["node.id"], int) or values["node.id"] < 0:
        raise ConfigError(f"node.id={values['node.id']}: write a number of at least 0")
    if "controller.listener.names" not in values:
        raise ConfigError(
            "controller.listener.names is missing; write the name of the controllers' listener,"
            " e.g. controller.listener.names=CONTROLLER"
        )
    return frozenset(roles)


def check_listeners(
    roles: frozenset[str],
    listeners: Sequence[Listener],
    advertised: Sequence[Listener],
    controllers: Sequence[str],
    inter_broker: str,
) -> None:
    """Check that roles, listeners and advertised listeners agree."""
    names = [listener.name for listener in listeners]
    shown = ", ".join(names)
    controller_names = [name for name in names if name in controllers]
    if "controller" in roles and not controller_names:
        raise ConfigError(
            f"listeners has no controller listener (controller.listener.names={','.join(controllers)}, listeners:"
            f" {shown}); add {controllers[0]}://localhost:9093 to listeners"
        )
    if "controller" not in roles and controller_names:
        raise ConfigError(
            f"listeners has controller listener {controller_names[0]}, but process.roles has no controller;"
            f" remove {controller_names[0]} from listeners or write process.roles=broker,controller"
        )
    others = [name for name in names if name not in controllers]
    if "broker" not in roles and others:
        raise ConfigError(
            f"listeners has {others[0]}, but process.roles has no broker and so only controller listeners may be there;"
            f" remove {others[0]} or write process.roles=broker,controller"
        )
    # Metadata returns these addresses: one without a listener behind it would refuse every client.
    for listener in advertised:
        if listener.name not in names:
            raise ConfigError(
                f"advertised.listeners has {listener.name}, which listeners does not have ({shown});"
                f" add it to listeners or remove it from advertised.listeners"
            )
        if listener.host in ("", "0.0.0.0", "::"):  # noqa: S104 - refused, not bound
            raise ConfigError(
                f"advertised.listeners has {listener}, which no client can connect to;"
                " write the host name clients know this machine by"
            )
    if "broker" in roles:
        _check_inter_broker(inter_broker, others, controllers)


def _check_inter_broker(inter_broker: str, others: Sequence[str], controllers: Sequence[str]) -> None:
    if inter_broker in controllers:
        raise ConfigError(
            f"inter.broker.listener.name={inter_broker} is a controller listener; write one of {', '.join(others)}"
        )
    if inter_broker not in others:
        raise ConfigError(
            f"the listener between brokers is {inter_broker}, which listeners does not have;"
            f" write inter.broker.listener.name={others[0] if others else 'PLAINTEXT'}"
        )


def check_quorum(node_id: int, roles: frozenset[str], voters: Sequence[VoterAddress], bootstrap: Sequence[str]) -> None:
    """Check that fixed voters include this node exactly if it is a controller."""
    ids = [voter.node_id for voter in voters]
    shown = ",".join(map(str, ids))
    if not voters and not bootstrap:
        raise ConfigError(
            "the controllers are not named; write controller.quorum.voters=<id>@<host>:<port>"
            f" (for a node alone {node_id}@localhost:9093) or controller.quorum.bootstrap.servers=<host>:<port>"
        )
    if len(set(ids)) != len(ids):
        raise ConfigError(f"controller.quorum.voters names a node twice ({shown}); write every id once")
    if voters and "controller" in roles and node_id not in ids:
        raise ConfigError(
            f"node.id={node_id} is a controller but not among controller.quorum.voters ({shown});"
            f" add {node_id}@<host>:<port> to the voters or write one of their ids"
        )
    # Brokers and controllers share one space of node ids: the others would wait for the vote of a broker.
    if voters and "controller" not in roles and node_id in ids:
        raise ConfigError(
            f"node.id={node_id} is among controller.quorum.voters but process.roles has no controller;"
            " write process.roles=broker,controller or give the broker another id"
        )


def check_relations(values: Mapping[str, SettingValue], static: Mapping[str, str]) -> None:
    """Check numbers that depend on each other, and refuse values that need a config provider."""
    for small, large in _AT_MOST:
        low, high = _number(values, small), _number(values, large)
        if low > high:
            raise ConfigError(f"{small}={low} is larger than {large}={high}; write at most {high} for {small}")
    # Kafka refuses 0 as well; -1 is without limit.
    for name in _NOT_ZERO:
        if values.get(name) == 0:
            raise ConfigError(f"{name}=0 would remove everything; write at least 1, or -1 to keep it for ever")
    # -1 is valid in CreateTopics, where it stands for this default, but not for the default itself.
    if _number(values, "default.replication.factor") < 1:
        raise ConfigError("default.replication.factor must be at least 1; write default.replication.factor=1")
    check_overrides(str(values.get("max.connections.per.ip.overrides") or ""))
    if _number(values, "max.connections.per.ip") == 0 and not values.get("max.connections.per.ip.overrides"):
        raise ConfigError(
            "max.connections.per.ip=0 refuses all clients; write max.connections.per.ip.overrides for those it does not"
        )
    queued, largest = _number(values, "queued.max.request.bytes"), _number(values, "socket.request.max.bytes")
    if 0 <= queued < largest:
        raise ConfigError(
            f"queued.max.request.bytes={queued} is less than one request may have (socket.request.max.bytes={largest});"
            f" write at least {largest}, or -1 for no limit"
        )
    providers = values.get("config.providers") or ()
    for name, text in static.items():
        match = _PROVIDED.search(text)
        # Without a provider of that name Kafka takes ${...} literally.
        if match and isinstance(providers, tuple) and match.group(1) in providers:
            raise ConfigError(
                f"{name} takes its value from config provider {match.group(1)}, which Klamm does not have;"
                " write the value itself"
            )


def check_replica_selector(roles: frozenset[str], values: Mapping[str, SettingValue]) -> None:
    """Check that a broker's replica selector is one that Klamm has; a controller serves no consumers."""
    selector = values.get("replica.selector.class")
    if "broker" in roles and selector not in (None, "", LEADER, RACK_AWARE):
        raise ConfigError(
            f"replica.selector.class={selector} is a class that Klamm does not have; write {RACK_AWARE} to let"
            f" consumers read in their own rack, or {LEADER} (or nothing) to let them read from leaders"
        )


STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
AUTHORIZER_SETTINGS: Final = frozenset({"super.users", "allow.everyone.if.no.acl.found"})
"""Settings of the authorizer, which Kafka's own definitions do not list."""


def check_authorizer(static: Mapping[str, str], values: Mapping[str, SettingValue]) -> None:
    """Check that the authorizer is one that Klamm has, and its settings: a mistyped one must not open the cluster."""
    name = values.get("authorizer.class.name") or ""
    if name not in ("", STANDARD_AUTHORIZER):
        raise ConfigError(
            f"authorizer.class.name={name} is a class that Klamm does not have;"
            f" write {STANDARD_AUTHORIZER}, or nothing to allow every client everything"
        )
    for text in parse_super_users(static):
        try:
            parse_principal(text)
        except ValueError:
            raise ConfigError(
                f"super.users has {text!r}, which is no principal; write TYPE:NAME separated by semicolons,"
                " e.g. super.users=User:admin;User:broker"
            ) from None
    if static.get("allow.everyone.if.no.acl.found", "false").strip().lower() not in ("true", "false"):
        raise ConfigError("allow.everyone.if.no.acl.found: write true or false")


def parse_super_users(static: Mapping[str, str]) -> tuple[str, ...]:
    """Return the principals of super.users, which semicolons separate: names of certificates contain commas."""
    parts = (part.strip() for part in static.get("super.users", "").split(";"))
    return tuple(part for part in parts if part)


_SECURITY_FAMILIES: Final = ("ssl.", "sasl.", "security.", "delegation.token.")
_NOT_OF_LISTENERS: Final = ("authorizer.", "super.users", "allow.everyone", "klamm.", "early.start.")


def open_listeners(config: NodeConfig) -> list[Listener]:
    """Return the listeners that other machines can reach and that serve clients without authentication."""
    return [listener for listener in config.listeners if not listener.loopback and not authenticates(config, listener)]


def refuse_open_listeners(config: NodeConfig) -> None:
    """Raise ConfigError for an open listener that klamm.insecure.listeners does not name."""
    named = _named_listeners(config)
    for listener in open_listeners(config):
        if listener.name not in named:
            names = ",".join(sorted({*named, listener.name}))
            raise ConfigError(
                f"listener {listener} opens the node to other machines, and it has no authentication; write"
                f" {listener.name}://127.0.0.1:{listener.port} to serve this machine only, give it SASL_SSL in"
                f" listener.security.protocol.map, or write {INSECURE_LISTENERS}={names} if it is meant to be open"
            )


def check_safe_defaults(config: NodeConfig) -> None:
    """Raise ConfigError for names that would silently have no effect."""
    known = {listener.name for listener in config.listeners}
    for name in _named_listeners(config):
        if name not in known:
            raise ConfigError(f"{INSECURE_LISTENERS} names {name}, which is not in listeners ({', '.join(known)})")
    audit_topic = config.text("klamm.audit.topic")
    if audit_topic and (complaint := name_complaint(audit_topic)):
        raise ConfigError(f"klamm.audit.topic={audit_topic}: {complaint}")
    early = early_listeners(config)
    for name in early:
        if name not in known:
            raise ConfigError(f"early.start.listeners names {name}, which is not in listeners ({', '.join(known)})")
    for listener in config.controller_listeners:
        if listener.name not in early:
            raise ConfigError(
                f"early.start.listeners leaves out controller listener {listener.name}, without which the quorum elects"
                f" no leader; write early.start.listeners={','.join((listener.name, *early))}"
            )
    for name in config.static:
        base = listener_base(name)
        if base is not None and base.startswith(_NOT_OF_LISTENERS):
            raise ConfigError(f"{name}: {base} is a setting of the node, not of a listener; write {base}")


def security_warnings(config: NodeConfig) -> list[str]:
    """Warn of open listeners, and of security settings that have no effect."""
    warnings = [
        f"listener {listener} is open to other machines without authentication;"
        f" write {listener.name}://127.0.0.1:{listener.port} to serve this machine only"
        for listener in open_listeners(config)
    ]
    if not config.text("authorizer.class.name"):
        warnings += [
            f"{name} has no effect without authorizer.class.name: every client may do everything"
            for name in sorted((AUTHORIZER_SETTINGS | {"klamm.audit.topic"}).intersection(config.static))
        ]
    elif not parse_super_users(config.static) and not _opens_without_acls(config):
        warnings.append(
            "super.users is empty: no principal may manage ACLs until an ACL allows it Alter on the cluster; write"
            " super.users=User:NAME with the principals of the administrator and of the nodes"
        )
    protocols = [listener.security_protocol for listener in config.listeners]
    if not any(map(uses_tls, protocols)) and "ssl.keystore.location" in config.static:
        warnings.append("ssl.keystore.location has no effect: no listener has the security protocol SSL or SASL_SSL")
    client_auth = config.static.get("ssl.client.auth", "none")
    # Kafka, too, applies it to SSL listeners only, and warns of it.
    if client_auth != "none" and "SASL_SSL" in protocols and "SSL" not in protocols:
        name = next(other.name for other in config.listeners if other.security_protocol == "SASL_SSL")
        warnings.append(
            f"ssl.client.auth={client_auth} has no effect on SASL_SSL listeners; write"
            f" listener.name.{name.lower()}.ssl.client.auth={client_auth} to demand certificates there as well"
        )
    if not any(map(uses_sasl, protocols)) and "sasl.enabled.mechanisms" in config.static:
        warnings.append(
            "sasl.enabled.mechanisms has no effect: no listener has the security protocol SASL_PLAINTEXT or SASL_SSL"
        )
    return warnings + _describe_ignored(config)


def file_warnings(path: str, text: str) -> list[str]:
    """Warn of a properties file with passwords or keys that other users of the machine can read."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    keys = [key for entry in parse_properties(text) if (key := broker_key(entry.key)) is not None]
    if not mode & 0o077 or not any(key.sensitive for key in keys):
        return []
    return [f"{path} has passwords and mode {mode:o}: other users may read it; run chmod 600 {path}"]


def _opens_without_acls(config: NodeConfig) -> bool:
    return config.static.get("allow.everyone.if.no.acl.found", "false").strip().lower() == "true"


def _describe_ignored(config: NodeConfig) -> list[str]:
    ignored = [name for name in config.ignored if (listener_base(name) or name).startswith(_SECURITY_FAMILIES)]
    kerberos = [name for name in ignored if ".kerberos." in name]
    others = [name for name in ignored if name not in kerberos]
    warnings = []
    if kerberos:
        warnings.append(f"{', '.join(kerberos)}: Klamm has no Kerberos (GSSAPI), so these settings have no effect")
    if others:
        warnings.append(f"{', '.join(others)}: these security settings have no effect in Klamm")
    return warnings


def early_listeners(config: NodeConfig) -> tuple[str, ...]:
    """Return the listeners that are served before the authorizer has read the ACLs; by default the controllers'."""
    names = config.value("early.start.listeners")
    if not isinstance(names, tuple):
        return tuple(listener.name for listener in config.controller_listeners)
    return tuple(name.upper() for name in names)


def _named_listeners(config: NodeConfig) -> list[str]:
    names = config.value("klamm.insecure.listeners")
    assert isinstance(names, tuple)
    # Kafka compares listener names in upper case.
    return [name.upper() for name in names]


def relation_warnings(values: Mapping[str, SettingValue]) -> list[str]:
    """Warn of configs that are valid but make requests fail later."""
    warnings = []
    replicas, needed = _number(values, "default.replication.factor"), _number(values, "min.insync.replicas")
    if needed > replicas:
        clash = f"min.insync.replicas={needed} is larger than default.replication.factor={replicas}"
        warnings.append(f"{clash}: new topics will refuse writes with acks=all")
    if "log.dirs" not in values and "log.dir" not in values:
        folder = BROKER_CONFIGS.key("log.dir").default_text
        warnings.append(f"log.dirs is not written: data goes to {folder}, which the system may clear at any restart")
    return warnings


def _number(values: Mapping[str, SettingValue], name: str) -> int:
    value = values.get(name, BROKER_CONFIGS.default(name))
    assert isinstance(value, int)
    return value
