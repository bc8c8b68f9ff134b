"""StreamsGroupDescribe, v0: show streams groups.

v0 flexible from the start
"""

from klamm.protocol.schema import array, boolean, int16, int32, int64, message, string, struct, uint16, wire


@message(api_key=89, versions=(0, 0), flexible=0)
class StreamsGroupDescribeRequest:
    """Request streams groups by name."""

    group_ids: list[str] = wire(array(string))
    include_authorized_operations: bool = wire(boolean)


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
class Subtopology:
    """A part of the topology that is run as tasks."""

    subtopology_id: str = wire(string)
    source_topics: list[str] = wire(array(string))
    repartition_sink_topics: list[str] = wire(array(string))
    state_changelog_topics: list[TopicInfo] = wire(array(TopicInfo))
    repartition_source_topics: list[TopicInfo] = wire(array(TopicInfo))


@struct
class Topology:
    """What the application computes."""

    epoch: int = wire(int32)
    subtopologies: list[Subtopology] | None = wire(array(Subtopology), nullable=0, default=None)


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


@struct
class TaskIds:
    """Tasks of one subtopology, by partition."""

    subtopology_id: str = wire(string)
    partitions: list[int] = wire(array(int32))


@struct
class Assignment:
    """All tasks of a member."""

    active_tasks: list[TaskIds] = wire(array(TaskIds))
    standby_tasks: list[TaskIds] = wire(array(TaskIds))
    warmup_tasks: list[TaskIds] = wire(array(TaskIds))


@struct
class Member:
    """One member, what it runs and what it should run."""

    member_id: str = wire(string)
    member_epoch: int = wire(int32)
    instance_id: str | None = wire(string, nullable=0, default=None)
    rack_id: str | None = wire(string, nullable=0, default=None)
    client_id: str = wire(string)
    client_host: str = wire(string)
    topology_epoch: int = wire(int32)
    process_id: str = wire(string)
    user_endpoint: Endpoint | None = wire(Endpoint, nullable=0, default=None)
    client_tags: list[KeyValue] = wire(array(KeyValue))
    task_offsets: list[TaskOffset] = wire(array(TaskOffset))
    task_end_offsets: list[TaskOffset] = wire(array(TaskOffset))
    assignment: Assignment = wire(Assignment)
    target_assignment: Assignment = wire(Assignment)
    is_classic: bool = wire(boolean)


@struct
class DescribedGroup:
    """One group."""

    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)
    group_id: str = wire(string)
    group_state: str = wire(string)
    group_epoch: int = wire(int32)
    assignment_epoch: int = wire(int32)
    topology: Topology | None = wire(Topology, nullable=0, default=None)
    members: list[Member] = wire(array(Member))
    authorized_operations: int = wire(int32, default=-(2**31))


@message(api_key=89, versions=(0, 0), flexible=0)
class StreamsGroupDescribeResponse:
    """The groups, their topologies and their members."""

    throttle_time_ms: int = wire(int32)
    groups: list[DescribedGroup] = wire(array(DescribedGroup))
