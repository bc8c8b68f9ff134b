"""AlterReplicaLogDirs, v1-2: move replicas of this broker to other log dirs of it.

Answered when the move has begun; the replica serves meanwhile, and DescribeLogDirs shows the lag of the copy. A request
for the log dir a replica is in cancels a move elsewhere. A partition that is not here yet will be created in the
requested log dir, and is answered with REPLICA_NOT_AVAILABLE.
v2 flexible
"""

from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from klamm.server.requests.context import RequestContext
from klamm.server.requests.slices import SliceSteps
from klamm.server.services import Services
from klamm.telemetry.log import get_logger

log = get_logger("replication")


def handle(
    services: Services, _context: RequestContext, request: AlterReplicaLogDirsRequest
) -> SliceSteps[AlterReplicaLogDirsResponse]:
    """Begin every move that can be made."""
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for log_dir in request.dirs:
        for topic in log_dir.topics:
            for index in topic.partitions:
                code = _start(services, topic.name, index, log_dir.path)
                result = AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                # The request groups by log dir, the response by topic.
                results.setdefault(topic.name, []).append(result)
                yield 1
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
            for name, partitions in results.items()
        ]
    )


def _start(services: Services, topic: str, index: int, path: str) -> ErrorCode:
    try:
        services.moves.start(topic, index, path)
    except KlammError as error:
        log.warning("replica move refused", partition=f"{topic}-{index}", folder=path, reason=error.message)
        return error.code
    return ErrorCode.NONE
