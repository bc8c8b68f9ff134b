"""A node's configuration: Kafka's server.properties read whole, checked, and made typed.

Nothing is touched here: no file beside the text itself, no socket. Every contradiction is refused before the node
starts, with a sentence that says what to write. Settings Klamm has no use for are kept in `ignored` to be logged once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from klamm.model.broker_configs import BROKER_CONFIGS, DYNAMIC_ONLY, broker_key, known_by_name
from klamm.model.config import Value
from klamm.model.config_describe import with_node_id
from klamm.model.errors import ConfigError
from klamm.model.properties import Property, format_properties, parse_properties
from klamm.server.boot.config_checks import (
    check_listeners,
    check_quorum,
    check_relations,
    check_replica_selector,
    check_roles,
    exposure_warnings,
    relation_warnings,
)
from klamm.server.boot.listeners import Listener, Voter, check_ports, parse_listeners, parse_protocol_map, parse_voter

EMBEDDED_PORT: Final = 9092


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Everything one node was told. Settings without an attribute of their own are read with `value(name)`."""

    static: Mapping[str, str] = field(repr=False)
    """The texts as written, file and overrides, secrets among them; what DescribeConfigs calls static."""
    node_id: int
    roles: frozenset[str]
    listeners: tuple[Listener, ...]
    advertised_listeners: tuple[Listener, ...]
    """Only those written; a listener without one answers with the address the client connected to."""
    controller_listener_names: tuple[str, ...]
    inter_broker_listener_name: str
    voters: tuple[Voter, ...]
    """Fixed voters; of a bootstrap address that is this node's own controller, this node; else empty."""
    bootstrap_servers: tuple[str, ...]
    log_dirs: tuple[str, ...]
    metadata_log_dir: str
    """Topic settings the file implies, by topic name and in topic units; for LogConfig and DescribeConfigs."""
    ignored: tuple[str, ...] = ()
    """Settings that were accepted and change nothing here."""
    warnings: tuple[str, ...] = ()
    """Sentences for the log: accepted, but perhaps not meant."""
    _values: dict[str, Value] = field(default_factory=dict, repr=False)

    def value(self, name: str) -> Value:
        """The typed value of any broker setting, its default when it was not written."""
        if name in self._values:
            return self._values[name]
        return BROKER_CONFIGS.default(name)

    def integer(self, name: str) -> int:
        """The value of a whole-number setting."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is not a whole number setting with a value")
        return value

    def flag(self, name: str) -> bool:
        """The value of a yes-or-no setting."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise TypeError(f"{name} is not a yes-or-no setting")
        return value

    def text(self, name: str) -> str | None:
        """The value of a text setting."""
        value = self.value(name)
        if not isinstance(value, str | None):
            raise TypeError(f"{name} is not a text setting")
        return value

    @property
    def is_broker(self) -> bool:
        """Whether clients are served here."""
        return "broker" in self.roles

    @property
    def is_controller(self) -> bool:
        """Whether this node votes in the metadata quorum."""
        return "controller" in self.roles

    @property
    def broker_listeners(self) -> tuple[Listener, ...]:
        """Where clients and other brokers come in."""
        return tuple(each for each in self.listeners if each.name not in self.controller_listener_names)

    @property
    def controller_listeners(self) -> tuple[Listener, ...]:
        """Where the quorum's own traffic comes in."""
        return tuple(each for each in self.listeners if each.name in self.controller_listener_names)

    def advertises(self, name: str) -> bool:
        """Whether the file says which address clients of this listener are told."""
        return any(listener.name == name for listener in self.advertised_listeners)

    @property
    def rack(self) -> str | None:
        """The failure zone this broker stands in."""
        return self.text("broker.rack")

    @property
    def num_partitions(self) -> int:
        """Partitions of a topic created without a number."""
        return self.integer("num.partitions")

    @property
    def default_replication_factor(self) -> int:
        """Replicas of a topic created without a number."""
        return self.integer("default.replication.factor")

    @property
    def auto_create_topics_enable(self) -> bool:
        """Whether asking for an unknown topic creates it."""
        return self.flag("auto.create.topics.enable")

    @property
    def delete_topic_enable(self) -> bool:
        """Whether topics may be deleted."""
        return self.flag("delete.topic.enable")

    @property
    def fetch_max_bytes(self) -> int:
        """Largest fetch response, whatever the client asks."""
        return self.integer("fetch.max.bytes")

    @property
    def fetch_session_slots(self) -> int:
        """Fetch sessions remembered at most."""
        return self.integer("max.incremental.fetch.session.cache.slots")


