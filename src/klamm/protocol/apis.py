"""Every declared API, as one table: key, name, versions, first flexible version, and where it is served.

Reading the table imports no message. `api.request` and `api.response` import the family's file on first
use, so a process pays only for the APIs it uses.
"""

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

from klamm.protocol.schema import LAST_VERSION

API_VERSIONS = 18

BROKER = ("broker",)
CONTROLLER = ("controller",)
BOTH = ("broker", "controller")


@dataclass(frozen=True)
class Api:
    """One row: an API, the versions that are stable in Kafka 4.3, and the listeners that serve it."""

    key: int
    name: str
    versions: tuple[int, int]
    flexible_since: int | None
    listeners: tuple[str, ...]

    @property
    def family(self) -> str:
        """The name of the API's files: `list_offsets` for ListOffsets."""
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in self.name).lstrip("_")

    @property
    def advertised(self) -> tuple[int, int]:
        """The versions ApiVersions reports.

        Produce starts at 0 there although 0-2 are refused: older librdkafka takes a higher minimum for a broker
        that cannot compress.
        """
        return (0, self.versions[1]) if self.key == 0 else self.versions

    @cached_property
    def request(self) -> type[Any]:
        """The class of its requests."""
        return self._message("Request")

    @cached_property
    def response(self) -> type[Any]:
        """The class of its responses."""
        return self._message("Response")

    def serves(self, version: int) -> bool:
        """Whether requests of `version` are answered."""
        return self.versions[0] <= version <= self.versions[1]

    def _message(self, suffix: str) -> type[Any]:
        module = import_module(f"klamm.protocol.messages.{self.family}")
        message_class: type[Any] = getattr(module, self.name + suffix)
        return message_class


