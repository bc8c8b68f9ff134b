"""DeleteRecords, v0-2: give up the records before an offset; they are never served again.

-1 means up to the high watermark. An offset beyond it, or before the log's start, is OFFSET_OUT_OF_RANGE for the one
and already done for the other. A compacted topic that does not also delete refuses: POLICY_VIOLATION.
v2 flexible
"""

from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from klamm.server.context import RequestContext
from klamm.server.services import Services
from klamm.server.topics import is_internal, leading_replica
from klamm.storage import Log

HIGH_WATERMARK = -1


def handle(services: Services, _context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Move the start of each log, and note it on disk before the answer, so that a crash brings nothing back."""
    moved = False
    topics = []
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            answer = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
            try:
                log, target = _check(services, topic.name, asked.partition_index, asked.offset)
                if target > log.log_start_offset:
                    log.delete_records(target)
                    moved = True
                answer.low_watermark = log.log_start_offset
            except KlammError as error:
                answer.error_code = error.code
            answers.append(answer)
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=answers))
    if moved:
        services.logs.checkpoint()
    return DeleteRecordsResponse(topics=topics)


def _check(services: Services, topic: str, index: int, offset: int) -> tuple[Log, int]:
    """The log and the offset before which its records go."""
    if is_internal(topic):
        raise KlammError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    log = leading_replica(services, topic, index, -1).log
    policy = log.config.cleanup_policy
    if policy and "delete" not in policy:
        raise KlammError(ErrorCode.POLICY_VIOLATION)
    target = log.high_watermark if offset == HIGH_WATERMARK else offset
    if target < 0 or target > log.high_watermark:
        raise KlammError(ErrorCode.OFFSET_OUT_OF_RANGE)
    return log, target
