"""AlterReplicaLogDirs, v1-2: move replicas between the log dirs of a broker.

v1 quota applied after the response · v2 flexible
"""

from klamm.protocol.schema import array, int16, int32, message, string, struct, wire


@struct
class AlterReplicaLogDirTopic:
    """The partitions of one topic."""

    name: str = wire(string)
    partitions: list[int] = wire(array(int32))


@struct
class AlterReplicaLogDir:
    """A log dir and the replicas that should be in it."""

    path: str = wire(string)
    topics: list[AlterReplicaLogDirTopic] = wire(array(AlterReplicaLogDirTopic))


@message(api_key=34, versions=(1, 2), flexible=2)
class AlterReplicaLogDirsRequest:
    """The directories that replicas should be in."""

    dirs: list[AlterReplicaLogDir] = wire(array(AlterReplicaLogDir))


@struct
class AlterReplicaLogDirPartitionResult:
    """Whether one replica will move."""

    partition_index: int = wire(int32)
    error_code: int = wire(int16)


@struct
class AlterReplicaLogDirTopicResult:
    """The partitions of one topic."""

    topic_name: str = wire(string)
    partitions: list[AlterReplicaLogDirPartitionResult] = wire(array(AlterReplicaLogDirPartitionResult))


@message(api_key=34, versions=(1, 2), flexible=2)
class AlterReplicaLogDirsResponse:
    """Which moves were accepted."""

    throttle_time_ms: int = wire(int32)
    results: list[AlterReplicaLogDirTopicResult] = wire(array(AlterReplicaLogDirTopicResult))
