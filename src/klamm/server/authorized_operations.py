"""Bit sets of AclOperation codes: what a client may do to a topic, a group and the cluster.

Without an authorizer nothing is forbidden, so a client that asks is told all operations its kind of resource has.
"""

from typing import Final

NOT_ASKED: Final = -(2**31)
"""The answer to a client that did not ask."""

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION = 3, 4, 5, 6, 7, 8, 9
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 10, 11, 12
_CONFIGS = (_DESCRIBE_CONFIGS, _ALTER_CONFIGS)


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS: Final = _bits(_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, *_CONFIGS)
GROUP_OPERATIONS: Final = _bits(_READ, _DELETE, _DESCRIBE, *_CONFIGS)
CLUSTER_OPERATIONS: Final = _bits(_CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _IDEMPOTENT_WRITE, *_CONFIGS)
