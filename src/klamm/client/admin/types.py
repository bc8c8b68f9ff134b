"""Every value an admin takes or returns, for callers; the families import the modules they need."""

from klamm.client.admin.acl_types import (
    AclBinding,
    AclFilter,
    DelegationToken,
    QuotaEntity,
    ScramCredential,
    ScramMechanism,
)
from klamm.client.admin.cluster_types import (
    ClusterDescription,
    EndpointType,
    FeatureDescription,
    Node,
    QuorumDescription,
    QuorumReplica,
    UpgradeType,
)
from klamm.client.admin.config_types import AlterOp, ConfigEntry
from klamm.client.admin.group_types import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    ShareGroupOffset,
    StreamsTasks,
    StreamsTopology,
    Subtopology,
)
from klamm.client.admin.offset_types import OffsetSpec
from klamm.client.admin.replica_types import (
    ElectionType,
    LogDirDescription,
    Reassignment,
    ReplicaInfo,
)
from klamm.client.admin.topic_types import (
    CreatedTopic,
    PartitionDescription,
    TopicDescription,
    TopicListing,
)
from klamm.client.admin.transaction_types import (
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.model.config_resources import ConfigResource, ResourceType
from klamm.model.config_sources import ConfigSource, ConfigSynonym

__all__ = [
    "AclBinding",
    "AclFilter",
    "AclOperation",
    "AclPermission",
    "AclResourceType",
    "AlterOp",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "ConfigSynonym",
    "CreatedTopic",
    "DelegationToken",
    "ElectionType",
    "EndpointType",
    "FeatureDescription",
    "GroupDescription",
    "GroupListing",
    "LogDirDescription",
    "MemberDescription",
    "Node",
    "OffsetSpec",
    "PartitionDescription",
    "PatternType",
    "ProducerState",
    "QuorumDescription",
    "QuorumReplica",
    "QuotaEntity",
    "Reassignment",
    "ReplicaInfo",
    "ResourceType",
    "ScramCredential",
    "ScramMechanism",
    "ShareGroupOffset",
    "StreamsTasks",
    "StreamsTopology",
    "Subtopology",
    "TopicDescription",
    "TopicListing",
    "TransactionDescription",
    "TransactionListing",
    "UpgradeType",
]
