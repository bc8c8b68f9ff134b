"""The values of settings and their sources, as DescribeConfigs reports them.

A value may be set in four layers: on the topic, for one broker, for all brokers, in the properties file. Each layer is
a mapping of texts; nothing here reads a node's state. The synonyms of a setting are listed in order of precedence and
begin, as Kafka's do, at the setting's own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

from klamm.model.broker_configs import (
    BROKER_CONFIGS,
    BROKER_SYNONYMS,
    DYNAMIC_ONLY,
    broker_key,
    broker_synonyms,
    read_broker_values,
)
from klamm.model.config import ConfigKey, ConfigType, SettingValue, UpdateMode, format_value
from klamm.model.config_sources import ConfigSource, ConfigSynonym
from klamm.model.errors import ConfigError
from klamm.model.group_configs import GROUP_CONFIGS
from klamm.model.topic_configs import TOPIC_CONFIGS, TOPIC_SYNONYMS, topic_defaults

Texts = Mapping[str, str]
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class DescribedConfig:
    """One setting with everything that a DescribeConfigs response has about it."""

    name: str
    value: str | None
    source: ConfigSource
    synonyms: tuple[ConfigSynonym, ...]
    type: ConfigType
    doc: str | None
    read_only: bool
    sensitive: bool


def effective_broker(
    broker_dynamic: Mapping[str, V], cluster_dynamic: Mapping[str, V], static: Mapping[str, V]
) -> dict[str, V]:
    """A broker's effective settings, as texts or as values. A dynamic one replaces all its synonyms, in any unit."""
    effective = with_node_id(static)
    for layer in (cluster_dynamic, broker_dynamic):  # the later layer overrides
        for name, setting in layer.items():
            # Or a log.retention.ms of the file would win over a log.retention.hours that was set later.
            for synonym in BROKER_SYNONYMS.get(name, ()):
                effective.pop(synonym, None)
            effective[name] = setting
    return effective


def with_node_id(static: Mapping[str, V]) -> dict[str, V]:
    """The settings of a properties file with node.id and broker.id both present: they are names of one setting."""
    settings = dict(static)
    for name, other in (("node.id", "broker.id"), ("broker.id", "node.id")):
        if name in settings:
            settings.setdefault(other, settings[name])
    return settings


def describe_topic(
    overrides: Texts, broker_dynamic: Texts, cluster_dynamic: Texts, static: Texts
) -> list[DescribedConfig]:
    """All settings of one topic, sorted by name."""
    layers = _BrokerConfigLayers(broker_dynamic, cluster_dynamic, static)
    inherited = topic_defaults(_values_in_force(broker_dynamic, cluster_dynamic, static))
    described = []
    for key in TOPIC_CONFIGS:
        if key.internal and key.name not in overrides:
            continue
        value = _text(key, overrides.get(key.name), inherited.get(key.name))
        synonyms = layers.synonyms(TOPIC_SYNONYMS[key.name][0]) if key.name in TOPIC_SYNONYMS else ()
        if key.name in overrides:
            synonyms = (ConfigSynonym(key.name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG), *synonyms)
        described.append(_describe(key, key.name, value, synonyms, read_only=False))
    return sorted(described, key=attrgetter("name"))


def describe_broker(broker_dynamic: Texts, cluster_dynamic: Texts, static: Texts) -> list[DescribedConfig]:
    """All settings of one broker, sorted by name."""
    layers = _BrokerConfigLayers(broker_dynamic, cluster_dynamic, static)
    effective = _values_in_force(broker_dynamic, cluster_dynamic, static)
    written = effective_broker(broker_dynamic, cluster_dynamic, static)
    names = {key.name for key in BROKER_CONFIGS if not key.internal and key.name not in DYNAMIC_ONLY}
    return [_described_broker(name, effective, layers.synonyms(name)) for name in sorted(names | written.keys())]


def describe_cluster_default(cluster_dynamic: Texts) -> list[DescribedConfig]:
    """The settings given to all brokers at once, and only those."""
    layers = _BrokerConfigLayers({}, cluster_dynamic, {})
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    values = read_broker_values(cluster_dynamic)
    return [
        _described_broker(name, values, tuple(s for s in layers.synonyms(name) if s.source is source))
        for name in sorted(cluster_dynamic)
    ]


