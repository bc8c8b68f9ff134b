"""DescribeQuorum, v0-2: the voters and observers of the metadata quorum and their positions in its log.

Only `__cluster_metadata` partition 0 has a quorum; anything else is UNKNOWN_TOPIC_OR_PARTITION.
Only the leader has the positions of the others: brokers forward, another controller answers NOT_LEADER_OR_FOLLOWER.
v1 fetch and caught-up times · v2 directory ids, error texts and the controllers' addresses
"""

from klamm.model.errors import ErrorCode
from klamm.model.topic_names import CLUSTER_METADATA_TOPIC
from klamm.protocol.messages import describe_quorum as m
from klamm.raft.core.report import ReplicaReport
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


async def handle(
    services: Services, context: RequestContext, request: m.DescribeQuorumRequest
) -> m.DescribeQuorumResponse:
    """Describe the quorum; a broker forwards to its leader, any other controller refuses."""
    if context.listener.kind == "broker" and not services.raft.is_leader:
        response: m.DescribeQuorumResponse = await services.quorum.forward(request, m.DescribeQuorumResponse)
        return response
    return describe(services, request)


def describe(services: Services, request: m.DescribeQuorumRequest) -> m.DescribeQuorumResponse:
    """Describe the quorum as its leader; a member that does not lead refuses."""
    requested = [(topic.topic_name, part.partition_index) for topic in request.topics for part in topic.partitions]
    # Before the leader check: a wrong topic is wrong on every node.
    if requested != [(CLUSTER_METADATA_TOPIC, 0)]:
        return _refuse(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not services.raft.is_leader:
        return _refuse(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    report = services.raft.describe_quorum()
    partition = m.PartitionDataResponse(
        partition_index=0,
        error_message=None,
        leader_id=-1 if report.leader_id is None else report.leader_id,
        leader_epoch=report.leader_epoch,
        high_watermark=report.high_watermark,
        current_voters=[_describe_replica(replica) for replica in report.voters],
        observers=[_describe_replica(replica) for replica in report.observers],
    )
    name = services.config.controller_listener_names[0]
    nodes = [
        m.Node(node_id=node_id, listeners=[m.Listener(name=name, host=host, port=port)])
        for node_id, (host, port) in services.controller_endpoints().items()
    ]
    topic = m.TopicDataResponse(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])
    return m.DescribeQuorumResponse(topics=[topic], nodes=nodes, error_message=None)


def _refuse(request: m.DescribeQuorumRequest, code: ErrorCode) -> m.DescribeQuorumResponse:
    return m.DescribeQuorumResponse(
        topics=[
            m.TopicDataResponse(
                topic_name=topic.topic_name,
                partitions=[
                    m.PartitionDataResponse(
                        partition_index=partition.partition_index, error_code=code, error_message=code.name
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        error_message=None,
    )


def _describe_replica(report: ReplicaReport) -> m.ReplicaState:
    return m.ReplicaState(
        replica_id=report.replica.id,
        replica_directory_id=report.replica.directory_id,
        log_end_offset=report.log_end_offset,
        last_fetch_timestamp=report.last_fetch_timestamp,
        last_caught_up_timestamp=report.last_caught_up_timestamp,
    )
