"""Hints for clients that asked the wrong broker (KIP-951): who leads now, and where to find it."""

from typing import Any

from klamm.metadata.image import PartitionImage
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


def partition_image(services: Services, topic: str | None, topic_id: bytes, index: int) -> PartitionImage | None:
    """What the metadata says of a partition, found by name or else by id."""
    found = services.image.topics.by_name.get(topic) if topic else services.image.topics.by_id.get(topic_id)  # type: ignore[call-overload]
    return found.partitions.get(index) if found is not None else None


def node_endpoints(services: Services, context: RequestContext, leaders: set[int], cls: type[Any]) -> list[Any]:
    """The addresses of brokers that were named as leaders."""
    endpoints = []
    for node_id in sorted(leaders):
        broker = services.image.cluster.get(node_id)
        if broker is not None and not broker.fenced:
            host, port = services.endpoint(broker, context)
            endpoints.append(cls(node_id=node_id, host=host, port=port, rack=broker.rack))
    return endpoints
