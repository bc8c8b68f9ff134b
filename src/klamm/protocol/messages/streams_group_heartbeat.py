"""StreamsGroupHeartbeat, v0: join, stay in and leave a streams group (KIP-1071).

v0 flexible from the start
"""

from klamm.protocol.schema import array, boolean, int8, int16, int32, int64, message, string, struct, uint16, wire


@struct
class KeyValue:
    """A name and its value."""

    key: str = wire(string)
    value: str = wire(string)


@struct
class TopicInfo:
    """An internal topic the topology needs."""

    name: str = wire(string)
    partitions: int = wire(int32)
    replication_factor: int = wire(int16)
    topic_configs: list[KeyValue] = wire(array(KeyValue))


@struct
class CopartitionGroup:
    """Topics that must have the same number of partitions, by their place in the lists above."""

    source_topics: list[int] = wire(array(int16))
    source_topic_regex: list[int] = wire(array(int16))
    repartition_source_topics: list[int] = wire(array(int16))


@struct
class Subtopology:
    """A part of the topology that is run as tasks."""

    subtopology_id: str = wire(string)
    source_topics: list[str] = wire(array(string))
    source_topic_regex: list[str] = wire(array(string))
    state_changelog_topics: list[TopicInfo] = wire(array(TopicInfo))
    repartition_sink_topics: list[str] = wire(array(string))
    repartition_source_topics: list[TopicInfo] = wire(array(TopicInfo))
    copartition_groups: list[CopartitionGroup] = wire(array(CopartitionGroup))


@struct
class Topology:
    """What the application computes."""

    epoch: int = wire(int32)
    subtopologies: list[Subtopology] = wire(array(Subtopology))


@struct
class TaskIds:
    """Tasks of one subtopology, by partition."""

    subtopology_id: str = wire(string)
    partitions: list[int] = wire(array(int32))


@struct
class Endpoint:
    """Where the member answers interactive queries."""

    host: str = wire(string)
    port: int = wire(uint16)


@struct
class TaskOffset:
    """How far the state of one task has come."""

    subtopology_id: str = wire(string)
    partition: int = wire(int32)
    offset: int = wire(int64)


@message(api_key=88, versions=(0, 0), flexible=0)
class StreamsGroupHeartbeatRequest:
    """What has changed: topology, tasks, endpoint; epoch 0 joins, -1 leaves, -2 leaves temporarily."""

    group_id: str = wire(string)
    member_id: str = wire(string)
    member_epoch: int = wire(int32)
    endpoint_information_epoch: int = wire(int32)
    instance_id: str | None = wire(string, nullable=0, default=None)
    rack_id: str | None = wire(string, nullable=0, default=None)
    rebalance_timeout_ms: int = wire(int32, default=-1)
    topology: Topology | None = wire(Topology, nullable=0, default=None)
    active_tasks: list[TaskIds] | None = wire(array(TaskIds), nullable=0, default=None)
    standby_tasks: list[TaskIds] | None = wire(array(TaskIds), nullable=0, default=None)
    warmup_tasks: list[TaskIds] | None = wire(array(TaskIds), nullable=0, default=None)
    process_id: str | None = wire(string, nullable=0, default=None)
    user_endpoint: Endpoint | None = wire(Endpoint, nullable=0, default=None)
    client_tags: list[KeyValue] | None = wire(array(KeyValue), nullable=0, default=None)
    task_offsets: list[TaskOffset] | None = wire(array(TaskOffset), nullable=0, default=None)
    task_end_offsets: list[TaskOffset] | None = wire(array(TaskOffset), nullable=0, default=None)
    shutdown_application: bool = wire(boolean)


@struct
class Status:
    """A notice to the member, as a code and a sentence."""

    status_code: int = wire(int8)
    status_detail: str = wire(string)


@struct
class TopicPartition:
    """The partitions of one topic."""

    topic: str = wire(string)
    partitions: list[int] = wire(array(int32))


@struct
class EndpointToPartitions:
    """Which partitions an endpoint answers for."""

    user_endpoint: Endpoint = wire(Endpoint)
    active_partitions: list[TopicPartition] = wire(array(TopicPartition))
    standby_partitions: list[TopicPartition] = wire(array(TopicPartition))


@message(api_key=88, versions=(0, 0), flexible=0)
class StreamsGroupHeartbeatResponse:
    """The member's epoch and, when they changed, its tasks."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)
    member_id: str = wire(string)
    member_epoch: int = wire(int32)
    heartbeat_interval_ms: int = wire(int32)
    acceptable_recovery_lag: int = wire(int32)
    task_offset_interval_ms: int = wire(int32)
    status: list[Status] | None = wire(array(Status), nullable=0)
    active_tasks: list[TaskIds] | None = wire(array(TaskIds), nullable=0, default=None)
    standby_tasks: list[TaskIds] | None = wire(array(TaskIds), nullable=0, default=None)
    warmup_tasks: list[TaskIds] | None = wire(array(TaskIds), nullable=0, default=None)
    endpoint_information_epoch: int = wire(int32)
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = wire(
        array(EndpointToPartitions), nullable=0, default=None
    )