def load_config(path: str, overrides: Sequence[str] = ()) -> NodeConfig:
    """The configuration in a properties file; `overrides` are texts like num.partitions=3 and win over the file."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return parse_config(text, overrides, source=os.path.basename(path))


def parse_config(text: str, overrides: Sequence[str] = (), source: str = "server.properties") -> NodeConfig:
    """The configuration in properties text; `source` is what complaints call it."""
    warnings: list[str] = []
    places: dict[str, tuple[str, str]] = {}
    for entry in _entries(text, source):
        if entry.key in places:
            warnings.append(f"{entry.key} is written twice in {source}; the value at line {entry.line} counts")
        places[entry.key] = (entry.value, f"{source} line {entry.line}")
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--override {override}: write --override key=value")
        places[key.strip()] = (value.strip(), f"--override {key.strip()}")
    values, ignored = _typed(places)
    static = {name: value for name, (value, _) in places.items()}
    return _build(static, values, ignored, warnings)


def embedded_properties(data_dir: str, port: int = EMBEDDED_PORT, node_id: int = 1, host: str = "127.0.0.1") -> str:
    """The properties of a node that needs none: one broker and controller in one process, for `klamm up`."""
    shown = f"[{host}]" if ":" in host else host
    return format_properties(
        {
            "process.roles": "broker,controller",
            "node.id": str(node_id),
            "controller.quorum.voters": f"{node_id}@127.0.0.1:0",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{shown}:{port},CONTROLLER://127.0.0.1:0",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": data_dir,
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
    )


def _entries(text: str, source: str) -> Iterable[Property]:
    try:
        return parse_properties(text)
    except ConfigError as error:
        raise ConfigError(f"{source} {error}") from None


def _typed(places: Mapping[str, tuple[str, str]]) -> tuple[dict[str, Value], tuple[str, ...]]:
    """The typed values of all known settings, and the names of those without meaning here."""
    values: dict[str, Value] = {}
    ignored = []
    for name, (text, where) in places.items():
        key = broker_key(name)
        if key is None or name in DYNAMIC_ONLY:
            if not known_by_name(name):
                raise ConfigError(f"{where}: {_unknown(name)}")
            ignored.append(name)
            continue
        try:
            values[name] = key.parse(text)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        if name not in BROKER_CONFIGS or not key.served:
            ignored.append(name)
    return values, tuple(ignored)


def _unknown(name: str) -> str:
    if name in DYNAMIC_ONLY:
        return f"{name} can only be set on a running broker; remove it here and set it with kafka-configs"
    return BROKER_CONFIGS.unknown(name)


def _build(
    static: Mapping[str, str], values: dict[str, Value], ignored: tuple[str, ...], warnings: list[str]
) -> NodeConfig:
    for name, text in with_node_id(static).items():
        if name in ("node.id", "broker.id"):
            values[name] = BROKER_CONFIGS.parse(name, text)
    roles = check_roles(static, values)
    check_relations(values, static)
    check_replica_selector(roles, values)
    node_id = values["node.id"]
    assert isinstance(node_id, int)

    controllers = tuple(name.upper() for name in _words(values, "controller.listener.names"))
    protocols = _protocols(values, controllers)
    listeners = parse_listeners("listeners", _words(values, "listeners"), protocols)
    check_ports(listeners)
    advertised = parse_listeners("advertised.listeners", _words(values, "advertised.listeners"), protocols)
    inter_broker = _inter_broker(values, protocols)
    check_listeners(roles, listeners, advertised, controllers, inter_broker)

    voters = tuple(parse_voter(text) for text in _words(values, "controller.quorum.voters"))
    bootstrap = _words(values, "controller.quorum.bootstrap.servers")
    check_quorum(node_id, roles, voters, bootstrap)
    log_dirs = tuple(os.path.abspath(path) for path in _words(values, "log.dirs") or _words(values, "log.dir"))
    metadata_dir = values.get("metadata.log.dir")
    return NodeConfig(
        static=dict(static),
        node_id=node_id,
        roles=roles,
        listeners=listeners,
        advertised_listeners=advertised,
        controller_listener_names=controllers,
        inter_broker_listener_name=inter_broker,
        voters=voters or _own_voter(node_id, bootstrap, [each for each in listeners if each.name in controllers]),
        bootstrap_servers=bootstrap,
        log_dirs=log_dirs,
        metadata_log_dir=os.path.abspath(metadata_dir) if isinstance(metadata_dir, str) else log_dirs[0],
        ignored=ignored,
        warnings=(*warnings, *exposure_warnings(listeners), *relation_warnings(values)),
        _values=values,
    )


def _words(values: Mapping[str, Value], name: str) -> tuple[str, ...]:
    words = values.get(name, BROKER_CONFIGS.default(name))
    return words if isinstance(words, tuple) else ()


def _protocols(values: Mapping[str, Value], controllers: Sequence[str]) -> dict[str, str]:
    """What each listener name speaks; a controller listener needs no entry while the map is not written."""
    written = values.get("listener.security.protocol.map")
    protocols = parse_protocol_map(str(written or BROKER_CONFIGS.default("listener.security.protocol.map")))
    if not written:
        for name in controllers:
            protocols.setdefault(name, "PLAINTEXT")
    return protocols


def _inter_broker(values: Mapping[str, Value], protocols: Mapping[str, str]) -> str:
    """The listener between brokers: named itself, or by the protocol it speaks."""
    name, protocol = values.get("inter.broker.listener.name"), values.get("security.inter.broker.protocol")
    if name and protocol:
        raise ConfigError(
            "inter.broker.listener.name and security.inter.broker.protocol say the same thing; write only the first"
        )
    if not name:
        return str(protocol or "PLAINTEXT")
    if str(name).upper() not in protocols:
        raise ConfigError(
            f"inter.broker.listener.name={name} is not in listener.security.protocol.map;"
            f" write one of {', '.join(protocols)}"
        )
    return str(name).upper()


def _own_voter(node_id: int, bootstrap: Sequence[str], controllers: Sequence[Listener]) -> tuple[Voter, ...]:
    """This node as the only voter, when the one bootstrap address is its own controller listener."""
    if len(bootstrap) != 1 or not controllers:
        return ()
    host, _, port = bootstrap[0].rpartition(":")
    own = controllers[0]
    here = own.host in ("", "0.0.0.0", "::", host) or Listener("", host, 0).loopback == own.loopback is True  # noqa: S104
    return (Voter(node_id, host.strip("[]"), int(port)),) if here and int(port) == own.port else ()
