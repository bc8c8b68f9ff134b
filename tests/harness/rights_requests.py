"""One request of every API for the matrix of rights: what it names, and the error of each missing right.

`{T}`, `{G}` and `{X}` of a row are an existing topic, a group and a transactional id. An API that is served and has no
row fails the matrix.
"""

from dataclasses import dataclass, field
from typing import Any

from harness.access import CLUSTER_DENIED, GROUP_DENIED, TOPIC_DENIED, TRANSACTIONAL_ID_DENIED
from harness.wire import batch
from klamm.protocol.codec import encode
from klamm.protocol.header import RequestHeader, encode_request_header
from klamm.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from klamm.security.core.principal import Principal
from klamm.server.controller.channel import encode_principal

TOPIC, GROUP, TRANSACTIONAL_ID = "orders", "readers", "writer-1"
TOPIC_ID = b"the id of TOPIC."
"""Stands for the id that the topic of a running node has."""
OTHER_NODE = 99
"""The id of a node that does not exist: requests of brokers and controllers are refused for other reasons, at most."""


@dataclass(frozen=True)
class Row:
    """A request, and the error for each requirement of the API in the order of `server/requests/access/rights`."""

    version: int
    denials: tuple[int, ...]
    fields: dict[str, Any] = field(default_factory=dict)
    on_denial: str = "error"
    """"error": the reply has the code. "hidden": the reply leaves the resource out."""
    lowest: dict[str, Any] = field(default_factory=dict)
    """Fields that the lowest version has instead of, or besides, those of `version`."""
    highest: dict[str, Any] = field(default_factory=dict)
    """The same for the highest version."""
    lowest_version: int = 0
    """A version below which a denial has no place, if there is one."""
    last_version: int | None = None
    """The last version of the same rights, if later ones need others."""


