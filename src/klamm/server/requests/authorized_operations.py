"""Bit sets of AclOperation codes: the operations a client is authorized for on a topic, a group and the cluster.

Without an authorizer nothing is forbidden, so they contain all operations of the resource type.
"""

from typing import Final

from klamm.model.acls import AclOperation

NOT_REQUESTED: Final = -(2**31)
"""The value for a client that did not request them."""

_CONFIGS = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)


def _encode_bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS: Final = _encode_bits(
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    *_CONFIGS,
)
GROUP_OPERATIONS: Final = _encode_bits(AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE, *_CONFIGS)
CLUSTER_OPERATIONS: Final = _encode_bits(
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.IDEMPOTENT_WRITE,
    *_CONFIGS,
)
