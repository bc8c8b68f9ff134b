"""Klamm: an event-streaming platform that speaks Apache Kafka's wire protocol."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.client import (
        Admin,
        AsyncAdmin,
        AsyncConsumer,
        AsyncProducer,
        Consumer,
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
    "Consumer",
    "Producer",
    "Record",
    "TopicPartition",
    "__version__",
    "read_topic",
]


def __getattr__(name: str) -> Any:
    """The client's names, imported when they are first used: a node needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from klamm import client  # noqa: PLC0415 - that is the point

    return getattr(client, name)