_PARTITION = {"name": TOPIC, "partitions": [{"partition_index": 0}]}
_ACL = {
    "resource_type": 2,
    "resource_name": TOPIC,
    "resource_pattern_type": 3,
    "principal": "User:carol",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
_ACL_FILTER = {
    "resource_type_filter": 2,
    "resource_name_filter": "no such topic",
    "pattern_type_filter": 3,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
_OTHER_CLUSTER = "another-cluster-id-000"
_INNER = encode_request_header(RequestHeader(46, 0, 1, "inner")) + encode(
    ListPartitionReassignmentsRequest(timeout_ms=1000, topics=None), 0
)

BROKER_ROWS: dict[str, Row] = {
    "Produce": Row(
        9,
        (TOPIC_DENIED,),
        {
            "acks": 1,
            "timeout": 1000,
            "topic_data": [
                {"name": TOPIC, "topic_id": TOPIC_ID, "partition_data": [{"index": 0, "records": batch(b"v")}]}
            ],
        },
    ),
    "Fetch": Row(
        12,
        (TOPIC_DENIED,),
        {
            "replica_id": -1,
            "max_wait": 0,
            "max_bytes": 1000,
            "topics": [
                {
                    "topic": TOPIC,
                    "topic_id": TOPIC_ID,
                    "partitions": [
                        {
                            "partition": 0,
                            "fetch_offset": 0,
                            "partition_max_bytes": 1000,
                            "current_leader_epoch": -1,
                            "last_fetched_epoch": -1,
                        }
                    ],
                }
            ],
        },
    ),
    "ListOffsets": Row(
        7,
        (TOPIC_DENIED,),
        {
            "replica_id": -1,
            "topics": [
                {
                    "name": TOPIC,
                    "partitions": [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}],
                }
            ],
        },
    ),
    "Metadata": Row(12, (TOPIC_DENIED,), {"topics": [{"name": TOPIC}]}),
    "OffsetCommit": Row(
        8,
        (GROUP_DENIED, TOPIC_DENIED),
        {
            "group_id": GROUP,
            "generation_id_or_member_epoch": -1,
            "topics": [
                {
                    "name": TOPIC,
                    "topic_id": TOPIC_ID,
                    "partitions": [{"partition_index": 0, "committed_offset": 1}],
                }
            ],
        },
    ),
    "OffsetFetch": Row(
        8,
        (GROUP_DENIED, TOPIC_DENIED),
        {
            "groups": [
                {
                    "group_id": GROUP,
                    "topics": [{"name": TOPIC, "topic_id": TOPIC_ID, "partition_indexes": [0]}],
                    "member_epoch": -1,
                }
            ]
        },
        lowest={"group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": [0]}]},
    ),
    "FindCoordinator": Row(4, (GROUP_DENIED,), {"key_type": 0, "coordinator_keys": [GROUP]}, lowest={"key": GROUP}),
    "JoinGroup": Row(
        5,
        (GROUP_DENIED,),
        {
            "group_id": GROUP,
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
    ),
    "Heartbeat": Row(3, (GROUP_DENIED,), {"group_id": GROUP, "member_id": "m"}),
    "LeaveGroup": Row(
        3,
        (GROUP_DENIED,),
        {"group_id": GROUP, "members": [{"member_id": "m"}]},
        lowest={"member_id": "m"},
    ),
    "SyncGroup": Row(
        3,
        (GROUP_DENIED,),
        {"group_id": GROUP, "member_id": "m"},
        highest={"protocol_type": "consumer", "protocol_name": "range"},
    ),
    "DescribeGroups": Row(5, (GROUP_DENIED,), {"groups": [GROUP]}),
    "ListGroups": Row(4, (GROUP_DENIED,), {}, on_denial="hidden"),
    "SaslHandshake": Row(1, (), {"mechanism": "PLAIN"}),
    "SaslAuthenticate": Row(1, ()),
    "ApiVersions": Row(0, ()),
    "CreateTopics": Row(
        7,
        (TOPIC_DENIED,),
        {
            "topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}],
            "timeout": 1000,
            "validate_only": True,
        },
    ),
    "DeleteTopics": Row(
        6,
        (TOPIC_DENIED,),
        {"topics": [{"name": "no-such-topic", "topic_id": bytes(16)}], "timeout": 5000},
        lowest={"topic_names": ["no-such-topic"]},
    ),
    "DeleteRecords": Row(
        2,
        (TOPIC_DENIED,),
        {"topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 0}]}], "timeout": 1000},
    ),
    "InitProducerId": Row(
        4,
        (TRANSACTIONAL_ID_DENIED,),
        {
            "transactional_id": TRANSACTIONAL_ID,
            "transaction_timeout": 10_000,
            "producer_id": -1,
            "producer_epoch": -1,
        },
    ),
    "OffsetForLeaderEpoch": Row(
        4,
        (TOPIC_DENIED,),
        {
            "replica_id": -2,
            "topics": [{"topic": TOPIC, "partitions": [{"partition": 0, "current_leader_epoch": -1}]}],
        },
    ),
    "AddPartitionsToTxn": Row(
        3,
        (TRANSACTIONAL_ID_DENIED, TOPIC_DENIED),
        {
            "v3_and_below_transactional_id": TRANSACTIONAL_ID,
            "v3_and_below_topics": [{"name": TOPIC, "partitions": [0]}],
        },
        last_version=3,
    ),
    "AddOffsetsToTxn": Row(
        3, (TRANSACTIONAL_ID_DENIED, GROUP_DENIED), {"transactional_id": TRANSACTIONAL_ID, "group_id": GROUP}
    ),
    "EndTxn": Row(3, (TRANSACTIONAL_ID_DENIED,), {"transactional_id": TRANSACTIONAL_ID}),
    "WriteTxnMarkers": Row(
        1,
        (CLUSTER_DENIED,),
        {"markers": [{"producer_id": 1, "topics": [{"name": "no-such-topic", "partition_indexes": [0]}]}]},
    ),
    "TxnOffsetCommit": Row(
        3,
        (TRANSACTIONAL_ID_DENIED, GROUP_DENIED, TOPIC_DENIED),
        {
            "transactional_id": TRANSACTIONAL_ID,
            "group_id": GROUP,
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
        },
    ),
    "DescribeAcls": Row(3, (CLUSTER_DENIED,), _ACL_FILTER),
    "CreateAcls": Row(3, (CLUSTER_DENIED,), {"creations": [_ACL]}),
    "DeleteAcls": Row(3, (CLUSTER_DENIED,), {"filters": [_ACL_FILTER]}),
    "DescribeConfigs": Row(
        4,
        (TOPIC_DENIED,),
        {"resources": [{"resource_type": 2, "resource_name": TOPIC, "configuration_keys": None}]},
    ),
    "AlterConfigs": Row(
        2,
        (TOPIC_DENIED,),
        {"resources": [{"resource_type": 2, "resource_name": TOPIC, "configs": []}], "validate_only": True},
    ),
    "IncrementalAlterConfigs": Row(
        1,
        (TOPIC_DENIED,),
        {"resources": [{"resource_type": 2, "resource_name": TOPIC, "configs": []}], "validate_only": True},
    ),
    "AlterReplicaLogDirs": Row(
        2,
        (CLUSTER_DENIED,),
        {"dirs": [{"path": "no-such-dir", "topics": [{"name": "no-such-topic", "partitions": [0]}]}]},
    ),
    "DescribeLogDirs": Row(4, (CLUSTER_DENIED,), {"topics": None}),
    "CreatePartitions": Row(
        3,
        (TOPIC_DENIED,),
        {"topics": [{"name": TOPIC, "count": 2, "assignments": None}], "timeout": 1000, "validate_only": True},
    ),
    "DeleteGroups": Row(2, (GROUP_DENIED,), {"groups_names": [GROUP]}),
    "DescribeClientQuotas": Row(1, (CLUSTER_DENIED,), {"components": []}),
    "AlterClientQuotas": Row(
        1,
        (CLUSTER_DENIED,),
        {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "no-such-user"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": True}],
                }
            ],
            "validate_only": True,
        },
    ),
    "CreateDelegationToken": Row(3, ()),
    "RenewDelegationToken": Row(2, ()),
    "ExpireDelegationToken": Row(2, ()),
    "DescribeDelegationToken": Row(3, (), {"owners": []}),
    "DescribeUserScramCredentials": Row(0, (CLUSTER_DENIED,), {"users": [{"name": "no-such-user"}]}),
    "AlterUserScramCredentials": Row(0, (CLUSTER_DENIED,), {"deletions": [{"name": "no-such-user", "mechanism": 1}]}),
    "ElectLeaders": Row(
        2, (CLUSTER_DENIED,), {"topic_partitions": [{"topic": TOPIC, "partitions": [0]}], "timeout": 1000}
    ),
    "AlterPartitionReassignments": Row(
        0,
        (CLUSTER_DENIED,),
        {
            "timeout": 1000,
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": None}]}],
        },
    ),
    "ListPartitionReassignments": Row(0, (CLUSTER_DENIED,), {"timeout": 1000, "topics": None}),
    "OffsetDelete": Row(0, (GROUP_DENIED, TOPIC_DENIED), {"group_id": "offsets-only", "topics": [_PARTITION]}),
    "DescribeQuorum": Row(
        1,
        (CLUSTER_DENIED,),
        {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
    ),
    "UpdateFeatures": Row(1, (CLUSTER_DENIED,), {"timeout": 1000, "validate_only": True}),
    "DescribeCluster": Row(0, ()),
    "DescribeProducers": Row(0, (TOPIC_DENIED,), {"topics": [{"name": TOPIC, "partition_indexes": [0]}]}),
    "UnregisterBroker": Row(0, (CLUSTER_DENIED,), {"broker_id": OTHER_NODE}),
    "DescribeTransactions": Row(0, (TRANSACTIONAL_ID_DENIED,), {"transactional_ids": ["no-such-writer"]}),
    "ListTransactions": Row(0, (TRANSACTIONAL_ID_DENIED,), {}, on_denial="hidden"),
    "ConsumerGroupHeartbeat": Row(
        0,
        (GROUP_DENIED, TOPIC_DENIED),
        {
            "group_id": "new-protocol",
            "member_id": "m",
            "member_epoch": 0,
            "rebalance_timeout": 10_000,
            "subscribed_topic_names": [TOPIC],
            "topic_partitions": [],
        },
    ),
    "ConsumerGroupDescribe": Row(0, (GROUP_DENIED, TOPIC_DENIED), {"group_ids": ["described"]}),
    "ListConfigResources": Row(1, (CLUSTER_DENIED,), {"resource_types": [4]}),
    "DescribeTopicPartitions": Row(
        0, (TOPIC_DENIED,), {"topics": [{"name": TOPIC}], "response_partition_limit": 10, "cursor": None}
    ),
    "AddRaftVoter": Row(
        0,
        (CLUSTER_DENIED,),
        {"cluster_id": _OTHER_CLUSTER, "timeout": 1000, "voter_id": OTHER_NODE, "voter_directory_id": bytes(16)},
    ),
    "RemoveRaftVoter": Row(
        0,
        (CLUSTER_DENIED,),
        {"cluster_id": _OTHER_CLUSTER, "voter_id": OTHER_NODE, "voter_directory_id": bytes(16)},
    ),
}

