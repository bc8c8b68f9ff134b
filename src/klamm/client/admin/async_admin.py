"""`AsyncAdmin`: every family of admin requests over one cluster, on the caller's event loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from klamm.client.admin.acls import AccessAdmin
from klamm.client.admin.cluster import ClusterAdmin
from klamm.client.admin.configs import ConfigsAdmin
from klamm.client.admin.delegation_tokens import DelegationTokenAdmin
from klamm.client.admin.groups import GroupsAdmin
from klamm.client.admin.offsets import OffsetsAdmin
from klamm.client.admin.replicas import ReplicasAdmin
from klamm.client.admin.share_groups import ShareGroupsAdmin
from klamm.client.admin.streams_groups import StreamsGroupsAdmin
from klamm.client.admin.topic_changes import TopicChangesAdmin
from klamm.client.admin.topics import TopicsAdmin
from klamm.client.admin.transactions import TransactionsAdmin
from klamm.client.argument_checks import check_arguments
from klamm.client.client_settings import admin_settings
from klamm.client.cluster import ClusterClient
from klamm.client.errors import IllegalStateError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from klamm.client.settings import AdminSettings


@check_arguments
class AsyncAdmin(
    TopicsAdmin,
    TopicChangesAdmin,
    OffsetsAdmin,
    ConfigsAdmin,
    GroupsAdmin,
    ShareGroupsAdmin,
    StreamsGroupsAdmin,
    AccessAdmin,
    DelegationTokenAdmin,
    ReplicasAdmin,
    TransactionsAdmin,
    ClusterAdmin,
):
    """Admin requests to a cluster.

    async with AsyncAdmin(bootstrap_servers="localhost:9092") as admin:
        await admin.create_topic("orders", num_partitions=6)
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Unpack[AdminSettings]) -> None:
        self._settings = admin_settings(config, settings)
        self._timeout_s = self._settings.seconds("default.api.timeout.ms")
        self._request_timeout_ms = self._settings.number("request.timeout.ms")
        self._cluster: ClusterClient | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect to the cluster; BrokersUnreachableError when no broker answers in time."""
        if self._cluster is not None:
            return
        cluster = ClusterClient(self._settings)
        await cluster.start()
        self._cluster = cluster
        cluster.report("admin", cluster.count_traffic)

    async def close(self) -> None:
        """Close all connections."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.close()

    @property
    def cluster(self) -> ClusterClient:
        """The connections to the cluster and what is known of it."""
        if self._cluster is None:
            raise IllegalStateError("the admin is not started or already closed")
        return self._cluster


__all__ = ["AsyncAdmin"]
