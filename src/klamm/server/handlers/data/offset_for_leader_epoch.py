"""OffsetForLeaderEpoch, v2-4: the end offset of a leader epoch, by which a reader detects truncation.

The response has the largest epoch not above the requested one, and the offset where the next epoch begins; -1 for both
when the log has no such epoch.
v3 replica id · v4 flexible
"""

from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from klamm.server.cluster.topics import leading_replica
from klamm.server.requests.access.checks import cluster_denied, topic_denied
from klamm.server.requests.context import RequestContext
from klamm.server.requests.slices import SliceSteps
from klamm.server.services import Services


def handle(
    services: Services, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> SliceSteps[OffsetForLeaderEpochResponse]:
    """Answer each partition from its leader-epoch cache."""
    topics = []
    # Replicas send this, too: their right on the cluster stands for that on every topic.
    of_topics = cluster_denied(services, context, AclOperation.CLUSTER_ACTION, audit=False)
    for topic in request.topics:
        partitions = []
        denied = of_topics and topic_denied(
            services, context, AclOperation.DESCRIBE, topic.topic, count=len(topic.partitions)
        )
        for partition in topic.partitions:
            result = EpochEndOffset(partition=partition.partition)
            try:
                if denied:
                    raise KlammError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                # Only the leader: a follower's epochs may lack the newest.
                replica = leading_replica(services, topic.topic, partition.partition, partition.current_leader_epoch)
                result.leader_epoch, result.end_offset = replica.end_offset_for_epoch(partition.leader_epoch)
            except KlammError as error:
                result.error_code = error.code
            partitions.append(result)
            yield 1
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
        yield 1
    return OffsetForLeaderEpochResponse(topics=topics)
