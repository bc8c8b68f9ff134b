"""Which APIs this node answers, and where: the one table ApiVersions is made from.

An API is listed here when it is whole. What is not listed is not advertised, and clients do without.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

from klamm.protocol.apis import BY_NAME, Api

SERVED = (
    "Produce",
    "Fetch",
    "ListOffsets",
    "Metadata",
    "OffsetCommit",
    "OffsetFetch",
    "FindCoordinator",
    "JoinGroup",
    "Heartbeat",
    "LeaveGroup",
    "SyncGroup",
    "DescribeGroups",
    "ListGroups",
    "SaslHandshake",
    "ApiVersions",
    "CreateTopics",
    "DeleteTopics",
    "DeleteRecords",
    "InitProducerId",
    "OffsetForLeaderEpoch",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "EndTxn",
    "WriteTxnMarkers",
    "TxnOffsetCommit",
    "DescribeAcls",
    "CreateAcls",
    "DeleteAcls",
    "DescribeConfigs",
    "AlterConfigs",
    "AlterReplicaLogDirs",
    "DescribeLogDirs",
    "SaslAuthenticate",
    "CreatePartitions",
    "DeleteGroups",
    "ElectLeaders",
    "IncrementalAlterConfigs",
    "AlterPartitionReassignments",
    "ListPartitionReassignments",
    "OffsetDelete",
    "DescribeQuorum",
    "UpdateFeatures",
    "DescribeCluster",
    "DescribeProducers",
    "UnregisterBroker",
    "DescribeTransactions",
    "ListTransactions",
    "ConsumerGroupHeartbeat",
    "ConsumerGroupDescribe",
    "ListConfigResources",
    "DescribeTopicPartitions",
    "AddRaftVoter",
    "RemoveRaftVoter",
)

SERVED_BY_CONTROLLER = (
    "Fetch",
    "SaslHandshake",
    "SaslAuthenticate",
    "ApiVersions",
    "CreateTopics",
    "DeleteTopics",
    "CreatePartitions",
    "DescribeAcls",
    "CreateAcls",
    "DeleteAcls",
    "AlterConfigs",
    "IncrementalAlterConfigs",
    "DescribeConfigs",
    "ElectLeaders",
    "AlterPartitionReassignments",
    "ListPartitionReassignments",
    "Vote",
    "BeginQuorumEpoch",
    "EndQuorumEpoch",
    "DescribeQuorum",
    "AlterPartition",
    "Envelope",
    "BrokerRegistration",
    "BrokerHeartbeat",
    "UnregisterBroker",
    "AllocateProducerIds",
    "ControllerRegistration",
    "AssignReplicasToDirs",
    "UpdateFeatures",
    "DescribeCluster",
    "FetchSnapshot",
    "AddRaftVoter",
    "RemoveRaftVoter",
    "UpdateRaftVoter",
)

HANDLERS = {
    "data": (
        "Produce",
        "Fetch",
        "ListOffsets",
        "DeleteRecords",
        "OffsetForLeaderEpoch",
    ),
    "topics": (
        "Metadata",
        "CreateTopics",
        "DeleteTopics",
        "CreatePartitions",
        "ElectLeaders",
        "AlterPartitionReassignments",
        "ListPartitionReassignments",
        "DescribeTopicPartitions",
        "AlterPartition",
    ),
    "groups": (
        "JoinGroup",
        "Heartbeat",
        "LeaveGroup",
        "SyncGroup",
        "DescribeGroups",
        "ListGroups",
        "DeleteGroups",
        "ConsumerGroupHeartbeat",
        "ConsumerGroupDescribe",
    ),
    "offsets": (
        "OffsetCommit",
        "OffsetFetch",
        "FindCoordinator",
        "OffsetDelete",
    ),
    "transactions": (
        "InitProducerId",
        "AddPartitionsToTxn",
        "AddOffsetsToTxn",
        "EndTxn",
        "WriteTxnMarkers",
        "TxnOffsetCommit",
        "DescribeProducers",
        "DescribeTransactions",
        "ListTransactions",
        "AllocateProducerIds",
    ),
    "configs": (
        "SaslHandshake",
        "DescribeAcls",
        "CreateAcls",
        "DeleteAcls",
        "DescribeConfigs",
        "AlterConfigs",
        "SaslAuthenticate",
        "IncrementalAlterConfigs",
        "UpdateFeatures",
        "ListConfigResources",
    ),
    "cluster": (
        "ApiVersions",
        "AlterReplicaLogDirs",
        "DescribeLogDirs",
        "DescribeCluster",
        "UnregisterBroker",
        "Envelope",
        "BrokerRegistration",
        "BrokerHeartbeat",
        "ControllerRegistration",
        "AssignReplicasToDirs",
    ),
    "quorum": (
        "DescribeQuorum",
        "AddRaftVoter",
        "RemoveRaftVoter",
        "Vote",
        "BeginQuorumEpoch",
        "EndQuorumEpoch",
        "FetchSnapshot",
        "UpdateRaftVoter",
    ),
}
"""The folder of `handlers` that each API is answered from."""

_FOLDERS = {name: folder for folder, names in HANDLERS.items() for name in names}

CONTROLLER_HANDLERS = {"Fetch": "quorum.fetch_metadata"}
"""APIs that mean something else on a controller listener: there, Fetch replicates the metadata log."""


@dataclass(frozen=True)
class Route:
    """An API and the function that answers it, imported when the first request arrives."""

    api: Api
    module: str = ""

    @cached_property
    def handle(self) -> Callable[[Any, Any, Any], Any]:
        """The handler."""
        module = import_module(f"klamm.server.handlers.{self.module or f'{_FOLDERS[self.api.name]}.{self.api.family}'}")
        found: Callable[[Any, Any, Any], Any] = module.handle
        return found


def routes(kind: str) -> dict[int, Route]:
    """The routes of a kind of listener, "broker" or "controller", by API key."""
    if kind == "broker":
        return {BY_NAME[name].key: Route(BY_NAME[name]) for name in SERVED}
    return {BY_NAME[name].key: Route(BY_NAME[name], CONTROLLER_HANDLERS.get(name, "")) for name in SERVED_BY_CONTROLLER}
