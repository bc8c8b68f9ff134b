"""The sources of a setting's value, as DescribeConfigs names them."""

from dataclasses import dataclass
from enum import IntEnum


class ConfigSource(IntEnum):
    """The source of a value; the numbers are those DescribeConfigs sends."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A value in one source, under the name it has there."""

    name: str
    value: str | None
    source: ConfigSource


def source_of(number: int) -> ConfigSource:
    """The source with this number; UNKNOWN for a number of a later version."""
    try:
        return ConfigSource(number)
    except ValueError:
        return ConfigSource.UNKNOWN
