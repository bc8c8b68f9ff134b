"""ControllerRegistration, v0: a controller tells where it listens and which feature levels it can run."""

from klamm.protocol.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import controller_answer
from klamm.server.services import Services


async def handle(
    services: Services, context: RequestContext, request: ControllerRegistrationRequest
) -> ControllerRegistrationResponse:
    """Answer if this node is the active controller."""
    response: ControllerRegistrationResponse = await controller_answer(services, request, context.version)
    return response
