"""IncrementalAlterConfigs, v0-1: set, delete, append to or subtract from single settings; decided by the controller.

A broker changes its loggers itself; everything else goes to the controller.
v1 flexible
"""

from functools import partial

from klamm.model.config_resources import ResourceType
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.server.handlers.configs import broker_loggers
from klamm.server.requests.access.admin_requests import decide_allowed
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import forward_to_controller
from klamm.server.services import Services


async def handle(
    services: Services, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Let the active controller decide on all but loggers, as far as the client has the right."""
    response: IncrementalAlterConfigsResponse = await decide_allowed(
        services, context, request, partial(_decide, services, context)
    )
    return response


async def _decide(
    services: Services, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    loggers = [resource for resource in request.resources if resource.resource_type == ResourceType.BROKER_LOGGER]
    if not loggers:
        response: IncrementalAlterConfigsResponse = await forward_to_controller(services, context, request)
        return response
    responses = [_alter_loggers(services, resource, validate_only=request.validate_only) for resource in loggers]
    others = [resource for resource in request.resources if resource.resource_type != ResourceType.BROKER_LOGGER]
    if others:
        rest = IncrementalAlterConfigsRequest(resources=others, validate_only=request.validate_only)
        responses += (await forward_to_controller(services, context, rest)).responses
    return IncrementalAlterConfigsResponse(responses=responses)


def _alter_loggers(
    services: Services, resource: AlterConfigsResource, *, validate_only: bool
) -> AlterConfigsResourceResponse:
    code, message = ErrorCode.NONE, None
    try:
        broker_loggers.alter(resource, services.node_id, validate_only=validate_only)
    except KlammError as error:
        code, message = error.code, error.message
    return AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