_METADATA = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}

CONTROLLER_ROWS: dict[str, Row] = {
    "Fetch": Row(
        12,
        (CLUSTER_DENIED,),
        {"cluster_id": _OTHER_CLUSTER, "replica_id": OTHER_NODE, "max_wait": 0},
        lowest_version=7,
    ),
    "Vote": Row(0, (CLUSTER_DENIED,), {"cluster_id": _OTHER_CLUSTER, "topics": [_METADATA]}),
    "BeginQuorumEpoch": Row(0, (CLUSTER_DENIED,), {"cluster_id": _OTHER_CLUSTER, "topics": [_METADATA]}),
    "EndQuorumEpoch": Row(0, (CLUSTER_DENIED,), {"cluster_id": _OTHER_CLUSTER, "topics": [_METADATA]}),
    "FetchSnapshot": Row(0, (CLUSTER_DENIED,), {"cluster_id": _OTHER_CLUSTER, "replica_id": OTHER_NODE}),
    "AlterPartition": Row(3, (CLUSTER_DENIED,), {"broker_id": OTHER_NODE}),
    "BrokerRegistration": Row(0, (CLUSTER_DENIED,), {"broker_id": OTHER_NODE, "cluster_id": _OTHER_CLUSTER}),
    "BrokerHeartbeat": Row(0, (CLUSTER_DENIED,), {"broker_id": OTHER_NODE}),
    "AllocateProducerIds": Row(0, (CLUSTER_DENIED,), {"broker_id": OTHER_NODE}),
    "AssignReplicasToDirs": Row(0, (CLUSTER_DENIED,), {"broker_id": OTHER_NODE}),
    "ControllerRegistration": Row(0, (CLUSTER_DENIED,), {"controller_id": OTHER_NODE}),
    "UpdateRaftVoter": Row(
        0,
        (CLUSTER_DENIED,),
        {"cluster_id": _OTHER_CLUSTER, "voter_id": OTHER_NODE, "voter_directory_id": bytes(16)},
    ),
    "DescribeCluster": Row(1, (CLUSTER_DENIED,), {"endpoint_type": 2}),
    "Envelope": Row(
        0,
        (CLUSTER_DENIED,),
        {
            "request_data": _INNER,
            "request_principal": encode_principal(Principal("User", "ANONYMOUS")),
            "client_host_address": b"\x7f\0\0\1",
        },
    ),
}
"""Rows of the controller listener that are not those of the broker listener."""
