"""DescribeCluster, v0-2: the cluster's id and its brokers or controllers.

From v1 the request has an endpoint type, brokers (1) or controllers (2); a listener answers for its own kind only.
v1 endpoint types · v2 fenced brokers on request
"""

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from klamm.server.requests.access.operations import NOT_REQUESTED, cluster_operations
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services

BROKERS, CONTROLLERS = 1, 2


def handle(services: Services, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """List the nodes of the requested kind."""
    own_kind = BROKERS if context.listener.kind == "broker" else CONTROLLERS
    if request.endpoint_type not in (BROKERS, CONTROLLERS):
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"endpoint type {request.endpoint_type} does not exist",
            cluster_id="",
        )
    if request.endpoint_type != own_kind:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message=f"this listener describes {context.listener.kind}s only; use one of the other kind",
            cluster_id="",
        )
    nodes = _list_brokers(services, context, request) if own_kind == BROKERS else _list_controllers(services)
    leader_id = services.raft.leader[0]
    # A broker forwards admin requests wherever they arrive, so any one may be named as the controller.
    controller = leader_id if own_kind == CONTROLLERS else services.random.choice(nodes).broker_id if nodes else -1
    return DescribeClusterResponse(
        endpoint_type=request.endpoint_type,
        cluster_id=services.cluster_id,
        controller_id=-1 if controller is None else controller,
        brokers=nodes,
        cluster_authorized_operations=(
            cluster_operations(services, context) if request.include_cluster_authorized_operations else NOT_REQUESTED
        ),
    )


def _list_brokers(
    services: Services, context: RequestContext, request: DescribeClusterRequest
) -> list[DescribeClusterBroker]:
    nodes = []
    for broker in services.image.cluster.brokers.values():
        if broker.fenced and not request.include_fenced_brokers:
            continue
        host, port = services.endpoint(broker, context)
        nodes.append(
            DescribeClusterBroker(broker_id=broker.id, host=host, port=port, rack=broker.rack, is_fenced=broker.fenced)
        )
    return nodes


def _list_controllers(services: Services) -> list[DescribeClusterBroker]:
    return [
        DescribeClusterBroker(broker_id=node_id, host=host, port=port)
        for node_id, (host, port) in services.controller_endpoints().items()
    ]
