"""The cluster itself: brokers, the controller quorum, feature levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from klamm.client.admin.authorized_operations import operations
from klamm.client.admin.base import AdminBase, Outcomes
from klamm.client.admin.cluster_types import (
    ClusterDescription,
    EndpointType,
    FeatureDescription,
    Node,
    QuorumDescription,
    QuorumReplica,
    UpgradeType,
)
from klamm.client.core.arguments import several
from klamm.client.errors import UnsupportedVersionError, raise_for
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.add_raft_voter import AddRaftVoterRequest, Listener
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.protocol.messages.describe_cluster import DescribeClusterRequest
from klamm.protocol.messages.describe_quorum import DescribeQuorumRequest, PartitionData, ReplicaState, TopicData
from klamm.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from klamm.protocol.messages.unregister_broker import UnregisterBrokerRequest
from klamm.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

_METADATA_TOPIC = "__cluster_metadata"
_API_VERSIONS = ApiVersionsRequest(client_software_name="klamm", client_software_version="0.1.0")


class ClusterAdmin(AdminBase):
    """Requests about the cluster."""

    async def describe_cluster(
        self,
        *,
        include_fenced: bool = False,
        authorized_operations: bool = False,
        endpoint_type: EndpointType = EndpointType.BROKER,
    ) -> ClusterDescription:
        """The cluster's id, controller and brokers, or its controllers when they are the endpoints."""
        request = DescribeClusterRequest(
            include_cluster_authorized_operations=authorized_operations,
            include_fenced_brokers=include_fenced,
            endpoint_type=endpoint_type,
        )
        try:
            response = await self._send(request)
        # DescribeCluster is KIP-700, Kafka 2.8; Metadata has the same facts without fenced brokers.
        except UnsupportedVersionError:
            await self._retrying(self.cluster.refresh)
            table = self.cluster.table
            brokers = tuple(
                Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in table.brokers.values()
            )
            return ClusterDescription(table.cluster_id or "", table.controller_id, tuple(sorted(brokers)))
        return ClusterDescription(
            response.cluster_id,
            response.controller_id,
            tuple(
                sorted(
                    Node(broker.broker_id, broker.host, broker.port, broker.rack, broker.is_fenced)
                    for broker in response.brokers
                )
            ),
            operations(response.cluster_authorized_operations),
        )

    async def describe_quorum(self) -> QuorumDescription:
        """The controller quorum: its leader, voters and observers, and their log end offsets."""
        request = DescribeQuorumRequest(
            topics=[TopicData(topic_name=_METADATA_TOPIC, partitions=[PartitionData(partition_index=0)])]
        )

        async def once() -> QuorumDescription:
            response = await self.request(request)
            raise_for(response.error_code, response.error_message)
            partition = response.topics[0].partitions[0]
            raise_for(partition.error_code, partition.error_message)
            return QuorumDescription(
                partition.leader_id,
                partition.leader_epoch,
                partition.high_watermark,
                tuple(map(_replica, partition.current_voters)),
                tuple(map(_replica, partition.observers)),
                {
                    node.node_id: tuple((listener.name, listener.host, listener.port) for listener in node.listeners)
                    for node in response.nodes
                },
            )

        return await self._retrying(once)

    async def add_raft_voter(
        self,
        voter_id: int,
        directory_id: bytes,
        listeners: Sequence[tuple[str, str, int]],
        *,
        cluster_id: str | None = None,
    ) -> None:
        """Let a controller vote; listeners are (name, host, port). Fails if the cluster's id is not `cluster_id`."""
        example = '("CONTROLLER", "host", 9093)'
        for listener in several(listeners, tuple, "listeners of add_raft_voter", example):
            if [type(part) for part in listener] != [str, str, int]:
                raise TypeError(f"listeners of add_raft_voter are like {example}; {listener!r} is not")
        request = AddRaftVoterRequest(
            cluster_id=cluster_id or self.cluster.table.cluster_id,
            timeout_ms=self._request_timeout_ms,
            voter_id=voter_id,
            voter_directory_id=directory_id,
            listeners=[Listener(name=name, host=host, port=port) for name, host, port in listeners],
        )
        may_be_added = False

        async def once() -> None:
            nonlocal may_be_added
            response = await self.request(request)
            # The first of two voters resigns if the second is slow; the record may be committed all the same.
            if may_be_added and response.error_code == ErrorCode.DUPLICATE_VOTER:
                return
            may_be_added = may_be_added or response.error_code == ErrorCode.NOT_CONTROLLER
            raise_for(response.error_code, response.error_message)

        await self._retrying(once)

    async def remove_raft_voter(self, voter_id: int, directory_id: bytes, *, cluster_id: str | None = None) -> None:
        """Take a controller's vote away. Fails if the cluster's id is not `cluster_id`."""
        await self._send(
            RemoveRaftVoterRequest(
                cluster_id=cluster_id or self.cluster.table.cluster_id,
                voter_id=voter_id,
                voter_directory_id=directory_id,
            )
        )

    async def unregister_broker(self, broker_id: int) -> None:
        """Remove the registration of a broker."""
        await self._send(UnregisterBrokerRequest(broker_id=broker_id))

    async def describe_features(self) -> FeatureDescription:
        """The levels the cluster runs at."""
        response = await self._send(_API_VERSIONS)
        return FeatureDescription(
            {feature.name: feature.max_version_level for feature in response.finalized_features},
            {feature.name: (feature.min_version, feature.max_version) for feature in response.supported_features},
            response.finalized_features_epoch,
        )

    async def describe_api_versions(self, broker: int | None = None) -> dict[int, tuple[int, int]]:
        """The lowest and highest version of each API that a broker serves, by API key."""
        response = await self._send(_API_VERSIONS, broker=broker)
        return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        upgrade: UpgradeType = UpgradeType.UPGRADE,
        validate_only: bool = False,
    ) -> None:
        """Raise or lower feature levels; 0 switches one off."""
        request = UpdateFeaturesRequest(
            timeout_ms=self._request_timeout_ms,
            feature_updates=[
                FeatureUpdateKey(
                    feature=name,
                    max_version_level=level,
                    allow_downgrade=upgrade is not UpgradeType.UPGRADE,
                    upgrade_type=upgrade.value,
                )
                for name, level in levels.items()
            ],
            validate_only=validate_only,
        )

        def read(response: Any, outcomes: Outcomes) -> None:
            raise_for(response.error_code, response.error_message)
            for result in response.results:  # empty from version 2 on: all levels change, or none
                outcomes.add(result.feature, result.error_code, result.error_message)

        await self._send_for_items(request, read)


def _replica(state: ReplicaState) -> QuorumReplica:
    return QuorumReplica(
        state.replica_id,
        state.replica_directory_id,
        state.log_end_offset,
        state.last_fetch_timestamp if state.last_fetch_timestamp >= 0 else None,
        state.last_caught_up_timestamp if state.last_caught_up_timestamp >= 0 else None,
    )
