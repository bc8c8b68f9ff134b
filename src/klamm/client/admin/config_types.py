"""Values about configs of topics, brokers and groups."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from klamm.model.config_sources import ConfigSource, ConfigSynonym


class ResourceType(IntEnum):
    """What has settings."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """One thing that has settings; a broker's name is its id, and empty for the default of all brokers."""

    type: ResourceType
    name: str

    @classmethod
    def topic(cls, name: str) -> "ConfigResource":
        """A topic."""
        return cls(ResourceType.TOPIC, name)

    @classmethod
    def broker(cls, broker_id: int | str = "") -> "ConfigResource":
        """A broker, or the default of all."""
        return cls(ResourceType.BROKER, str(broker_id))

    @classmethod
    def group(cls, name: str) -> "ConfigResource":
        """A group."""
        return cls(ResourceType.GROUP, name)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool = False
    sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
    type: int = 0
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether it has its default value."""
        return self.source is ConfigSource.DEFAULT_CONFIG


class AlterOp(IntEnum):
    """What to do with a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3
