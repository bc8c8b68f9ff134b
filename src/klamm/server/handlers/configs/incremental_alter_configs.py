"""IncrementalAlterConfigs, v0-1: set, delete, append to or subtract from single settings; decided by the controller.

A broker changes its loggers itself, and checks its key and trust stores; everything else goes to the controller.
v1 flexible
"""

from functools import partial

from klamm.controller.configs import ConfigOperation
from klamm.model.broker_configs import is_store_setting, validate_dynamic_broker_config
from klamm.model.config_resources import ResourceType
from klamm.model.errors import ConfigError, ErrorCode, KlammError
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
    responses = []
    others = []
    for resource in request.resources:
        if resource.resource_type == ResourceType.BROKER_LOGGER:
            responses.append(_alter_loggers(services, resource, validate_only=request.validate_only))
            continue
        try:
            _check_stores(services, context, resource)
        except ConfigError as error:
            responses.append(_respond(resource, ErrorCode.INVALID_REQUEST, str(error)))
        else:
            others.append(resource)
    if others or not responses:
        rest = IncrementalAlterConfigsRequest(resources=others, validate_only=request.validate_only)
        responses += (await forward_to_controller(services, context, rest)).responses
    return IncrementalAlterConfigsResponse(responses=responses)


def _check_stores(services: Services, context: RequestContext, resource: AlterConfigsResource) -> None:
    """Raise ConfigError for key and trust stores that the broker they are for cannot use."""
    changed = {
        config.name: None if config.config_operation == ConfigOperation.DELETE else config.value
        for config in resource.configs
        if is_store_setting(config.name)
    }
    if resource.resource_type != ResourceType.BROKER or not changed:
        return
    # What the controller refuses needs no files.
    for name, value in changed.items():
        validate_dynamic_broker_config(name, value, per_broker=bool(resource.resource_name))
    if resource.resource_name == str(services.node_id):
        services.stores.check(services.image.broker_configs(services.node_id), changed)
    elif context.listener.kind == "broker":
        raise ConfigError(
            f"the stores of broker {resource.resource_name} are checked by itself; send the request to it"
        )


def _alter_loggers(
    services: Services, resource: AlterConfigsResource, *, validate_only: bool
) -> AlterConfigsResourceResponse:
    code, message = ErrorCode.NONE, None
    try:
        broker_loggers.alter(resource, services.node_id, validate_only=validate_only)
    except KlammError as error:
        code, message = error.code, error.message
    return _respond(resource, code, message)


def _respond(resource: AlterConfigsResource, code: ErrorCode, message: str | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
