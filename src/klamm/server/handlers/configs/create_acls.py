"""CreateAcls, v1-3: add access rules.

A rule that no authorizer would obey is not kept: SECURITY_DISABLED, as Kafka answers without one.
v2 flexible · v3 user resources
"""

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services

NO_AUTHORIZER = "No Authorizer is configured."


def handle(_services: Services, _context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    """Refuse each rule."""
    refusal = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    return CreateAclsResponse(results=[refusal] * len(request.creations))
