"""A cluster reached by --bootstrap-controller: its controllers take the place of its brokers."""

from __future__ import annotations

from typing import Any

from klamm.client.admin.cluster_types import EndpointType
from klamm.client.blocking_cluster import BlockingCluster, BlockingConnection
from klamm.client.errors import raise_for
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.apis import BY_NAME
from klamm.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse


class ControllerCluster(BlockingCluster):
    """The controllers, discovered through any of them; requests go to the active one, which alone changes state."""

    has_controllers = True

    def _overview(self) -> DescribeClusterResponse:
        request = DescribeClusterRequest(endpoint_type=EndpointType.CONTROLLER)
        response: DescribeClusterResponse = self._first.ask(request)
        if response.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE:
            raise KlammError(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                f"{self._first.address} is no controller's listener; reach brokers with --bootstrap-server",
            )
        raise_for(response.error_code, response.error_message)
        return response

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""
        return self._overview().cluster_id  # a controller's listener does not serve Metadata

    @property
    def broker_ids(self) -> list[int]:
        """Every controller."""
        if not self._brokers:
            self._brokers = {broker.broker_id: (broker.host, broker.port) for broker in self._overview().brokers}
        return sorted(self._brokers)

    def broker(self, broker_id: int) -> BlockingConnection:
        """The connection to one controller."""
        if broker_id not in self.broker_ids:
            raise KlammError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"there is no controller {broker_id}; brokers are reached through --bootstrap-server",
            )
        return super().broker(broker_id)

    async def any_connection(self) -> _ActiveController:
        """A connection whose requests go to the controller that is active when they are sent."""
        return _ActiveController(self)

    def ask(self, request: object) -> object:
        """The response of the active controller."""
        # Looked up for every request: the active controller may change between two.
        active = self._overview().controller_id
        try:
            return self.broker(active).ask(request) if active >= 0 else self._first.ask(request)
        except KlammError as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
            raise KlammError(
                ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                "This Admin API is not yet supported when communicating directly with the controller quorum.",
            ) from None


class _ActiveController:
    """Sends the requests of an admin family to the controller that is active at the time."""

    def __init__(self, cluster: ControllerCluster) -> None:
        self._cluster = cluster

    def version_of(self, name: str) -> int:
        """The newest version of an API that this client has."""
        return BY_NAME[name].versions[1]

    async def request(self, request: Any, version: int | None = None) -> Any:
        """The response of the active controller."""
        del version  # negotiated with the controller that is active when the request is sent
        return self._cluster.ask(request)
