"""CreateDelegationToken, v1-3: a token with which others log in as its owner (KIP-48).

Not over PLAINTEXT, TLS without a client certificate, or a login with a token: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED. The
active controller creates the token; the HMAC in the response is its password.
v2 flexible · v3 tokens of other owners (KIP-373), which need CREATE_TOKENS on the user
"""

from klamm.controller.delegation_tokens import find_owner
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.create_delegation_token import CreateDelegationTokenRequest, CreateDelegationTokenResponse
from klamm.server.requests.access.admin_requests import refuse_token
from klamm.server.requests.access.tokens import may_request_tokens
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import forward_to_controller
from klamm.server.services import Services


async def handle(
    services: Services, context: RequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    """Have a token created."""
    owner = find_owner(request, context.principal)
    if not may_request_tokens(services, context):
        return refuse_token(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, owner, context.principal)
    response: CreateDelegationTokenResponse = await forward_to_controller(services, context, request)
    return response
