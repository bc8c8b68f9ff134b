"""Validation of configs, and the values that topics inherit from brokers."""

from collections.abc import Mapping
from typing import Protocol, TypeVar

from klamm.model.broker_configs import broker_key, read_broker_values, validate_dynamic_broker_config
from klamm.model.config import ConfigType, SettingValue
from klamm.model.config_describe import DescribedConfig, describe_topic, effective_broker
from klamm.model.group_configs import GROUP_CONFIGS
from klamm.model.topic_configs import TOPIC_CONFIGS, topic_defaults, validate_topic_configs

V = TypeVar("V")
Layers = tuple[Mapping[str, V], Mapping[str, V]]
"""Dynamic broker configs, as texts or as values: of one broker, and of all brokers."""


class ConfigValidator(Protocol):
    """Checks and defaults of configs, as the controller needs them; ConfigError carries the message for the client."""

    def validate_topic(self, configs: Mapping[str, str], layers: Layers[SettingValue]) -> None:
        """Check all configs of one topic together."""

    def validate_broker(self, configs: Mapping[str, str], *, all_brokers: bool) -> None:
        """Check dynamic configs of one broker, or of all brokers."""

    def validate_group(self, configs: Mapping[str, str]) -> None:
        """Check configs of one group."""

    def is_list(self, name: str, *, of_topic: bool) -> bool:
        """Whether values may be appended to and taken from `name`."""

    def inherited_by_topics(self, name: str, layers: Layers[SettingValue]) -> SettingValue:
        """The value a topic has without setting `name` itself."""

    def static_of_broker(self, name: str) -> str | None:
        """What a broker uses when `name` is not set dynamically."""

    def describe_topic(self, configs: Mapping[str, str], layers: Layers[str]) -> list[DescribedConfig]:
        """Every topic config in force for a topic with these configs of its own, by name."""


class CatalogValidator:
    """Validates against the catalog of configs and the node's own properties file."""

    def __init__(self, static_configs: Mapping[str, str] | None = None) -> None:
        self._static = dict(static_configs or {})
        self._static_values = read_broker_values(self._static)
        self._defaults: (
            tuple[Mapping[str, SettingValue], Mapping[str, SettingValue], dict[str, SettingValue]] | None
        ) = None
        self._described: (
            tuple[Mapping[str, str], Mapping[str, str], tuple[tuple[str, str], ...], list[DescribedConfig]] | None
        ) = None
        """The last result of describe_topic: topics that are created together usually have the same configs."""

    def validate_topic(self, configs: Mapping[str, str], layers: Layers[SettingValue]) -> None:
        """Check all configs of one topic together."""
        validate_topic_configs(configs, self._topic_defaults(layers))

    def validate_broker(self, configs: Mapping[str, str], *, all_brokers: bool) -> None:
        """Check dynamic configs of a broker, or of all brokers; unknown names may belong to plugins."""
        for name, value in configs.items():
            if broker_key(name) is not None:
                validate_dynamic_broker_config(name, value, per_broker=not all_brokers)

    def validate_group(self, configs: Mapping[str, str]) -> None:
        """Check configs of one group."""
        GROUP_CONFIGS.parse_all(configs)

    def is_list(self, name: str, *, of_topic: bool) -> bool:
        """Whether values may be appended to and taken from `name`."""
        key = TOPIC_CONFIGS.keys.get(name) if of_topic else broker_key(name)
        return key is not None and key.type is ConfigType.LIST

    def inherited_by_topics(self, name: str, layers: Layers[SettingValue]) -> SettingValue:
        """The value a topic has without setting `name` itself."""
        inherited = self._topic_defaults(layers).get(name)
        return TOPIC_CONFIGS.default(name) if inherited is None else inherited

    def static_of_broker(self, name: str) -> str | None:
        """What a broker uses when `name` is not set dynamically."""
        key = broker_key(name)
        return self._static.get(name, key.default_text if key is not None else None)

    def describe_topic(self, configs: Mapping[str, str], layers: Layers[str]) -> list[DescribedConfig]:
        """Every topic config in force for a topic with these configs of its own, by name."""
        described = self._described
        own = tuple(configs.items())
        if described is None or described[0] is not layers[0] or described[1] is not layers[1] or described[2] != own:
            described = (*layers, own, describe_topic(configs, *layers, self._static))
            self._described = described
        return described[3]

    def _topic_defaults(self, layers: Layers[SettingValue]) -> dict[str, SettingValue]:
        """The values that topics inherit; the last result is kept, since fencing a broker needs it for every partition.

        Mappings of an image never change, so the identity of the mapping is enough to recognize the same input.
        """
        defaults = self._defaults
        if defaults is None or defaults[0] is not layers[0] or defaults[1] is not layers[1]:
            defaults = (*layers, topic_defaults(effective_broker(*layers, self._static_values)))
            self._defaults = defaults
        return defaults[2]
