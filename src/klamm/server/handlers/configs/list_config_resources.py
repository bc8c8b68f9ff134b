"""ListConfigResources, v0-1: the names of what can have settings.

Topics and brokers (and each broker's loggers) are all there are; groups and client metrics those that have settings of
their own, since nobody else knows their names.
v0 client metrics alone · v1 any kind
"""

from collections.abc import Callable, Iterable
from typing import Final

from klamm.metadata.image import MetadataImage, ResourceType
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


def _brokers(image: MetadataImage) -> Iterable[str]:
    return map(str, sorted(image.cluster.brokers))


def _with_settings(kind: ResourceType) -> Callable[[MetadataImage], Iterable[str]]:
    return lambda image: sorted(resource.name for resource in image.configs if resource.type == kind)


_NAMES: Final[dict[int, Callable[[MetadataImage], Iterable[str]]]] = {
    ResourceType.TOPIC: lambda image: sorted(image.topics.by_name),
    ResourceType.BROKER: _brokers,
    ResourceType.BROKER_LOGGER: _brokers,
    ResourceType.CLIENT_METRICS: _with_settings(ResourceType.CLIENT_METRICS),
    ResourceType.GROUP: _with_settings(ResourceType.GROUP),
}


def handle(
    services: Services, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """List the kinds asked for, all without any."""
    if context.version == 0:
        kinds: list[int] = [ResourceType.CLIENT_METRICS]
    else:
        kinds = list(dict.fromkeys(request.resource_types)) or list(_NAMES)
    if not set(kinds) <= set(_NAMES):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    image = services.image
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind) for kind in kinds for name in _NAMES[kind](image)
        ]
    )
