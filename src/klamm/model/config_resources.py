"""The resources that have settings: topics, brokers, groups, client metrics."""

from enum import IntEnum
from typing import NamedTuple, cast


class ResourceType(IntEnum):
    """The type of a resource that has settings; the numbers are those DescribeConfigs sends."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """A resource that has settings; a broker's name is its id, and empty for the default of all brokers."""

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

    @classmethod
    def from_wire(cls, number: int, name: str) -> "ConfigResource":
        """The resource that a request or a metadata record names."""
        # Not `ResourceType(number)`: a number of a later Kafka version stays as it is, so that the error that refuses
        # it can name it, and a record with such a number can still be replayed.
        return cls(cast("ResourceType", number), name)
