"""CreateAcls, v1-3: add ACLs; decided by the controller.

SECURITY_DISABLED without an authorizer. An invalid ACL is INVALID_REQUEST, the others of the request are created; one
that exists already succeeds. In force on a broker as soon as its image has it.
v2 flexible · v3 user resources
"""

from typing import Final

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import forward_to_controller
from klamm.server.services import Services

NO_AUTHORIZER: Final = "No Authorizer is configured."
"""Kafka's text for changes of ACLs in a cluster without an authorizer."""


async def handle(services: Services, context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    """Let the active controller decide."""
    if services.access is None:
        refusal = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
        return CreateAclsResponse(results=[refusal] * len(request.creations))
    response: CreateAclsResponse = await forward_to_controller(services, context, request)
    return response
