"""Bit sets of AclOperation codes: the operations a client is authorized for on a topic, a group and the cluster.

Without an authorizer nothing is forbidden, so they contain all operations of the resource type.
"""

from typing import Final

from klamm.model.acls import AclOperation, AclResourceType
from klamm.security.core.acl import CLUSTER_NAME
from klamm.server.requests.access.control import Requester
from klamm.server.services import Services

NOT_REQUESTED: Final = -(2**31)
"""The value for a client that did not request them."""

_CONFIGS = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)
_OPERATIONS: Final = {
    AclResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        *_CONFIGS,
    ),
    AclResourceType.GROUP: (AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE, *_CONFIGS),
    AclResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.IDEMPOTENT_WRITE,
        *_CONFIGS,
    ),
}
"""The operations that Kafka defines for a resource type."""
_ALL: Final = {
    resource_type: sum(1 << operation for operation in operations) for resource_type, operations in _OPERATIONS.items()
}


def topic_operations(services: Services, client: Requester, name: str) -> int:
    """Return the operations a client is authorized for on a topic."""
    return _list_operations(services, client, AclResourceType.TOPIC, name)


def group_operations(services: Services, client: Requester, group_id: str) -> int:
    """Return the operations a client is authorized for on a group."""
    return _list_operations(services, client, AclResourceType.GROUP, group_id)


def cluster_operations(services: Services, client: Requester) -> int:
    """Return the operations a client is authorized for on the cluster; none without the right to describe it."""
    access = services.access
    if access is not None and not access.allows(
        client, AclOperation.DESCRIBE, AclResourceType.CLUSTER, CLUSTER_NAME, log_denied=False, log_allowed=False
    ):
        return 0
    return _list_operations(services, client, AclResourceType.CLUSTER, CLUSTER_NAME)


def _list_operations(services: Services, client: Requester, resource_type: AclResourceType, name: str) -> int:
    access = services.access
    if access is None:
        return _ALL[resource_type]
    return access.operations(client, _OPERATIONS[resource_type], resource_type, name)
