"""UpdateFeatures, v0-2: move the finalized level of a feature within what every broker supports.

v1 upgrade types and validate_only · v2 one error for the whole request
"""

from klamm.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from klamm.server.context import RequestContext
from klamm.server.services import Services


async def handle(services: Services, context: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """Forward to the controller."""
    return await services.controller.update_features(request, context.version)
