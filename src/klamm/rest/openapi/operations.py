"""What every route takes and answers, by method and path."""

from __future__ import annotations

from typing import Final, NamedTuple

from klamm.rest.openapi.schemas import COUNT, FLAG, TEXT, OpenApiSchema

_C: Final = "/v3/clusters/{cluster_id}"
_T: Final = f"{_C}/topics/{{topic_name}}"
_P: Final = f"{_T}/partitions/{{partition_id}}"
_G: Final = f"{_C}/consumer-groups/{{group_id}}"
_I: Final = "/consumers/{group}/instances/{instance}"


class DescribedOperation(NamedTuple):
    """Names of schemas: of the answer (None for none), of the body; the status; parameters of the query."""

    answer: str | None
    body: str | None = None
    status: int = 200
    query: tuple[tuple[str, OpenApiSchema, bool], ...] = ()
    """Name, schema, whether it is needed."""
    streams: bool = False


_OPERATIONS_FLAG: Final = (("include_authorized_operations", FLAG, False),)
_ACL_NAMES: Final = (
    "resource_type",
    "resource_name",
    "pattern_type",
    "principal",
    "host",
    "operation",
    "permission",
)
_ACL_QUERY: Final = tuple((name, TEXT, False) for name in _ACL_NAMES)
_ACL_DELETION: Final = tuple(
    (name, TEXT, name in ("resource_type", "pattern_type", "operation")) for name in _ACL_NAMES
)


def _configs(pattern: str, name: str) -> dict[tuple[str, str], DescribedOperation]:
    entry = f"{pattern}/{{name}}"
    return {
        ("GET", pattern): DescribedOperation(f"{name}List"),
        ("GET", entry): DescribedOperation(name),
        ("PUT", entry): DescribedOperation(None, "ConfigValueRequest", 204),
        ("DELETE", entry): DescribedOperation(None, None, 204),
        ("POST", f"{pattern}:alter"): DescribedOperation(None, "AlterConfigsRequest", 204),
    }


OPERATIONS: Final[dict[tuple[str, str], DescribedOperation]] = {
    # v2
    ("GET", "/topics"): DescribedOperation("TopicNames"),
    ("GET", "/topics/{topic}"): DescribedOperation("TopicV2"),
    ("POST", "/topics/{topic}"): DescribedOperation("ProduceAnswerV2", "ProduceRequestV2"),
    ("GET", "/topics/{topic}/partitions"): DescribedOperation("PartitionsV2"),
    ("GET", "/topics/{topic}/partitions/{partition}"): DescribedOperation("PartitionV2"),
    ("POST", "/topics/{topic}/partitions/{partition}"): DescribedOperation("ProduceAnswerV2", "ProduceRequestV2"),
    ("GET", "/topics/{topic}/partitions/{partition}/offsets"): DescribedOperation("PartitionOffsets"),
    ("GET", "/brokers"): DescribedOperation("BrokersV2"),
    ("POST", "/consumers/{group}"): DescribedOperation("Instance", "InstanceRequest"),
    ("DELETE", _I): DescribedOperation(None, None, 204),
    ("POST", f"{_I}/subscription"): DescribedOperation(None, "SubscriptionRequest", 204),
    ("GET", f"{_I}/subscription"): DescribedOperation("Subscription"),
    ("DELETE", f"{_I}/subscription"): DescribedOperation(None, None, 204),
    ("POST", f"{_I}/assignments"): DescribedOperation(None, "Partitions", 204),
    ("GET", f"{_I}/assignments"): DescribedOperation("Partitions"),
    ("POST", f"{_I}/offsets"): DescribedOperation(None, "CommitRequest", 204),
    ("GET", f"{_I}/offsets"): DescribedOperation("CommittedOffsets", "Partitions"),
    ("POST", f"{_I}/positions"): DescribedOperation(None, "SeekRequest", 204),
    ("POST", f"{_I}/positions/beginning"): DescribedOperation(None, "Partitions", 204),
    ("POST", f"{_I}/positions/end"): DescribedOperation(None, "Partitions", 204),
    ("GET", f"{_I}/records"): DescribedOperation(
        "Records", query=(("timeout", COUNT, False), ("max_bytes", COUNT, False))
    ),
    # v3
    ("GET", "/v3/clusters"): DescribedOperation("ClusterList"),
    ("GET", _C): DescribedOperation("Cluster"),
    ("GET", f"{_C}/brokers"): DescribedOperation("BrokerList"),
    ("GET", f"{_C}/brokers/{{broker_id}}"): DescribedOperation("Broker"),
    ("GET", f"{_C}/brokers/{{broker_id}}/partition-replicas"): DescribedOperation("ReplicaList"),
    ("GET", f"{_C}/topics"): DescribedOperation("TopicList", query=_OPERATIONS_FLAG),
    ("POST", f"{_C}/topics"): DescribedOperation("Topic", "CreateTopicRequest", 201),
    ("GET", _T): DescribedOperation("Topic", query=_OPERATIONS_FLAG),
    ("PATCH", _T): DescribedOperation("Topic", "PartitionsCountRequest"),
    ("DELETE", _T): DescribedOperation(None, None, 204),
    ("GET", f"{_T}/partitions"): DescribedOperation("PartitionList"),
    ("GET", _P): DescribedOperation("Partition"),
    ("GET", f"{_P}/replicas"): DescribedOperation("ReplicaList"),
    ("GET", f"{_P}/replicas/{{broker_id}}"): DescribedOperation("Replica"),
    ("GET", f"{_P}/offset"): DescribedOperation("PartitionWithOffsets"),
    ("GET", f"{_P}/reassignment"): DescribedOperation("ReassignmentOrList"),
    **_configs(f"{_T}/configs", "TopicConfig"),
    **_configs(f"{_C}/brokers/{{broker_id}}/configs", "BrokerConfig"),
    **_configs(f"{_C}/broker-configs", "ClusterConfig"),
    ("GET", f"{_C}/consumer-groups"): DescribedOperation("ConsumerGroupList"),
    ("GET", _G): DescribedOperation("ConsumerGroup"),
    ("GET", f"{_G}/consumers"): DescribedOperation("ConsumerList"),
    ("GET", f"{_G}/consumers/{{consumer_id}}"): DescribedOperation("Consumer"),
    ("GET", f"{_G}/consumers/{{consumer_id}}/assignments"): DescribedOperation("ConsumerAssignmentList"),
    (
        "GET",
        f"{_G}/consumers/{{consumer_id}}/assignments/{{topic_name}}/partitions/{{partition_id}}",
    ): DescribedOperation("ConsumerAssignment"),
    ("GET", f"{_G}/lags"): DescribedOperation("ConsumerLagList"),
    ("GET", f"{_G}/lags/{{topic_name}}/partitions/{{partition_id}}"): DescribedOperation("ConsumerLag"),
    ("GET", f"{_G}/lag-summary"): DescribedOperation("LagSummary"),
    ("GET", f"{_C}/acls"): DescribedOperation("AclList", query=_ACL_QUERY),
    ("POST", f"{_C}/acls"): DescribedOperation(None, "CreateAclRequest", 201),
    ("POST", f"{_C}/acls:batch"): DescribedOperation(None, "CreateAclsRequest", 201),
    ("DELETE", f"{_C}/acls"): DescribedOperation("DeletedAcls", query=_ACL_DELETION),
    ("POST", f"{_T}/records"): DescribedOperation("ProduceAnswer", "ProduceRecord", streams=True),
    ("POST", f"{_T}/records:batch"): DescribedOperation("ProduceBatchAnswer", "ProduceBatchRequest", 207),
}
