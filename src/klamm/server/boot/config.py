"""The configuration of a node: Kafka's server.properties, parsed, checked and typed.

Neither files (except the configuration itself) nor sockets are opened here. Contradictions are refused before the node
starts, with a message that says what to write. Configs that have no effect in Klamm are collected in `ignored`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from klamm.model.broker_configs import BROKER_CONFIGS, DYNAMIC_ONLY, broker_key, explain_unknown, known_by_name
from klamm.model.config import SettingValue
from klamm.model.config_describe import with_node_id
from klamm.model.errors import ConfigError
from klamm.model.properties import Property, format_properties, parse_properties
from klamm.server.boot.config_checks import (
    AUTHORIZER_SETTINGS,
    check_authorizer,
    check_listeners,
    check_quorum,
    check_relations,
    check_replica_selector,
    check_roles,
    check_safe_defaults,
    file_warnings,
    relation_warnings,
    security_warnings,
)
from klamm.server.boot.listener_security import check_security, is_listener_setting
from klamm.server.boot.listeners import (
    Listener,
    VoterAddress,
    check_ports,
    parse_listeners,
    parse_metrics_listeners,
    parse_protocol_map,
    parse_voter_address,
)
from klamm.server.login.bearer_settings import ALLOWED_URLS

EMBEDDED_PORT: Final = 9092


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """All configs of a node. Those without an attribute of their own are read with `value(name)`."""

    static: Mapping[str, str] = field(repr=False)
    """The unparsed values of file and overrides, secrets included; DescribeConfigs calls them static."""
    node_id: int
    roles: frozenset[str]
    listeners: tuple[Listener, ...]
    advertised_listeners: tuple[Listener, ...]
    """Only configured ones; without one, clients get the address they connected to."""
    security_protocols: Mapping[str, str]
    """The security protocol of every listener name, also of those that only other nodes have."""
    controller_listener_names: tuple[str, ...]
    inter_broker_listener_name: str
    voters: tuple[VoterAddress, ...]
    """Fixed voters; of a bootstrap address that is this node's own controller, this node; else empty."""
    bootstrap_servers: tuple[str, ...]
    log_dirs: tuple[str, ...]
    metadata_log_dir: str
    metrics_listeners: tuple[Listener, ...] = ()
    ignored: tuple[str, ...] = ()
    """Configs that were accepted and have no effect."""
    warnings: tuple[str, ...] = ()
    """Log messages about configs that are valid but may not be intended."""
    _values: dict[str, SettingValue] = field(default_factory=dict, repr=False)

    def value(self, name: str) -> SettingValue:
        """Return the typed value of a broker config, or its default."""
        if name in self._values:
            return self._values[name]
        return BROKER_CONFIGS.default(name)

    @property
    def values(self) -> Mapping[str, SettingValue]:
        """The typed values of all configs that are set, also of single listeners."""
        return self._values

    def with_values(self, values: Mapping[str, SettingValue]) -> NodeConfig:
        """Return the configuration with dynamic values over those of the file."""
        return replace(self, _values={**self._values, **values})

    def integer(self, name: str) -> int:
        """Return the value of an integer config."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is not an integer config with a value")
        return value

    def flag(self, name: str) -> bool:
        """Return the value of a boolean config."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise TypeError(f"{name} is not a boolean config")
        return value

    def text(self, name: str) -> str | None:
        """Return the value of a string config."""
        value = self.value(name)
        if not isinstance(value, str | None):
            raise TypeError(f"{name} is not a string config")
        return value

    def listener_value(self, listener: str, name: str, mechanism: str = "") -> SettingValue:
        """Return a setting of a listener: of the mechanism on it, of the listener, of all listeners, or the default."""
        prefix = f"listener.name.{listener.lower()}."
        names = (f"{prefix}{mechanism.lower()}.{name}", prefix + name) if mechanism else (prefix + name,)
        return next((self._values[key] for key in names if key in self._values), self.value(name))

    def sets_for_listener(self, listener: str, name: str) -> bool:
        """Whether a setting is configured with the prefix of the listener."""
        return f"listener.name.{listener.lower()}.{name}" in self._values

    @property
    def is_broker(self) -> bool:
        """Whether this node has the broker role."""
        return "broker" in self.roles

    @property
    def is_controller(self) -> bool:
        """Whether this node has the controller role."""
        return "controller" in self.roles

    @property
    def broker_listeners(self) -> tuple[Listener, ...]:
        """The listeners for clients and other brokers."""
        return tuple(listener for listener in self.listeners if listener.name not in self.controller_listener_names)

    @property
    def controller_listeners(self) -> tuple[Listener, ...]:
        """The listeners for the metadata quorum."""
        return tuple(listener for listener in self.listeners if listener.name in self.controller_listener_names)

    def advertises(self, name: str) -> bool:
        """Whether an advertised address is configured for a listener."""
        return any(listener.name == name for listener in self.advertised_listeners)

    @property
    def rack(self) -> str | None:
        """The rack of this broker."""
        return self.text("broker.rack")

    @property
    def num_partitions(self) -> int:
        """The partition count of topics that are created without one."""
        return self.integer("num.partitions")

    @property
    def default_replication_factor(self) -> int:
        """The replication factor of topics that are created without one."""
        return self.integer("default.replication.factor")

    @property
    def auto_create_topics_enable(self) -> bool:
        """Whether a Metadata request for an unknown topic creates it."""
        return self.flag("auto.create.topics.enable")

    @property
    def delete_topic_enable(self) -> bool:
        """Whether topics may be deleted."""
        return self.flag("delete.topic.enable")

    @property
    def fetch_max_bytes(self) -> int:
        """The largest Fetch response, whatever the client requests."""
        return self.integer("fetch.max.bytes")

    @property
    def fetch_session_slots(self) -> int:
        """The limit of cached fetch sessions."""
        return self.integer("max.incremental.fetch.session.cache.slots")


