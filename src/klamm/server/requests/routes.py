"""The APIs this node serves, by kind of listener, and the code that answers each: ApiVersions is made from this table.

An API is listed once all of its advertised versions are served; clients do not use those that are not listed. Handlers
are imported with the first request, so that a node pays only for the APIs its clients use.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

from klamm.protocol.apis import BY_NAME, Api
from klamm.server.requests.access.rights import Requirements, find_requirements, is_guarded

# In the order of the API keys, like the table in `protocol/apis`.
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
    "CreateDelegationToken",
    "RenewDelegationToken",
    "ExpireDelegationToken",
    "DescribeDelegationToken",
    "DeleteGroups",
    "ElectLeaders",
    "IncrementalAlterConfigs",
    "AlterPartitionReassignments",
    "ListPartitionReassignments",
    "OffsetDelete",
    "DescribeClientQuotas",
    "AlterClientQuotas",
    "DescribeUserScramCredentials",
    "AlterUserScramCredentials",
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
    "CreateDelegationToken",
    "RenewDelegationToken",
    "ExpireDelegationToken",
    "DescribeAcls",
    "CreateAcls",
    "DeleteAcls",
    "AlterConfigs",
    "IncrementalAlterConfigs",
    "DescribeConfigs",
    "ElectLeaders",
    "AlterPartitionReassignments",
    "ListPartitionReassignments",
    "AlterClientQuotas",
    "DescribeUserScramCredentials",
    "AlterUserScramCredentials",
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

_HANDLERS = {
    "acls": ("DescribeAcls", "CreateAcls", "DeleteAcls"),
    "data": ("Produce", "Fetch", "ListOffsets", "DeleteRecords", "OffsetForLeaderEpoch"),
    "topics": ("Metadata", "DescribeTopicPartitions"),
    "groups": (
        "JoinGroup",
        "SyncGroup",
        "Heartbeat",
        "LeaveGroup",
        "ListGroups",
        "DescribeGroups",
        "DeleteGroups",
        "ConsumerGroupHeartbeat",
        "ConsumerGroupDescribe",
    ),
    "offsets": ("FindCoordinator", "OffsetCommit", "OffsetFetch", "OffsetDelete"),
    "transactions": (
        "InitProducerId",
        "AddPartitionsToTxn",
        "AddOffsetsToTxn",
        "TxnOffsetCommit",
        "EndTxn",
        "WriteTxnMarkers",
        "DescribeProducers",
        "DescribeTransactions",
        "ListTransactions",
    ),
    "configs": ("DescribeConfigs", "IncrementalAlterConfigs", "ListConfigResources"),
    "cluster": (
        "ApiVersions",
        "DescribeCluster",
        "DescribeLogDirs",
        "AlterReplicaLogDirs",
        "BrokerHeartbeat",
        "Envelope",
    ),
    "quotas": ("DescribeClientQuotas",),
    "users": (
        "DescribeUserScramCredentials",
        "CreateDelegationToken",
        "RenewDelegationToken",
        "ExpireDelegationToken",
        "DescribeDelegationToken",
    ),
    "quorum": ("DescribeQuorum", "AddRaftVoter", "RemoveRaftVoter"),
}
"""APIs with a handler of their own, by folder of `handlers`; all others are rows of `delegations`."""

_FOLDERS = {name: folder for folder, names in _HANDLERS.items() for name in names}

_DELEGATED_BY_CONTROLLER = frozenset({"Fetch"})
"""APIs with another meaning on a controller listener: there, Fetch replicates the metadata log."""

_AUTHORIZED = {"Produce": "produce_authorized"}
"""Handlers of their own for nodes with an authorizer: without one, these paths do not contain the check."""

QUICK_PATHS = {
    "OffsetCommit": "offsets.offset_commit_quick",
    "Produce": "data.produce_quick",
    "SyncGroup": "groups.sync_group_quick",
}
"""Modules that answer the usual form of a client's request without decoding it; their `handle` says whether it did."""


@dataclass(frozen=True)
class Route:
    """An API and the function that answers it, imported when the first request arrives."""

    api: Api
    folder: str | None
    """The folder of `handlers` that holds the API's module; None for a row of `delegations`."""
    requirements: Requirements
    """The rights that the API needs."""
    authorized: bool = False
    """Whether the node has an authorizer."""

    @cached_property
    def handle(self) -> Callable[[Any, Any, Any], Any]:
        """The handler."""
        handler: Callable[[Any, Any, Any], Any]
        if self.folder is None:
            handler = import_module("klamm.server.requests.delegations").DELEGATIONS[self.api.name].answer
        elif self.authorized and self.api.name in _AUTHORIZED:
            handler = import_module(f"klamm.server.handlers.{self.folder}.{_AUTHORIZED[self.api.name]}").handle
        else:
            handler = import_module(f"klamm.server.handlers.{self.folder}.{self.api.family}").handle
        if self.authorized and is_guarded(self.requirements):
            handler = import_module("klamm.server.requests.access.guard").guard_handler(handler, self.requirements)
        return handler


def routes(kind: str, *, authorized: bool = False) -> dict[int, Route]:
    """Return the routes of a kind of listener, "broker" or "controller", by API key.

    `authorized` says that the node has an authorizer; LookupError for an API without a declared right.
    """
    names, delegated = (SERVED, frozenset()) if kind == "broker" else (SERVED_BY_CONTROLLER, _DELEGATED_BY_CONTROLLER)
    return {
        BY_NAME[name].key: Route(
            BY_NAME[name],
            None if name in delegated else _FOLDERS.get(name),
            find_requirements(name, kind),
            authorized,
        )
        for name in names
    }


def quick_paths() -> dict[int, Callable[..., bool]]:
    """Return the quick paths of clients' requests, by API key."""
    return {
        BY_NAME[name].key: import_module(f"klamm.server.handlers.{module}").handle
        for name, module in QUICK_PATHS.items()
    }
