"""ListConfigResources, v0-1: the names of resources that can have configs.

Topics and brokers (and each broker's loggers) are listed all; groups and client metrics only if they have configs,
since the metadata has no others.
v0 client metrics alone · v1 any resource type
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from klamm.metadata.image import MetadataImage
from klamm.model.config_resources import ResourceType
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


def _list_topics(image: MetadataImage) -> Iterable[str]:
    return sorted(image.topics.by_name)


def _list_brokers(image: MetadataImage) -> Iterable[str]:
    return map(str, sorted(image.cluster.brokers))


def _list_configured(resource_type: ResourceType, image: MetadataImage) -> Iterable[str]:
    return sorted(resource.name for resource in image.configs if resource.type == resource_type)


_NAMES: Final[dict[int, Callable[[MetadataImage], Iterable[str]]]] = {
    ResourceType.TOPIC: _list_topics,
    ResourceType.BROKER: _list_brokers,
    ResourceType.BROKER_LOGGER: _list_brokers,
    ResourceType.CLIENT_METRICS: partial(_list_configured, ResourceType.CLIENT_METRICS),
    ResourceType.GROUP: partial(_list_configured, ResourceType.GROUP),
}


def handle(
    services: Services, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """List the resources of the requested types; of all types when none is requested."""
    if context.version == 0:
        types: list[int] = [ResourceType.CLIENT_METRICS]
    else:
        types = list(dict.fromkeys(request.resource_types)) or list(_NAMES)
    # As Kafka answers a resource type that it does not list.
    if not set(types) <= set(_NAMES):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    image = services.image
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=resource_type)
            for resource_type in types
            for name in _NAMES[resource_type](image)
        ]
    )
