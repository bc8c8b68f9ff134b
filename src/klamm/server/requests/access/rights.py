"""The right that every API needs: one row per API, without which an API cannot be served.

A row is a list of requirements that must all be met; a requirement is a list of rights of which one suffices. An API
whose requirements concern the cluster alone is checked at its route (`guard`), before its handler runs. All others are
checked in their handlers, because parts of a request may be allowed and others not.
"""

from typing import Final, NamedTuple

from klamm.model.acls import AclOperation as Op
from klamm.model.acls import AclResourceType as Type


class Right(NamedTuple):
    """An operation on a type of resource."""

    resource_type: Type
    operation: Op


Requirement = tuple[Right, ...]
"""Rights of which one suffices."""
Requirements = tuple[Requirement, ...]
"""Requirements that must all be met."""


def _topic(operation: Op) -> Requirement:
    return (Right(Type.TOPIC, operation),)


def _group(operation: Op) -> Requirement:
    return (Right(Type.GROUP, operation),)


def _transactional_id(operation: Op) -> Requirement:
    return (Right(Type.TRANSACTIONAL_ID, operation),)


def _cluster(*operations: Op) -> Requirement:
    return tuple(Right(Type.CLUSTER, operation) for operation in operations)


_NOTHING: Final[Requirements] = ()
_CLUSTER_ACTION: Final[Requirements] = (_cluster(Op.CLUSTER_ACTION),)
_ALTER_CLUSTER: Final[Requirements] = (_cluster(Op.ALTER),)
_DESCRIBE_CLUSTER: Final[Requirements] = (_cluster(Op.DESCRIBE),)
_CONFIGURED: Final = (Type.TOPIC, Type.GROUP, Type.CLUSTER)
"""The resources of configs: topics, groups, and the cluster for brokers, loggers and client metrics."""

