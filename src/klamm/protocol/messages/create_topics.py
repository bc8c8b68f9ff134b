"""CreateTopics, v2-7: make new topics.

v4 defaults of the broker when counts are -1 · v5 flexible, configs in the response · v6 quota errors · v7 topic ids
"""

from klamm.protocol.schema import array, boolean, int8, int16, int32, message, string, struct, uuid, wire


@struct
class CreatableReplicaAssignment:
    """The replicas of one partition, preferred leader first."""

    partition_index: int = wire(int32)
    broker_ids: list[int] = wire(array(int32))


@struct
class CreatableTopicConfig:
    """One setting the topic starts with."""

    name: str = wire(string)
    value: str | None = wire(string, nullable=0)


@struct
class CreatableTopic:
    """One topic to make."""

    name: str = wire(string)
    # -1, here and below, takes the broker's default (KIP-464) or belongs to manual assignments.
    num_partitions: int = wire(int32)
    replication_factor: int = wire(int16)
    assignments: list[CreatableReplicaAssignment] = wire(array(CreatableReplicaAssignment))
    configs: list[CreatableTopicConfig] = wire(array(CreatableTopicConfig))


@message(api_key=19, versions=(2, 7), flexible=5)
class CreateTopicsRequest:
    """Request topics, placed by the controller or by the request."""

    topics: list[CreatableTopic] = wire(array(CreatableTopic))
    timeout_ms: int = wire(int32, default=60000)
    validate_only: bool = wire(boolean)


@struct
class CreatableTopicConfigs:
    """One setting of the topic that was made."""

    name: str = wire(string)
    value: str | None = wire(string, nullable=0)
    read_only: bool = wire(boolean)
    config_source: int = wire(int8, default=-1)
    is_sensitive: bool = wire(boolean)


@struct
class CreatableTopicResult:
    """One topic that was made, or why it was not."""

    name: str = wire(string)
    topic_id: bytes = wire(uuid, since=7)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
    # The reason why `configs` is null, if it is.
    topic_config_error_code: int = wire(int16, since=5, tag=0)
    num_partitions: int = wire(int32, since=5, default=-1)
    replication_factor: int = wire(int16, since=5, default=-1)
    configs: list[CreatableTopicConfigs] | None = wire(array(CreatableTopicConfigs), since=5, nullable=0)


@message(api_key=19, versions=(2, 7), flexible=5)
class CreateTopicsResponse:
    """The result of each topic."""

    throttle_time_ms: int = wire(int32)
    topics: list[CreatableTopicResult] = wire(array(CreatableTopicResult))