_TABLE = (
    # Versions below 3 carry the message formats that Kafka 4.0 dropped (KIP-724, KIP-896).
    Api(0, "Produce", (3, 13), 9, BROKER),
    Api(1, "Fetch", (4, 18), 12, BOTH),
    Api(2, "ListOffsets", (1, 11), 6, BROKER),
    Api(3, "Metadata", (0, 13), 9, BROKER),
    # 4 to 7 were requests between ZooKeeper-based controllers and brokers.
    Api(8, "OffsetCommit", (2, 10), 8, BROKER),
    Api(9, "OffsetFetch", (1, 10), 6, BROKER),
    Api(10, "FindCoordinator", (0, 6), 3, BROKER),
    Api(11, "JoinGroup", (0, 9), 6, BROKER),
    Api(12, "Heartbeat", (0, 4), 4, BROKER),
    Api(13, "LeaveGroup", (0, 5), 4, BROKER),
    Api(14, "SyncGroup", (0, 5), 4, BROKER),
    Api(15, "DescribeGroups", (0, 6), 5, BROKER),
    Api(16, "ListGroups", (0, 5), 3, BROKER),
    Api(17, "SaslHandshake", (0, 1), None, BOTH),
    Api(18, "ApiVersions", (0, 4), 3, BOTH),
    Api(19, "CreateTopics", (2, 7), 5, BOTH),
    Api(20, "DeleteTopics", (1, 6), 4, BOTH),
    Api(21, "DeleteRecords", (0, 2), 2, BROKER),
    Api(22, "InitProducerId", (0, 5), 2, BROKER),
    Api(23, "OffsetForLeaderEpoch", (2, 4), 4, BROKER),
    Api(24, "AddPartitionsToTxn", (0, 5), 3, BROKER),
    Api(25, "AddOffsetsToTxn", (0, 4), 3, BROKER),
    Api(26, "EndTxn", (0, 5), 3, BROKER),
    Api(27, "WriteTxnMarkers", (1, 2), 1, BROKER),
    Api(28, "TxnOffsetCommit", (0, 5), 3, BROKER),
    Api(29, "DescribeAcls", (1, 3), 2, BOTH),
    Api(30, "CreateAcls", (1, 3), 2, BOTH),
    Api(31, "DeleteAcls", (1, 3), 2, BOTH),
    Api(32, "DescribeConfigs", (1, 4), 4, BOTH),
    Api(33, "AlterConfigs", (0, 2), 2, BOTH),
    Api(34, "AlterReplicaLogDirs", (1, 2), 2, BROKER),
    Api(35, "DescribeLogDirs", (1, 5), 2, BROKER),
    Api(36, "SaslAuthenticate", (0, 2), 2, BOTH),
    Api(37, "CreatePartitions", (0, 3), 2, BOTH),
    Api(38, "CreateDelegationToken", (1, 3), 2, BOTH),
    Api(39, "RenewDelegationToken", (1, 2), 2, BOTH),
    Api(40, "ExpireDelegationToken", (1, 2), 2, BOTH),
    Api(41, "DescribeDelegationToken", (1, 3), 2, BOTH),
    Api(42, "DeleteGroups", (0, 2), 2, BROKER),
    Api(43, "ElectLeaders", (0, 2), 2, BOTH),
    Api(44, "IncrementalAlterConfigs", (0, 1), 1, BOTH),
    Api(45, "AlterPartitionReassignments", (0, 1), 0, BOTH),
    Api(46, "ListPartitionReassignments", (0, 0), 0, BOTH),
    Api(47, "OffsetDelete", (0, 0), None, BROKER),
    Api(48, "DescribeClientQuotas", (0, 1), 1, BROKER),
    Api(49, "AlterClientQuotas", (0, 1), 1, BOTH),
    Api(50, "DescribeUserScramCredentials", (0, 0), 0, BOTH),
    Api(51, "AlterUserScramCredentials", (0, 0), 0, BOTH),
    Api(52, "Vote", (0, 2), 0, CONTROLLER),
    Api(53, "BeginQuorumEpoch", (0, 1), 1, CONTROLLER),
    Api(54, "EndQuorumEpoch", (0, 1), 1, CONTROLLER),
    Api(55, "DescribeQuorum", (0, 2), 0, BOTH),
    Api(56, "AlterPartition", (2, 3), 0, CONTROLLER),
    Api(57, "UpdateFeatures", (0, 2), 0, BOTH),
    Api(58, "Envelope", (0, 0), 0, CONTROLLER),
    Api(59, "FetchSnapshot", (0, 1), 0, CONTROLLER),
    Api(60, "DescribeCluster", (0, 2), 0, BOTH),
    Api(61, "DescribeProducers", (0, 0), 0, BROKER),
    Api(62, "BrokerRegistration", (0, 4), 0, CONTROLLER),
    Api(63, "BrokerHeartbeat", (0, 2), 0, CONTROLLER),
    Api(64, "UnregisterBroker", (0, 0), 0, BOTH),
    Api(65, "DescribeTransactions", (0, 0), 0, BROKER),
    Api(66, "ListTransactions", (0, 2), 0, BROKER),
    Api(67, "AllocateProducerIds", (0, 0), 0, CONTROLLER),
    Api(68, "ConsumerGroupHeartbeat", (0, 1), 0, BROKER),
    Api(69, "ConsumerGroupDescribe", (0, 1), 0, BROKER),
    Api(70, "ControllerRegistration", (0, 0), 0, CONTROLLER),
    # 71 and 72, client telemetry (KIP-714), are not declared: clients treat them as switched off.
    Api(73, "AssignReplicasToDirs", (0, 0), 0, CONTROLLER),
    # Version 0 is ListClientMetricsResources, its former name (KIP-1142).
    Api(74, "ListConfigResources", (0, 1), 0, BROKER),
    Api(75, "DescribeTopicPartitions", (0, 0), 0, BROKER),
    # Version 0 of the share group requests was early access in Kafka 4.0 and went with 4.1.
    Api(76, "ShareGroupHeartbeat", (1, 1), 0, BROKER),
    Api(77, "ShareGroupDescribe", (1, 1), 0, BROKER),
    Api(78, "ShareFetch", (1, 2), 0, BROKER),
    Api(79, "ShareAcknowledge", (1, 2), 0, BROKER),
    Api(80, "AddRaftVoter", (0, 1), 0, BOTH),
    Api(81, "RemoveRaftVoter", (0, 0), 0, BOTH),
    Api(82, "UpdateRaftVoter", (0, 0), 0, CONTROLLER),
    Api(83, "InitializeShareGroupState", (0, 0), 0, BROKER),
    Api(84, "ReadShareGroupState", (0, 0), 0, BROKER),
    Api(85, "WriteShareGroupState", (0, 1), 0, BROKER),
    Api(86, "DeleteShareGroupState", (0, 0), 0, BROKER),
    Api(87, "ReadShareGroupStateSummary", (0, 1), 0, BROKER),
    Api(88, "StreamsGroupHeartbeat", (0, 0), 0, BROKER),
    Api(89, "StreamsGroupDescribe", (0, 0), 0, BROKER),
    Api(90, "DescribeShareGroupOffsets", (0, 1), 0, BROKER),
    Api(91, "AlterShareGroupOffsets", (0, 0), 0, BROKER),
    Api(92, "DeleteShareGroupOffsets", (0, 0), 0, BROKER),
)

APIS: dict[int, Api] = {api.key: api for api in _TABLE}
"""Every API by its key."""

BY_NAME: dict[str, Api] = {api.name: api for api in _TABLE}

_NEVER = LAST_VERSION + 1
_FLEXIBLE = {api.key: _NEVER if api.flexible_since is None else api.flexible_since for api in _TABLE}


def flexible_since(api_key: int) -> int:
    """The first flexible version of an API; beyond every version when it has none or the key is unknown."""
    return _FLEXIBLE.get(api_key, _NEVER)


def served_on(listener: str) -> tuple[Api, ...]:
    """The APIs of a kind of listener, "broker" or "controller"."""
    return tuple(api for api in _TABLE if listener in api.listeners)
