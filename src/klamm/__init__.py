"""Klamm: an event-streaming platform that speaks Apache Kafka's wire protocol."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.client import (
        Admin,
        AsyncAdmin,
        AsyncConsumer,
        AsyncProducer,
        ConfigError,
        Consumer,
        KafkaError,
        Producer,
        Record,
        TopicPartition,
        read_topic,
    )

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "ConfigError",
    "Consumer",
    "KafkaError",
    "Producer",
    "Record",
    "TopicPartition",
    "__version__",
    "read_topic",
]

_PACKAGES = ("client", "pipeline", "testing")
"""Packages that are there as attributes of this one without an import of their own."""


def __getattr__(name: str) -> Any:
    """The client's names and the packages programs use, imported when first used: a node needs none of them."""
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.client"), name)


def __dir__() -> list[str]:
    return sorted((*__all__, *_PACKAGES))