RIGHTS: Final[dict[str, Requirements]] = {
    "AddOffsetsToTxn": (_transactional_id(Op.WRITE), _group(Op.READ)),
    # From v4 on a request of brokers: CLUSTER_ACTION in place of both.
    "AddPartitionsToTxn": (_transactional_id(Op.WRITE), _topic(Op.WRITE)),
    "AddRaftVoter": _ALTER_CLUSTER,
    "AllocateProducerIds": _CLUSTER_ACTION,
    "AlterClientQuotas": (_cluster(Op.ALTER_CONFIGS),),
    "AlterConfigs": (tuple(Right(resource_type, Op.ALTER_CONFIGS) for resource_type in _CONFIGURED),),
    "AlterPartition": _CLUSTER_ACTION,
    "AlterPartitionReassignments": _ALTER_CLUSTER,
    "AlterReplicaLogDirs": _ALTER_CLUSTER,
    "AlterUserScramCredentials": _ALTER_CLUSTER,
    "ApiVersions": _NOTHING,
    "AssignReplicasToDirs": _CLUSTER_ACTION,
    "BeginQuorumEpoch": _CLUSTER_ACTION,
    "BrokerHeartbeat": _CLUSTER_ACTION,
    "BrokerRegistration": _CLUSTER_ACTION,
    "ConsumerGroupDescribe": (_group(Op.DESCRIBE), _topic(Op.DESCRIBE)),
    "ConsumerGroupHeartbeat": (_group(Op.READ), _topic(Op.DESCRIBE)),
    "ControllerRegistration": _CLUSTER_ACTION,
    "CreateAcls": _ALTER_CLUSTER,
    # A token of one's own needs no right; one for another user CREATE_TOKENS on that user.
    "CreateDelegationToken": _NOTHING,
    "CreatePartitions": (_topic(Op.ALTER),),
    "CreateTopics": ((*_cluster(Op.CREATE), *_topic(Op.CREATE)),),
    "DeleteAcls": _ALTER_CLUSTER,
    "DeleteGroups": (_group(Op.DELETE),),
    "DeleteRecords": (_topic(Op.DELETE),),
    "DeleteTopics": ((*_cluster(Op.DELETE), *_topic(Op.DELETE)),),
    "DescribeAcls": _DESCRIBE_CLUSTER,
    "DescribeClientQuotas": (_cluster(Op.DESCRIBE_CONFIGS),),
    "DescribeCluster": _NOTHING,
    "DescribeConfigs": (tuple(Right(resource_type, Op.DESCRIBE_CONFIGS) for resource_type in _CONFIGURED),),
    # Shows the tokens that a client owns or may renew; others with DESCRIBE on the token or its owner.
    "DescribeDelegationToken": _NOTHING,
    "DescribeGroups": (_group(Op.DESCRIBE),),
    "DescribeLogDirs": _DESCRIBE_CLUSTER,
    "DescribeProducers": (_topic(Op.READ),),
    "DescribeQuorum": _DESCRIBE_CLUSTER,
    "DescribeTopicPartitions": (_topic(Op.DESCRIBE),),
    "DescribeTransactions": (_transactional_id(Op.DESCRIBE), _topic(Op.DESCRIBE)),
    "DescribeUserScramCredentials": _DESCRIBE_CLUSTER,
    "ElectLeaders": _ALTER_CLUSTER,
    "EndQuorumEpoch": _CLUSTER_ACTION,
    "EndTxn": (_transactional_id(Op.WRITE),),
    "Envelope": _CLUSTER_ACTION,
    "ExpireDelegationToken": _NOTHING,
    # As a replica CLUSTER_ACTION in place of READ.
    "Fetch": (_topic(Op.READ),),
    "FetchSnapshot": _CLUSTER_ACTION,
    "FindCoordinator": ((*_group(Op.DESCRIBE), *_transactional_id(Op.DESCRIBE), *_cluster(Op.CLUSTER_ACTION)),),
    "Heartbeat": (_group(Op.READ),),
    "IncrementalAlterConfigs": (tuple(Right(resource_type, Op.ALTER_CONFIGS) for resource_type in _CONFIGURED),),
    # Without a transactional id IDEMPOTENT_WRITE, or WRITE on any topic.
    "InitProducerId": ((*_transactional_id(Op.WRITE), *_cluster(Op.IDEMPOTENT_WRITE), *_topic(Op.WRITE)),),
    "JoinGroup": (_group(Op.READ),),
    "LeaveGroup": (_group(Op.READ),),
    "ListConfigResources": (_cluster(Op.DESCRIBE_CONFIGS),),
    # A listing: leaves out what the client may not describe.
    "ListGroups": ((*_cluster(Op.DESCRIBE), *_group(Op.DESCRIBE)),),
    "ListOffsets": (_topic(Op.DESCRIBE),),
    "ListPartitionReassignments": _DESCRIBE_CLUSTER,
    "ListTransactions": (_transactional_id(Op.DESCRIBE),),
    "Metadata": (_topic(Op.DESCRIBE),),
    "OffsetCommit": (_group(Op.READ), _topic(Op.READ)),
    "OffsetDelete": (_group(Op.DELETE), _topic(Op.READ)),
    "OffsetFetch": (_group(Op.DESCRIBE), _topic(Op.DESCRIBE)),
    "OffsetForLeaderEpoch": ((*_topic(Op.DESCRIBE), *_cluster(Op.CLUSTER_ACTION)),),
    # Batches of a transaction need WRITE on the transactional id, too.
    "Produce": (_topic(Op.WRITE),),
    "RemoveRaftVoter": _ALTER_CLUSTER,
    "RenewDelegationToken": _NOTHING,
    "SaslAuthenticate": _NOTHING,
    "SaslHandshake": _NOTHING,
    "SyncGroup": (_group(Op.READ),),
    "TxnOffsetCommit": (_transactional_id(Op.WRITE), _group(Op.READ), _topic(Op.READ)),
    "UnregisterBroker": _ALTER_CLUSTER,
    "UpdateFeatures": _ALTER_CLUSTER,
    "UpdateRaftVoter": _CLUSTER_ACTION,
    "Vote": _CLUSTER_ACTION,
    "WriteTxnMarkers": (_cluster(Op.ALTER, Op.CLUSTER_ACTION),),
}
"""The rights of APIs, on listeners of both kinds unless CONTROLLER_RIGHTS has a row."""

CONTROLLER_RIGHTS: Final[dict[str, Requirements]] = {
    "DescribeCluster": _ALTER_CLUSTER,
    "Fetch": _CLUSTER_ACTION,
}
"""The rights of APIs that need another one on a controller listener."""


def find_requirements(api: str, kind: str) -> Requirements:
    """Return what an API requires on a kind of listener; LookupError for one without a row."""
    if kind == "controller" and api in CONTROLLER_RIGHTS:
        return CONTROLLER_RIGHTS[api]
    try:
        return RIGHTS[api]
    except KeyError:
        raise LookupError(f"{api} has no row in server/requests/access/rights.py: state the right it needs") from None


def is_guarded(requirements: Requirements) -> bool:
    """Whether the route checks the requirements: all of them concern the cluster."""
    return bool(requirements) and all(
        right.resource_type is Type.CLUSTER for requirement in requirements for right in requirement
    )
