"""Who may send requests about delegation tokens, and about which tokens."""

from typing import TYPE_CHECKING

from klamm.model.acls import AclOperation, AclResourceType
from klamm.security.core.delegation_tokens import StoredToken, concerns
from klamm.security.core.principal import ANONYMOUS, Principal
from klamm.server.services import Services

if TYPE_CHECKING:
    from klamm.server.requests.context import RequestContext


def may_request_tokens(services: Services, context: "RequestContext") -> bool:
    """Whether the connection is logged in by more than a token: a token must not be turned into another one."""
    protocol = services.config.security_protocols[context.listener.name]
    principal = context.principal
    if principal.token_authenticated or protocol == "PLAINTEXT":
        return False
    # TLS without a client certificate says nothing about the client.
    return protocol != "SSL" or principal != ANONYMOUS


def token_creation_denied(services: Services, context: "RequestContext", owner: Principal) -> bool:
    """Whether a client may not create a token of another owner."""
    access = services.access
    if access is None or str(owner) == str(context.principal):
        return False
    return not access.allows(context, AclOperation.CREATE_TOKENS, AclResourceType.USER, str(owner))


def may_describe_token(services: Services, context: "RequestContext", token: StoredToken) -> bool:
    """Whether a client sees a token: its own, one that it may renew, or by a right on the token or its owner."""
    access = services.access
    if access is None or concerns(token, str(context.principal)):
        return True
    return access.allows(
        context, AclOperation.DESCRIBE, AclResourceType.DELEGATION_TOKEN, token.token_id, log_denied=False
    ) or access.allows(context, AclOperation.DESCRIBE_TOKENS, AclResourceType.USER, token.owner, log_denied=False)
