"""The check at the route of APIs whose right concerns the cluster alone."""

from collections.abc import Callable
from typing import Any

from klamm.model.acls import AclResourceType
from klamm.model.errors import ErrorCode
from klamm.security.core.acl import CLUSTER_NAME
from klamm.server.requests.access.refusals import refuse_whole
from klamm.server.requests.access.rights import Requirements
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services

HandleRequest = Callable[[Services, RequestContext, Any], Any]


def guard_handler(handle: HandleRequest, requirements: Requirements) -> HandleRequest:
    """Return a handler that refuses clients without the right, and calls `handle` for all others."""

    def handle_guarded(services: Services, context: RequestContext, request: Any) -> Any:
        if not meets(services, context, requirements):
            return refuse_whole(request, context.version, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return handle(services, context, request)

    return handle_guarded


def meets(services: Services, context: RequestContext, requirements: Requirements) -> bool:
    """Whether a client has the rights on the cluster that an API requires."""
    access = services.access
    if access is None:
        return True
    for requirement in requirements:
        allowed = False
        for position, right in enumerate(requirement):
            # The last alternative writes the audit line: the others are no denial yet.
            last = position == len(requirement) - 1
            if access.allows(context, right.operation, AclResourceType.CLUSTER, CLUSTER_NAME, log_denied=last):
                allowed = True
                break
        if not allowed:
            return False
    return True
