"""DescribeDelegationToken, v1-3: tokens with their HMACs, of some owners or of all.

Of those that the client owns, has requested or may renew, and of those that it has the right to describe. An empty list
of owners is answered with no token. Expired tokens are left out.
v2 flexible · v3 the requester of a token
"""

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from klamm.security.core.delegation_tokens import StoredToken, concerns, has_expired, sign_token_id
from klamm.security.core.principal import parse_principal
from klamm.security.core.secret import Secret
from klamm.server.boot.component_configs import token_settings
from klamm.server.requests.access.tokens import may_describe_token, may_request_tokens
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


def handle(
    services: Services, context: RequestContext, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """Describe tokens from the committed metadata."""
    if not may_request_tokens(services, context):
        return DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    secret_key = token_settings(services.config).secret_key
    if secret_key is None:
        return DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    owners = None
    if request.owners is not None:
        owners = {f"{owner.principal_type}:{owner.principal_name}" for owner in request.owners}
    now_ms = services.clock.now_ms()
    return DescribeDelegationTokenResponse(
        tokens=[
            _describe(token, secret_key)
            for token in services.image.delegation_tokens.values()
            if (owners is None or any(concerns(token, owner) for owner in owners))
            and not has_expired(token, now_ms)
            and may_describe_token(services, context, token)
        ]
    )


def _describe(token: StoredToken, secret_key: Secret) -> DescribedDelegationToken:
    owner, requester = parse_principal(token.owner), parse_principal(token.requester)
    return DescribedDelegationToken(
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
        issue_timestamp=token.issue_timestamp,
        expiry_timestamp=token.expiration_timestamp,
        max_timestamp=token.max_timestamp,
        token_id=token.token_id,
        hmac=sign_token_id(secret_key, token.token_id),
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=renewer.type, principal_name=renewer.name)
            for renewer in map(parse_principal, token.renewers)
        ],
    )
