"""DescribeCluster, v0-2: the cluster's id, its brokers and its controller.

v1 controllers · v2 fenced brokers
"""

from klamm.protocol.schema import array, boolean, int8, int16, int32, message, string, struct, wire


@message(api_key=60, versions=(0, 2), flexible=0)
class DescribeClusterRequest:
    """Request the nodes of the cluster."""

    include_cluster_authorized_operations: bool = wire(boolean)
    # 1 brokers, 2 controllers (KIP-919).
    endpoint_type: int = wire(int8, since=1, default=1)
    include_fenced_brokers: bool = wire(boolean, since=2)


@struct
class DescribeClusterBroker:
    """One node and its address."""

    broker_id: int = wire(int32)
    host: str = wire(string)
    port: int = wire(int32)
    rack: str | None = wire(string, nullable=0, default=None)
    is_fenced: bool = wire(boolean, since=2)


@message(api_key=60, versions=(0, 2), flexible=0)
class DescribeClusterResponse:
    """The nodes of the requested kind."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)
    endpoint_type: int = wire(int8, since=1, default=1)
    cluster_id: str = wire(string)
    controller_id: int = wire(int32, default=-1)
    brokers: list[DescribeClusterBroker] = wire(array(DescribeClusterBroker))
    # The smallest int32 stands for operations that were not requested.
    cluster_authorized_operations: int = wire(int32, default=-(2**31))
