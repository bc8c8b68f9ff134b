"""DeleteAcls, v1-3: remove the access rules that match filters.

Without an authorizer there are none: SECURITY_DISABLED, as Kafka answers.
v2 flexible · v3 user resources
"""

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from klamm.server.handlers.configs.create_acls import NO_AUTHORIZER
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


def handle(_services: Services, _context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """Refuse each filter."""
    refusal = DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    return DeleteAclsResponse(filter_results=[refusal] * len(request.filters))
