"""AssignReplicasToDirs, v0: a broker reports the log directories of its replicas to the controller.

v0 flexible from the start
"""

from klamm.protocol.schema import array, int16, int32, int64, message, struct, uuid, wire


@struct
class PartitionData:
    """One replica."""

    partition_index: int = wire(int32)


@struct
class TopicData:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[PartitionData] = wire(array(PartitionData))


@struct
class DirectoryData:
    """One directory by its id."""

    id: bytes = wire(uuid)
    topics: list[TopicData] = wire(array(TopicData))


@message(api_key=73, versions=(0, 0), flexible=0)
class AssignReplicasToDirsRequest:
    """Name the replicas of each directory."""

    broker_id: int = wire(int32)
    broker_epoch: int = wire(int64, default=-1)
    directories: list[DirectoryData] = wire(array(DirectoryData))


@struct
class PartitionDataResponse:
    """Whether one replica was noted."""

    partition_index: int = wire(int32)
    error_code: int = wire(int16)


@struct
class TopicDataResponse:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[PartitionDataResponse] = wire(array(PartitionDataResponse))


@struct
class DirectoryDataResponse:
    """One directory by its id."""

    id: bytes = wire(uuid)
    topics: list[TopicDataResponse] = wire(array(TopicDataResponse))


@message(api_key=73, versions=(0, 0), flexible=0)
class AssignReplicasToDirsResponse:
    """The result of each replica."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    directories: list[DirectoryDataResponse] = wire(array(DirectoryDataResponse))
