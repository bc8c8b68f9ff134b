"""Which configs may be set, and which values topics end up with."""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple, Protocol

from klamm.model.config import ConfigType, UpdateMode
from klamm.model.errors import ConfigError
from klamm.model.topic_configs import TOPIC_CONFIGS, TOPIC_SYNONYMS, topic_defaults, validate_topic_configs

Layers = tuple[Mapping[str, str], Mapping[str, str]]
"""Dynamic broker configs: of one broker, and of all brokers."""


class ConfigSource(IntEnum):
    """Where a value in force comes from; the numbers are those of DescribeConfigs."""

    UNKNOWN = 0
    TOPIC = 1
    BROKER = 2
    DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class EffectiveConfig(NamedTuple):
    """A config in force, as CreateTopics and DescribeConfigs report it."""

    name: str
    value: str | None
    source: ConfigSource
    sensitive: bool


class ConfigValidator(Protocol):
    """What the controller asks about configs; a refusal is a ConfigError whose text goes to the client."""

    def validate_topic(self, configs: Mapping[str, str], layers: Layers) -> None:
        """Check all configs of one topic together."""

    def validate_broker(self, configs: Mapping[str, str], *, all_brokers: bool) -> None:
        """Check dynamic configs of one broker, or of all brokers."""

    def is_list(self, name: str, *, of_topic: bool) -> bool:
        """Whether values may be appended to and taken from `name`."""

    def inherited(self, layers: Layers, name: str) -> tuple[str | None, ConfigSource]:
        """The value a topic has without setting `name` itself."""

    def default_of_broker(self, name: str) -> str | None:
        """What a broker uses when `name` is not set dynamically."""

    def effective_topic_configs(self, configs: Mapping[str, str], layers: Layers) -> list[EffectiveConfig]:
        """Every topic config in force for a topic with these configs of its own, by name."""


class CatalogValidator:
    """The validator every node uses: Klamm's catalog of configs and the node's own property file."""

    def __init__(self, static_configs: Mapping[str, str] | None = None) -> None:
        self._static = dict(static_configs or {})

    def validate_topic(self, configs: Mapping[str, str], layers: Layers) -> None:
        """Check all configs of one topic together."""
        node, everyone = layers
        validate_topic_configs(configs, topic_defaults({**self._static, **everyone, **node}))

    def validate_broker(self, configs: Mapping[str, str], *, all_brokers: bool) -> None:
        """Check dynamic configs of one broker, or of all brokers."""
        from klamm.model.broker_configs import BROKER_CONFIGS  # noqa: PLC0415  large, and rarely asked

        for name, value in configs.items():
            key = BROKER_CONFIGS.keys.get(_without_listener(name))
            if key is None:
                continue  # as in Kafka: plugins bring their own names
            if key.update_mode is UpdateMode.READ_ONLY:
                raise ConfigError(f"{name} cannot be changed while a broker runs; write it to its property file")
            if all_brokers and key.update_mode is UpdateMode.PER_BROKER:
                raise ConfigError(f"{name} cannot be set for all brokers; name a broker id")
            key.parse(value)

    def is_list(self, name: str, *, of_topic: bool) -> bool:
        """Whether values may be appended to and taken from `name`."""
        from klamm.model.broker_configs import BROKER_CONFIGS  # noqa: PLC0415

        key = (TOPIC_CONFIGS if of_topic else BROKER_CONFIGS).keys.get(name)
        return key is not None and key.type is ConfigType.LIST

    def inherited(self, layers: Layers, name: str) -> tuple[str | None, ConfigSource]:
        """The value a topic has without setting `name` itself."""
        synonyms = TOPIC_SYNONYMS.get(name, ())
        node, everyone = layers
        for configs, source in (
            (node, ConfigSource.BROKER),
            (everyone, ConfigSource.DEFAULT_BROKER),
            (self._static, ConfigSource.STATIC_BROKER),
        ):
            if any(synonym in configs for synonym in synonyms):
                return topic_defaults(configs)[name], source
        key = TOPIC_CONFIGS.keys.get(name)
        return (key.default_text if key is not None else None), ConfigSource.DEFAULT

    def default_of_broker(self, name: str) -> str | None:
        """What a broker uses when `name` is not set dynamically."""
        from klamm.model.broker_configs import BROKER_CONFIGS  # noqa: PLC0415

        if name in self._static:
            return self._static[name]
        key = BROKER_CONFIGS.keys.get(name)
        return key.default_text if key is not None else None

    def effective_topic_configs(self, configs: Mapping[str, str], layers: Layers) -> list[EffectiveConfig]:
        """Every topic config in force for a topic with these configs of its own, by name."""
        found = []
        for key in sorted(TOPIC_CONFIGS, key=lambda key: key.name):
            if key.internal:
                continue
            own = configs.get(key.name)
            value, source = (own, ConfigSource.TOPIC) if own is not None else self.inherited(layers, key.name)
            found.append(EffectiveConfig(key.name, value, source, key.sensitive))
        return found


def _without_listener(name: str) -> str:
    """A config of one listener, `listener.name.internal.ssl.keystore.location`, is checked as the plain one."""
    if name.startswith("listener.name.") and name.count(".") > 2:
        return name.split(".", 3)[3]
    return name
