"""UpdateFeatures, v0-2: move the finalized level of a feature within what every broker supports.

kraft.version is the quorum's own: its leader raises it by control records, and nobody can lower it.
v1 upgrade types and validate_only · v2 one error for the whole request
"""

from klamm.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import decided
from klamm.server.services import Services


async def handle(services: Services, context: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """Let the active controller decide."""
    response: UpdateFeaturesResponse = await decided(services, context, request)
    return response
