"""DeleteRecords, v0-2: delete the records before an offset by moving the log start offset.

-1 means up to the high watermark. An offset beyond it is OFFSET_OUT_OF_RANGE; one before the log's start changes
nothing and succeeds. A compacted topic that does not also delete refuses: POLICY_VIOLATION.
v2 flexible
"""

import asyncio

from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from klamm.replication import Replica
from klamm.server.cluster.topics import is_internal, leading_replica
from klamm.server.requests.access.checks import topic_denied
from klamm.server.requests.context import RequestContext
from klamm.server.requests.slices import SliceSteps
from klamm.server.services import Services

HIGH_WATERMARK = -1
PAUSE_S = 0.005


def handle(services: Services, context: RequestContext, request: DeleteRecordsRequest) -> SliceSteps[object]:
    """Move the log start offset of each partition; answered once every live follower has moved its own too.

    Otherwise the records would come back with the next leader.
    """
    moved = False
    topics = []
    waiting: list[tuple[Replica, int, DeleteRecordsPartitionResult]] = []
    for topic in request.topics:
        results = []
        denied = topic_denied(services, context, AclOperation.DELETE, topic.name, count=len(topic.partitions))
        for partition in topic.partitions:
            result = DeleteRecordsPartitionResult(partition_index=partition.partition_index, low_watermark=-1)
            try:
                if denied:
                    raise KlammError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                replica, target = _find_target(services, topic.name, partition.partition_index, partition.offset)
                log = replica.log
                if target > log.log_start_offset:
                    log.delete_records(target)
                    moved = True
                    # A waiting fetch of a follower is answered at once: the response carries the new log start offset.
                    replica.complete_follower_fetches()
                result.low_watermark = log.log_start_offset
                if replica.state.followers:
                    waiting.append((replica, target, result))
            except KlammError as error:
                result.error_code = error.code
            results.append(result)
            yield 1
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
        yield 1
    if moved:
        # On disk before the response: a crash must not bring the records back.
        services.logs.checkpoint()
    response = DeleteRecordsResponse(topics=topics)
    return _wait(services, request.timeout_ms, waiting, response) if waiting else response


async def _wait(
    services: Services,
    timeout_ms: int,
    waiting: list[tuple[Replica, int, DeleteRecordsPartitionResult]],
    response: DeleteRecordsResponse,
) -> DeleteRecordsResponse:
    """Answer once the followers have moved their log start offsets; REQUEST_TIMED_OUT where they have not in time."""
    deadline = services.loop.time() + timeout_ms / 1000
    while waiting:
        late = []
        for entry in waiting:
            replica, target, result = entry
            # The lowest log start offset of the live replicas, as in Kafka.
            result.low_watermark = replica.low_watermark(services.image.cluster)
            # Leadership moved meanwhile: the client retries with the new leader, and the deletion is repeated there.
            if not replica.leads:
                result.error_code, result.low_watermark = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
            if not result.error_code and result.low_watermark < target:
                late.append(entry)
        waiting = late
        if waiting and services.loop.time() >= deadline:
            for _, _, result in waiting:
                result.error_code, result.low_watermark = ErrorCode.REQUEST_TIMED_OUT, -1
            break
        if waiting:
            await asyncio.sleep(PAUSE_S)
    return response


def _find_target(services: Services, topic: str, index: int, offset: int) -> tuple[Replica, int]:
    """Return the replica, and the offset before which its records are deleted."""
    # Coordinators depend on every record of internal topics; Kafka refuses this as well.
    if is_internal(topic):
        raise KlammError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    replica = leading_replica(services, topic, index, -1)
    log = replica.log
    # An empty policy keeps everything until it is deleted by request.
    policy = log.config.cleanup_policy
    if policy and "delete" not in policy:
        raise KlammError(ErrorCode.POLICY_VIOLATION)
    target = log.high_watermark if offset == HIGH_WATERMARK else offset
    if target < 0 or target > log.high_watermark:
        raise KlammError(ErrorCode.OFFSET_OUT_OF_RANGE)
    return replica, target
