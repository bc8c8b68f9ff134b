"""The checks that handlers make before they look up a resource.

A forbidden resource and a missing one then have the same answer. Without an authorizer (`services.access` is None)
nothing is denied.
"""

from klamm.model.acls import AclOperation, AclResourceType
from klamm.security.core.acl import CLUSTER_NAME
from klamm.server.requests.access.control import Requester
from klamm.server.services import Services


def topic_denied(
    services: Services, client: Requester, operation: AclOperation, name: str, *, count: int = 1, audit: bool = True
) -> bool:
    """Whether a client may not do something with a topic."""
    access = services.access
    return access is not None and not access.allows(
        client, operation, AclResourceType.TOPIC, name, count=count, log_denied=audit, log_allowed=audit
    )


def group_denied(
    services: Services, client: Requester, operation: AclOperation, group_id: str, *, audit: bool = True
) -> bool:
    """Whether a client may not do something with a group."""
    access = services.access
    return access is not None and not access.allows(
        client, operation, AclResourceType.GROUP, group_id, log_denied=audit, log_allowed=audit
    )


def transactional_id_denied(
    services: Services, client: Requester, operation: AclOperation, transactional_id: str, *, audit: bool = True
) -> bool:
    """Whether a client may not do something with a transactional id."""
    access = services.access
    return access is not None and not access.allows(
        client, operation, AclResourceType.TRANSACTIONAL_ID, transactional_id, log_denied=audit, log_allowed=audit
    )


def cluster_denied(services: Services, client: Requester, operation: AclOperation, *, audit: bool = True) -> bool:
    """Whether a client may not do something with the cluster."""
    access = services.access
    return access is not None and not access.allows(
        client, operation, AclResourceType.CLUSTER, CLUSTER_NAME, log_denied=audit, log_allowed=audit
    )
