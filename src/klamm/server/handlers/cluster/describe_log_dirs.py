"""DescribeLogDirs, v1-5: the replicas in each log dir and the free space of its disk.

Null topics mean all. Partitions without a replica here are left out. A replica that moves to another log dir is listed
twice: where it is, and where it will be (is_future_key), with offset_lag for what the copy lacks. A failed log dir is
KAFKA_STORAGE_ERROR.
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
    # Failed log dirs included, which have no replicas below.
    facts = services.logs.describe_dirs()
    dirs: dict[str, dict[str, list[DescribeLogDirsPartition]]] = {log_dir.path: {} for log_dir in facts}
    for replica in services.replicas:
        if wanted is None or (replica.topic, replica.index) in wanted:
            log = replica.log
            # A follower's log may end before the high watermark that its leader has sent.
            copies = [(log, max(log.high_watermark - log.log_end_offset, 0), False)]
            future = services.logs.futures.get(log.topic_partition)
            if future is not None:
                copies.append((future, max(log.log_end_offset - future.log_end_offset, 0), True))
            for copy, lag, is_future in copies:
                topics = dirs[services.logs.log_dir_of(copy).path]
                topics.setdefault(replica.topic, []).append(
                    DescribeLogDirsPartition(
                        partition_index=replica.index,
                        partition_size=copy.size_bytes,
                        offset_lag=lag,
                        is_future_key=is_future,
                    )
                )
    results = []
    for log_dir in facts:
        topics = dirs[log_dir.path]
        results.append(
            DescribeLogDirsResult(
                error_code=ErrorCode.NONE if log_dir.failure is None else ErrorCode.KAFKA_STORAGE_ERROR,
                log_dir=log_dir.path,
                topics=[
                    DescribeLogDirsTopic(name=name, partitions=partitions)
                    for name, partitions in sorted(topics.items())
                ]
                if log_dir.failure is None
                else [],
                total_bytes=log_dir.total_bytes,
                usable_bytes=log_dir.usable_bytes,
            )
        )
    return DescribeLogDirsResponse(results=results)
