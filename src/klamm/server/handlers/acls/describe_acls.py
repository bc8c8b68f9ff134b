"""DescribeAcls, v1-3: the ACLs that a filter selects, by resource.

SECURITY_DISABLED without an authorizer.
v2 flexible · v3 user resources
"""

from collections.abc import Sequence
from typing import Final

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from klamm.security.core.acl import AccessControlEntry, filter_from_codes
from klamm.server.requests.context import RequestContext
from klamm.server.requests.slices import SliceSteps, cut
from klamm.server.services import Services

NO_AUTHORIZER: Final = "No Authorizer is configured on the broker"
"""Kafka's text, which differs from that of CreateAcls and DeleteAcls."""


def handle(
    services: Services, _context: RequestContext, request: DescribeAclsRequest
) -> SliceSteps[DescribeAclsResponse]:
    """Answer from this node's image."""
    access = services.access
    if access is None:
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    entry_filter = filter_from_codes(
        request.resource_type_filter,
        request.resource_name_filter,
        request.pattern_type_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    unknown = entry_filter.find_unknown()
    if unknown is not None:
        return DescribeAclsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=f"Unknown {unknown}.")
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    for entries in cut(access.authorizer.find(entry_filter)):
        _add_by_resource(resources, entries)
        yield len(entries)
    return DescribeAclsResponse(error_message=None, resources=list(resources.values()))


def _add_by_resource(
    resources: dict[tuple[int, str, int], DescribeAclsResource], entries: Sequence[AccessControlEntry]
) -> None:
    for entry in entries:
        key = (entry.resource_type, entry.resource_name, entry.pattern_type)
        resource = resources.get(key)
        if resource is None:
            resource = resources[key] = DescribeAclsResource(
                resource_type=entry.resource_type, resource_name=entry.resource_name, pattern_type=entry.pattern_type
            )
        resource.acls.append(
            AclDescription(
                principal=entry.principal,
                host=entry.host,
                operation=entry.operation,
                permission_type=entry.permission,
            )
        )
