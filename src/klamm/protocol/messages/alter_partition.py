"""AlterPartition, v2-3: a partition leader proposes new in-sync replicas to the controller.

v2 topic ids · v3 broker epochs of the new in-sync replicas (KIP-903)
"""

from klamm.protocol.schema import array, int8, int16, int32, int64, message, struct, uuid, wire


@struct
class BrokerState:
    """A broker and its epoch."""

    broker_id: int = wire(int32)
    # -1 skips the comparison: the leader's version has no epochs of replicas.
    broker_epoch: int = wire(int64, default=-1)


@struct
class PartitionData:
    """The proposal for one partition."""

    partition_index: int = wire(int32)
    leader_epoch: int = wire(int32)
    new_isr: list[int] = wire(array(int32), until=2)
    new_isr_with_epochs: list[BrokerState] = wire(array(BrokerState), since=3)
    # 1 from an unclean election until the leader has recovered (KIP-704).
    leader_recovery_state: int = wire(int8)
    partition_epoch: int = wire(int32)


@struct
class TopicData:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[PartitionData] = wire(array(PartitionData))


@message(api_key=56, versions=(2, 3), flexible=0)
class AlterPartitionRequest:
    """Propose new in-sync replicas."""

    broker_id: int = wire(int32)
    broker_epoch: int = wire(int64, default=-1)
    topics: list[TopicData] = wire(array(TopicData))


@struct
class PartitionDataResponse:
    """The new state of one partition, or why the proposal failed."""

    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    leader_id: int = wire(int32)
    leader_epoch: int = wire(int32)
    isr: list[int] = wire(array(int32))
    leader_recovery_state: int = wire(int8)
    partition_epoch: int = wire(int32)


@struct
class TopicDataResponse:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[PartitionDataResponse] = wire(array(PartitionDataResponse))


@message(api_key=56, versions=(2, 3), flexible=0)
class AlterPartitionResponse:
    """The partition as the controller now sees it."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    topics: list[TopicDataResponse] = wire(array(TopicDataResponse))
