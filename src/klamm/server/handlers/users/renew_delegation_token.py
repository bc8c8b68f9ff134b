"""RenewDelegationToken, v1-2: extend a delegation token, up to its longest lifetime (KIP-48).

By its owner and its renewers. Refused on connections that may not request tokens, as CreateDelegationToken.
v2 flexible
"""

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from klamm.server.requests.access.tokens import may_request_tokens
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import forward_to_controller
from klamm.server.services import Services


async def handle(
    services: Services, context: RequestContext, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    """Have the end of a token changed."""
    if not may_request_tokens(services, context):
        code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=-1)
    response: RenewDelegationTokenResponse = await forward_to_controller(services, context, request)
    return response
