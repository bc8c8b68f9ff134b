"""Objects of v3: every one has a kind, its address, a resource name, and the addresses of related objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from klamm.client.admin.acl_types import AclBinding
from klamm.client.admin.cluster_types import ClusterDescription, Node
from klamm.client.admin.config_types import ConfigEntry
from klamm.client.admin.group_types import GroupDescription, MemberDescription
from klamm.client.admin.replica_types import Reassignment
from klamm.client.admin.topic_types import PartitionDescription, TopicDescription
from klamm.model.ids import TopicPartition
from klamm.rest.core.group_lags import GroupLag, LagSummary

Resource = dict[str, Any]

_GROUP_STATES: Final = {
    "PreparingRebalance": "PREPARING_REBALANCE",
    "CompletingRebalance": "COMPLETING_REBALANCE",
    "Assigning": "ASSIGNING",
    "Reconciling": "RECONCILING",
    "Stable": "STABLE",
    "Dead": "DEAD",
    "Empty": "EMPTY",
}


class ResourcePrinter:
    """Prints the objects of one cluster with addresses below `base`, such as `http://localhost:8082/v3`."""

    def __init__(self, base: str, cluster_id: str) -> None:
        self._base = base
        self._cluster_id = cluster_id

    def _url(self, *segments: object) -> str:
        path = "/".join(quote(str(segment), safe="-._~:") for segment in segments)
        return f"{self._base}/clusters/{quote(self._cluster_id, safe='')}" + (f"/{path}" if path else "")

    def _relate(self, *segments: object) -> dict[str, str]:
        return {"related": self._url(*segments)}

    def _resource(self, kind: str, segments: Sequence[object], names: Sequence[tuple[str, object]]) -> Resource:
        crn = "".join(f"/{name}" if value is None else f"/{name}={value}" for name, value in names)
        return {
            "kind": kind,
            "metadata": {"self": self._url(*segments), "resource_name": f"crn:///kafka={self._cluster_id}{crn}"},
            "cluster_id": self._cluster_id,
        }

    def list_of(self, kind: str, resources: Iterable[Resource], *segments: object) -> Resource:
        """Return a list of objects."""
        metadata = {"self": self._url(*segments), "next": None}
        return {"kind": f"{kind}List", "metadata": metadata, "data": list(resources)}

    # Clusters and brokers

    def clusters(self, cluster: ClusterDescription) -> Resource:
        """Return the list of clusters, which is this one."""
        metadata = {"self": f"{self._base}/clusters", "next": None}
        return {"kind": "KafkaClusterList", "metadata": metadata, "data": [self.cluster(cluster)]}

    def cluster(self, cluster: ClusterDescription) -> Resource:
        """Return the cluster."""
        resource = self._resource("KafkaCluster", (), ())
        if cluster.controller_id >= 0:
            resource["controller"] = self._relate("brokers", cluster.controller_id)
        return resource | {
            "acls": self._relate("acls"),
            "brokers": self._relate("brokers"),
            "broker_configs": self._relate("broker-configs"),
            "consumer_groups": self._relate("consumer-groups"),
            "topics": self._relate("topics"),
            "partition_reassignments": self._relate("topics", "-", "partitions", "-", "reassignment"),
        }

    def broker(self, broker: Node) -> Resource:
        """Return a broker."""
        return self._resource("KafkaBroker", ("brokers", broker.id), (("broker", broker.id),)) | {
            "broker_id": broker.id,
            "host": broker.host,
            "port": broker.port,
            "rack": broker.rack,
            "configs": self._relate("brokers", broker.id, "configs"),
            "partition_replicas": self._relate("brokers", broker.id, "partition-replicas"),
        }

    # Topics

    def topic(self, topic: TopicDescription) -> Resource:
        """Return a topic."""
        operations = topic.authorized_operations or ()
        return self.new_topic(topic.name, len(topic.partitions), topic.replication_factor) | {
            "is_internal": topic.internal,
            "authorized_operations": sorted(operation.name for operation in operations),
        }

    def new_topic(self, name: str, partitions_count: int, replication_factor: int) -> Resource:
        """Return a topic that was just created: the cluster need not have described it."""
        return self._resource("KafkaTopic", ("topics", name), (("topic", name),)) | {
            "topic_name": name,
            "is_internal": False,
            "replication_factor": replication_factor,
            "partitions_count": partitions_count,
            "partitions": self._relate("topics", name, "partitions"),
            "configs": self._relate("topics", name, "configs"),
            "partition_reassignments": self._relate("topics", name, "partitions", "-", "reassignment"),
            "authorized_operations": [],
        }

    def partition(self, topic: str, partition: PartitionDescription) -> Resource:
        """Return a partition; without a leader it has no address of one."""
        index = partition.partition
        place = ("topics", topic, "partitions", index)
        resource = self._resource("KafkaPartition", place, (("topic", topic), ("partition", index)))
        resource |= {"topic_name": topic, "partition_id": index}
        if partition.leader >= 0:
            resource["leader"] = self._relate(*place, "replicas", partition.leader)
        return resource | {
            "replicas": self._relate(*place, "replicas"),
            "reassignment": self._relate(*place, "reassignment"),
        }

    def offsets(self, partition: TopicPartition, earliest: int, latest: int) -> Resource:
        """Return the first offset of a partition, and the one behind the last record."""
        topic, index = partition
        place = ("topics", topic, "partitions", index, "offset")
        names = (("topic", topic), ("partition", index), ("offset", None))
        return self._resource("KafkaPartition", place, names) | {
            "topic_name": topic,
            "partition_id": index,
            "earliest_offset": earliest,
            "latest_offset": latest,
        }

    def replica(self, topic: str, partition: PartitionDescription, broker: int) -> Resource:
        """Return the replica of a partition on a broker."""
        index = partition.partition
        place = ("topics", topic, "partitions", index, "replicas", broker)
        names = (("topic", topic), ("partition", index), ("replica", broker))
        return self._resource("KafkaReplica", place, names) | {
            "topic_name": topic,
            "partition_id": index,
            "broker_id": broker,
            "is_leader": broker == partition.leader,
            "is_in_sync": broker in partition.isr,
            "broker": self._relate("brokers", broker),
        }

    def reassignment(self, partition: TopicPartition, move: Reassignment) -> Resource:
        """Return a reassignment in progress."""
        topic, index = partition
        place = ("topics", topic, "partitions", index, "reassignment")
        names = (("topic", topic), ("partition", index), ("reassignment", None))
        return self._resource("KafkaReassignment", place, names) | {
            "topic_name": topic,
            "partition_id": index,
            "adding_replicas": list(move.adding),
            "removing_replicas": list(move.removing),
            "replicas": self._relate("topics", topic, "partitions", index, "replicas"),
        }

    # Settings

    def topic_config(self, topic: str, entry: ConfigEntry) -> Resource:
        """Return a setting of a topic."""
        names = (("topic", topic), ("config", entry.name))
        resource = self._resource("KafkaTopicConfig", ("topics", topic, "configs", entry.name), names)
        return resource | {"topic_name": topic} | _config_fields(entry)

    def broker_config(self, broker: int, entry: ConfigEntry) -> Resource:
        """Return a setting of a broker."""
        names = (("broker", broker), ("config", entry.name))
        resource = self._resource("KafkaBrokerConfig", ("brokers", broker, "configs", entry.name), names)
        return resource | {"broker_id": broker} | _config_fields(entry)

    def cluster_config(self, entry: ConfigEntry) -> Resource:
        """Return a setting that all brokers have by default."""
        names = (("broker-config", entry.name),)
        resource = self._resource("KafkaClusterConfig", ("broker-configs", entry.name), names)
        return resource | {"config_type": "BROKER"} | _config_fields(entry)

    # Groups

    def group(self, group: GroupDescription) -> Resource:
        """Return a group."""
        name = group.group_id
        return self._resource("KafkaConsumerGroup", ("consumer-groups", name), (("consumer-group", name),)) | {
            "consumer_group_id": name,
            # A group that only has offsets: its members assigned partitions themselves.
            "is_simple": not group.protocol_type and group.type in ("", "classic", "Classic"),
            "partition_assignor": group.assignor,
            "state": _GROUP_STATES.get(group.state, "UNKNOWN"),
            "type": group.type.upper() if group.type.upper() in ("CLASSIC", "CONSUMER", "SHARE") else "UNKNOWN",
            "is_mixed_consumer_group": any(member.upgraded is False for member in group.members),
            "coordinator": self._relate("brokers", group.coordinator.id),
            "consumers": self._relate("consumer-groups", name, "consumers"),
            "lag_summary": self._relate("consumer-groups", name, "lag-summary"),
        }

    def consumer(self, group: str, member: MemberDescription) -> Resource:
        """Return a member of a group."""
        place = ("consumer-groups", group, "consumers", member.member_id)
        names = (("consumer-group", group), ("consumer", member.member_id))
        return self._resource("KafkaConsumer", place, names) | {
            "consumer_group_id": group,
            "consumer_id": member.member_id,
            "instance_id": member.instance_id,
            "client_id": member.client_id,
            "assignments": self._relate(*place, "assignments"),
        }

    def assignment(self, group: str, member: str, partition: TopicPartition) -> Resource:
        """Return a partition that a member has."""
        topic, index = partition
        place = ("consumer-groups", group, "consumers", member, "assignments", topic, "partitions", index)
        names = (("consumer-group", group), ("consumer", member), ("assignment", topic), ("partition", index))
        return self._resource("KafkaConsumerAssignment", place, names) | {
            "consumer_group_id": group,
            "consumer_id": member,
            "topic_name": topic,
            "partition_id": index,
            "partition": self._relate("topics", topic, "partitions", index),
            "lag": self._relate("consumer-groups", group, "lags", topic, "partitions", index),
        }

    def lag(self, group: str, lag: GroupLag) -> Resource:
        """Return the lag of a group in a partition."""
        topic, index = lag.partition
        place = ("consumer-groups", group, "lags", topic, "partitions", index)
        names = (("consumer-group", group), ("lag", topic), ("partition", index))
        return self._resource("KafkaConsumerLag", place, names) | {
            "consumer_group_id": group,
            "topic_name": topic,
            "partition_id": index,
            "current_offset": lag.current_offset,
            "log_end_offset": lag.log_end_offset,
            "lag": lag.lag,
            "consumer_id": lag.consumer_id,
            "instance_id": lag.instance_id,
            "client_id": lag.client_id,
        }

    def lag_summary(self, group: str, summary: LagSummary) -> Resource:
        """Return the largest lag of a group, and the sum of all."""
        largest = summary.largest
        topic, index = largest.partition
        place = ("consumer-groups", group, "lag-summary")
        names = (("consumer-group", group), ("lag-summary", None))
        return self._resource("KafkaConsumerGroupLagSummary", place, names) | {
            "consumer_group_id": group,
            "max_lag_consumer_id": largest.consumer_id,
            "max_lag_instance_id": largest.instance_id,
            "max_lag_client_id": largest.client_id,
            "max_lag_topic_name": topic,
            "max_lag_partition_id": index,
            "max_lag": largest.lag,
            "total_lag": summary.total,
            "max_lag_consumer": self._relate("consumer-groups", group, "consumers", largest.consumer_id),
            "max_lag_partition": self._relate("topics", topic, "partitions", index),
        }

    # ACLs

    def acl(self, rule: AclBinding) -> Resource:
        """Return an access rule, whose address is a query for it."""
        fields = acl_fields(rule)
        resource = self._resource("KafkaAcl", ("acls",), ())
        resource["metadata"] = {"self": f"{self._url('acls')}?{urlencode(fields)}", "resource_name": None}
        return resource | fields


def acl_fields(rule: AclBinding) -> dict[str, str]:
    """Return the fields of an access rule by the names of v3."""
    return {
        "resource_type": rule.resource_type.name,
        "resource_name": rule.resource_name,
        "pattern_type": rule.pattern_type.name,
        "principal": rule.principal,
        "host": rule.host,
        "operation": rule.operation.name,
        "permission": rule.permission.name,
    }


def _config_fields(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": None if entry.sensitive else entry.value,
        "is_default": entry.is_default,
        "is_read_only": entry.read_only,
        "is_sensitive": entry.sensitive,
        "source": entry.source.name,
        "synonyms": [
            {"name": synonym.name, "value": None if entry.sensitive else synonym.value, "source": synonym.source.name}
            for synonym in entry.synonyms
        ],
    }
