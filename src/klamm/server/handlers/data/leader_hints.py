"""The current leader and its address, for clients that sent a request to another broker (KIP-951)."""

from typing import Any

from klamm.metadata.image import PartitionImage
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


def partition_image(services: Services, topic: str | None, topic_id: bytes, index: int) -> PartitionImage | None:
    """Return the image of a partition, looked up by topic name or else by topic id; None when it is unknown."""
    topics = services.image.topics
    image = topics.by_name.get(topic) if topic else topics.by_id.get(topic_id)  # type: ignore[call-overload]
    return image.partitions.get(index) if image is not None else None


def node_endpoints(services: Services, context: RequestContext, leaders: set[int], cls: type[Any]) -> list[Any]:
    """Return the endpoints of the live ones among `leaders`."""
    endpoints = []
    for node_id in sorted(leaders):
        broker = services.image.cluster.get(node_id)
        # An address that does not answer would delay the client more than a refresh of its metadata.
        if broker is not None and not broker.fenced:
            host, port = services.endpoint(broker, context)
            endpoints.append(cls(node_id=node_id, host=host, port=port, rack=broker.rack))
    return endpoints