def describe_group(
    overrides: Texts, broker_dynamic: Texts, cluster_dynamic: Texts, static: Texts
) -> list[DescribedConfig]:
    """All settings of one group, sorted by name."""
    layers = _BrokerConfigLayers(broker_dynamic, cluster_dynamic, static)
    effective = _values_in_force(broker_dynamic, cluster_dynamic, static)
    described = []
    for key in GROUP_CONFIGS:
        broker_name = f"group.{key.name}"
        value = _text(key, overrides.get(key.name), effective.get(broker_name))
        synonyms = layers.synonyms(broker_name)
        if not synonyms:
            synonyms = (ConfigSynonym(key.name, key.default_text, ConfigSource.DEFAULT_CONFIG),)
        if key.name in overrides:
            synonyms = (ConfigSynonym(key.name, value, ConfigSource.DYNAMIC_GROUP_CONFIG), *synonyms)
        described.append(_describe(key, key.name, value, synonyms, read_only=False))
    return sorted(described, key=attrgetter("name"))


class _BrokerConfigLayers:
    """The layers of broker values, in order of precedence."""

    def __init__(self, broker_dynamic: Texts, cluster_dynamic: Texts, static: Texts) -> None:
        self._layers = (
            (broker_dynamic, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (cluster_dynamic, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (with_node_id(static), ConfigSource.STATIC_BROKER_CONFIG),
        )

    def synonyms(self, name: str) -> tuple[ConfigSynonym, ...]:
        """Every layer that has `name` or a synonym, beginning at the first that has `name` itself.

        A retention that is set only in hours leaves log.retention.ms without synonyms, as in Kafka.
        """
        names = broker_synonyms(name)
        key = broker_key(name)
        hidden = key is None or key.sensitive
        synonyms = [
            ConfigSynonym(synonym, None if hidden else texts[synonym], source)
            for texts, source in self._layers
            for synonym in names
            if synonym in texts
        ]
        for synonym in names:
            default = BROKER_CONFIGS.keys.get(synonym)
            if default is not None and default.default_text is not None:
                text = None if hidden else default.default_text
                synonyms.append(ConfigSynonym(synonym, text, ConfigSource.DEFAULT_CONFIG))
        start = next((i for i, synonym in enumerate(synonyms) if synonym.name == name), len(synonyms))
        return tuple(synonyms[start:])


def _values_in_force(broker_dynamic: Texts, cluster_dynamic: Texts, static: Texts) -> dict[str, SettingValue]:
    layers = (read_broker_values(texts) for texts in (broker_dynamic, cluster_dynamic, static))
    return effective_broker(*layers)


def _described_broker(
    name: str, effective: Mapping[str, SettingValue], synonyms: tuple[ConfigSynonym, ...]
) -> DescribedConfig:
    key = broker_key(name)
    read_only = name not in BROKER_CONFIGS or BROKER_CONFIGS.keys[name].update_mode is UpdateMode.READ_ONLY
    if key is None:  # a setting of a plugin may be a secret, so its value is not returned
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        return DescribedConfig(name, None, source, synonyms, ConfigType.UNKNOWN, None, read_only, sensitive=True)
    return _describe(key, name, _text(key, None, effective.get(name)), synonyms, read_only=read_only)


def _describe(
    key: ConfigKey, name: str, value: str | None, synonyms: tuple[ConfigSynonym, ...], *, read_only: bool
) -> DescribedConfig:
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
    shown = None if key.sensitive else value
    return DescribedConfig(name, shown, source, synonyms, key.type, key.doc, read_only, key.sensitive)


def _text(key: ConfigKey, written: str | None, inherited: SettingValue) -> str | None:
    """A value as Kafka prints it; an invalid one as it was set, so that an operator sees what to remove."""
    if written is not None:
        try:
            return format_value(key.parse(written))
        except ConfigError:
            return written
    return key.default_text if inherited is None else format_value(inherited)
