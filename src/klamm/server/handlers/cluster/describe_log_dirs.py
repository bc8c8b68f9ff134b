"""DescribeLogDirs, v1-5: what lies in each log dir and how much room is left.

Null topics mean all. Partitions this broker does not hold are left out. A replica that moves to another log dir is
there twice: where it is, and where it will be (is_future_key), with offset_lag for what the copy lacks. A log dir that
has failed answers KAFKA_STORAGE_ERROR for all it holds.
v2 flexible · v3 top-level error · v4 total and usable bytes · v5 cordoned dirs
"""

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


def handle(services: Services, _context: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """Group the replicas by log dir and topic."""
    wanted: set[tuple[str, int]] | None = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    facts = services.logs.describe_dirs()
    dirs: dict[str, dict[str, list[DescribeLogDirsPartition]]] = {d.path: {} for d in facts}
    for replica in services.replicas:
        if wanted is None or (replica.topic, replica.index) in wanted:
            log = replica.log
            found = [(log, max(log.high_watermark - log.log_end_offset, 0), False)]
            future = services.logs.futures.get(log.topic_partition)
            if future is not None:
                found.append((future, max(log.log_end_offset - future.log_end_offset, 0), True))
            for each, lag, is_future in found:
                topics = dirs[services.logs.log_dir_of(each).path]
                topics.setdefault(replica.topic, []).append(
                    DescribeLogDirsPartition(
                        partition_index=replica.index,
                        partition_size=each.size_bytes,
                        offset_lag=lag,
                        is_future_key=is_future,
                    )
                )
    results = []
    for room in facts:
        topics = dirs[room.path]
        results.append(
            DescribeLogDirsResult(
                error_code=ErrorCode.NONE if room.failure is None else ErrorCode.KAFKA_STORAGE_ERROR,
                log_dir=room.path,
                topics=[DescribeLogDirsTopic(name=name, partitions=parts) for name, parts in sorted(topics.items())]
                if room.failure is None
                else [],
                total_bytes=room.total_bytes,
                usable_bytes=room.usable_bytes,
            )
        )
    return DescribeLogDirsResponse(results=results)
