"""DescribeLogDirs, v1-5: what lies in the log dirs of a broker.

v2 flexible · v3 error for the whole response · v4 total and usable bytes · v5 cordoned dirs
"""

from klamm.protocol.schema import array, boolean, int16, int32, int64, message, string, struct, wire


@struct
class DescribableLogDirTopic:
    """The partitions of one topic."""

    topic: str = wire(string)
    partitions: list[int] = wire(array(int32))


@message(api_key=35, versions=(1, 5), flexible=2)
class DescribeLogDirsRequest:
    """Request some topics, or all with null."""

    topics: list[DescribableLogDirTopic] | None = wire(array(DescribableLogDirTopic), nullable=0)


@struct
class DescribeLogDirsPartition:
    """The size of one replica and how far it lags."""

    partition_index: int = wire(int32)
    partition_size: int = wire(int64)
    # Behind the high watermark; of a future replica, behind the current one.
    offset_lag: int = wire(int64)
    # A replica that AlterReplicaLogDirs is copying to this directory.
    is_future_key: bool = wire(boolean)


@struct
class DescribeLogDirsTopic:
    """The partitions of one topic."""

    name: str = wire(string)
    partitions: list[DescribeLogDirsPartition] = wire(array(DescribeLogDirsPartition))


@struct
class DescribeLogDirsResult:
    """One log dir."""

    error_code: int = wire(int16)
    log_dir: str = wire(string)
    topics: list[DescribeLogDirsTopic] = wire(array(DescribeLogDirsTopic))
    total_bytes: int = wire(int64, since=4, default=-1)
    usable_bytes: int = wire(int64, since=4, default=-1)
    is_cordoned: bool = wire(boolean, since=5)


@message(api_key=35, versions=(1, 5), flexible=2)
class DescribeLogDirsResponse:
    """The log dirs and the replicas in them."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16, since=3)
    results: list[DescribeLogDirsResult] = wire(array(DescribeLogDirsResult))
