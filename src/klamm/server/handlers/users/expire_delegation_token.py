"""ExpireDelegationToken, v1-2: end a delegation token sooner, or at once with a negative period (KIP-48).

By its owner and its renewers. Refused on connections that may not request tokens, as CreateDelegationToken.
v2 flexible
"""

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse
from klamm.server.requests.access.tokens import may_request_tokens
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import forward_to_controller
from klamm.server.services import Services


async def handle(
    services: Services, context: RequestContext, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    """Have the end of a token changed."""
    if not may_request_tokens(services, context):
        code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=-1)
    response: ExpireDelegationTokenResponse = await forward_to_controller(services, context, request)
    return response
