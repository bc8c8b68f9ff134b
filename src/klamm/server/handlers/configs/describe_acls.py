"""DescribeAcls, v1-3: the access rules that match a filter.

There is no authorizer, so there are no rules to tell: SECURITY_DISABLED, as Kafka answers without one.
v2 flexible · v3 user resources
"""

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


def handle(_services: Services, _context: RequestContext, _request: DescribeAclsRequest) -> DescribeAclsResponse:
    """Say that nothing is guarded."""
    return DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker"
    )