def load_config(path: str, overrides: Sequence[str] = ()) -> NodeConfig:
    """Load a properties file; `overrides`, such as num.partitions=3, take precedence over it."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        # Java's properties files are ISO 8859-1; most are written in UTF-8 all the same.
        text = data.decode("latin-1")
    config = parse_config(text, overrides, source=os.path.basename(path))
    return replace(config, warnings=(*config.warnings, *file_warnings(path, text)))


def parse_config(text: str, overrides: Sequence[str] = (), source: str = "server.properties") -> NodeConfig:
    """Parse the text of a properties file; messages call it `source`."""
    warnings: list[str] = []
    entries: dict[str, tuple[str, str]] = {}
    for entry in _parse_entries(text, source):
        if entry.key in entries:
            warnings.append(f"{entry.key} is written twice in {source}; the value at line {entry.line} counts")
        # Java's Properties keeps the last value of a repeated key, too.
        entries[entry.key] = (entry.value, f"{source} line {entry.line}")
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--override {override}: write --override key=value")
        entries[key.strip()] = (value.strip(), f"--override {key.strip()}")
    values, ignored = _parse_values(entries)
    static = {name: value for name, (value, _) in entries.items()}
    return _build_config(static, values, ignored, warnings)


def embedded_properties(data_dir: str, port: int = EMBEDDED_PORT, node_id: int = 1, host: str = "127.0.0.1") -> str:
    """Return the properties of a single node with both roles, for `klamm up`."""
    bracketed = f"[{host}]" if ":" in host else host
    return format_properties(
        {
            "process.roles": "broker,controller",
            "node.id": str(node_id),
            # No other node connects to it: any free port will do.
            "controller.quorum.voters": f"{node_id}@127.0.0.1:0",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{bracketed}:{port},CONTROLLER://127.0.0.1:0",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": data_dir,
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            # Kafka's quickstart files set it too: the default of 3 s delays every first consumer of a group.
            "group.initial.rebalance.delay.ms": "0",
        }
    )


def _parse_entries(text: str, source: str) -> Iterable[Property]:
    try:
        return parse_properties(text)
    except ConfigError as error:
        raise ConfigError(f"{source} {error}") from None


def _parse_values(entries: Mapping[str, tuple[str, str]]) -> tuple[dict[str, SettingValue], tuple[str, ...]]:
    """Return the typed values of all known configs, and the names of those without effect."""
    values: dict[str, SettingValue] = {}
    ignored = []
    for name, (text, where) in entries.items():
        key = broker_key(name)
        # Kafka's own names are accepted even where they have no effect, so that its files can be used as they are; any
        # other name is an error.
        if key is None or name in DYNAMIC_ONLY:
            if not known_by_name(name):
                raise ConfigError(f"{where}: {_explain_unknown(name)}")
            # Without an authorizer its settings have no effect.
            has_authorizer = bool(entries.get("authorizer.class.name", ("", ""))[0])
            if name != ALLOWED_URLS and not (has_authorizer and name in AUTHORIZER_SETTINGS):
                ignored.append(name)
            continue
        try:
            values[name] = key.parse(text)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        if not key.served or (name not in BROKER_CONFIGS and not is_listener_setting(key.name)):
            ignored.append(name)
    return values, tuple(ignored)


def _explain_unknown(name: str) -> str:
    if name in DYNAMIC_ONLY:
        return f"{name} can only be set on a running broker; remove it here and set it with kafka-configs"
    return explain_unknown(name)


def _build_config(
    static: Mapping[str, str], values: dict[str, SettingValue], ignored: tuple[str, ...], warnings: list[str]
) -> NodeConfig:
    # Kafka takes broker.id for node.id and the other way round, if only one of them is configured.
    for name, text in with_node_id(static).items():
        if name in ("node.id", "broker.id"):
            values[name] = BROKER_CONFIGS.parse(name, text)
    roles = check_roles(static, values)
    check_relations(values, static)
    check_replica_selector(roles, values)
    check_authorizer(static, values)
    node_id = values["node.id"]
    assert isinstance(node_id, int)

    # Kafka compares listener names in upper case.
    controllers = tuple(name.upper() for name in _read_list(values, "controller.listener.names"))
    protocols = _read_protocols(values, controllers)
    listeners = parse_listeners("listeners", _read_list(values, "listeners"), protocols)
    check_ports(listeners)
    advertised = parse_listeners("advertised.listeners", _read_list(values, "advertised.listeners"), protocols)
    inter_broker = _find_inter_broker_listener(values, protocols)
    check_listeners(roles, listeners, advertised, controllers, inter_broker)

    voters = tuple(parse_voter_address(text) for text in _read_list(values, "controller.quorum.voters"))
    bootstrap = _read_list(values, "controller.quorum.bootstrap.servers")
    check_quorum(node_id, roles, voters, bootstrap)
    # log.dirs takes precedence over log.dir, as in Kafka.
    log_dirs = tuple(os.path.abspath(path) for path in _read_list(values, "log.dirs") or _read_list(values, "log.dir"))
    metadata_dir = values.get("metadata.log.dir")
    config = NodeConfig(
        static=dict(static),
        node_id=node_id,
        roles=roles,
        listeners=listeners,
        advertised_listeners=advertised,
        security_protocols=protocols,
        controller_listener_names=controllers,
        inter_broker_listener_name=inter_broker,
        voters=voters
        or _find_own_voter(node_id, bootstrap, [listener for listener in listeners if listener.name in controllers]),
        bootstrap_servers=bootstrap,
        log_dirs=log_dirs,
        metadata_log_dir=os.path.abspath(metadata_dir) if isinstance(metadata_dir, str) else log_dirs[0],
        metrics_listeners=parse_metrics_listeners("metrics.listeners", _read_list(values, "metrics.listeners")),
        ignored=ignored,
        warnings=(*warnings, *relation_warnings(values)),
        _values=values,
    )
    check_security(config)
    check_safe_defaults(config)
    return replace(config, warnings=(*config.warnings, *security_warnings(config)))


def _read_list(values: Mapping[str, SettingValue], name: str) -> tuple[str, ...]:
    entries = values.get(name, BROKER_CONFIGS.default(name))
    return entries if isinstance(entries, tuple) else ()


def _read_protocols(values: Mapping[str, SettingValue], controllers: Sequence[str]) -> dict[str, str]:
    """Return the protocol of each listener name; controller listeners need no entry unless a map is configured."""
    configured = values.get("listener.security.protocol.map")
    protocols = parse_protocol_map(str(configured or BROKER_CONFIGS.default("listener.security.protocol.map")))
    if not configured:
        for name in controllers:
            protocols.setdefault(name, "PLAINTEXT")
    return protocols


def _find_inter_broker_listener(values: Mapping[str, SettingValue], protocols: Mapping[str, str]) -> str:
    """Return the name of the inter-broker listener: configured itself, or by its protocol."""
    # Kafka refuses both together as well, even if they agree.
    name, protocol = values.get("inter.broker.listener.name"), values.get("security.inter.broker.protocol")
    if name and protocol:
        raise ConfigError(
            "inter.broker.listener.name and security.inter.broker.protocol say the same thing; write only the first"
        )
    if not name:
        # Kafka, too, takes the listener that is named after the protocol.
        return str(protocol or "PLAINTEXT")
    if str(name).upper() not in protocols:
        raise ConfigError(
            f"inter.broker.listener.name={name} is not in listener.security.protocol.map;"
            f" write one of {', '.join(protocols)}"
        )
    return str(name).upper()


def _find_own_voter(
    node_id: int, bootstrap: Sequence[str], controllers: Sequence[Listener]
) -> tuple[VoterAddress, ...]:
    """Return this node as the only voter if the one bootstrap address is its own controller listener."""
    # Several addresses mean several controllers: their voters are those of the log.
    if len(bootstrap) != 1 or not controllers:
        return ()
    host, _, port = bootstrap[0].rpartition(":")
    own = controllers[0]
    here = own.host in ("", "0.0.0.0", "::", host) or Listener("", host, 0).loopback == own.loopback is True  # noqa: S104
    return (VoterAddress(node_id, host.strip("[]"), int(port)),) if here and int(port) == own.port else ()
