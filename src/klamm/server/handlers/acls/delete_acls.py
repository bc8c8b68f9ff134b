"""DeleteAcls, v1-3: remove the ACLs that filters select; decided by the controller.

SECURITY_DISABLED without an authorizer. A filter that selects nothing succeeds.
v2 flexible · v3 user resources
"""

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from klamm.server.handlers.acls.create_acls import NO_AUTHORIZER
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import forward_to_controller
from klamm.server.services import Services


async def handle(services: Services, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """Let the active controller decide."""
    if services.access is None:
        refusal = DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
        return DeleteAclsResponse(filter_results=[refusal] * len(request.filters))
    response: DeleteAclsResponse = await forward_to_controller(services, context, request)
    return response
