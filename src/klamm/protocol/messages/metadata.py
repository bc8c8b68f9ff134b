"""Metadata, v0-13: the leaders of partitions and the addresses of brokers.

v1 controller, rack, null for all topics · v2 cluster id · v4 auto-creation can be refused · v5 offline replicas ·
v7 leader epoch · v8 authorized operations · v9 flexible · v10 topic ids · v11 cluster operations moved to
DescribeCluster · v12 topics requested by id · v13 error for the whole response
"""

from klamm.protocol.schema import array, boolean, int16, int32, message, string, struct, uuid, wire


@struct
class MetadataRequestTopic:
    """A topic by its name or its id."""

    topic_id: bytes = wire(uuid, since=10)
    # Null when the topic is requested by id.
    name: str | None = wire(string, nullable=10)


@message(api_key=3, versions=(0, 13), flexible=9)
class MetadataRequest:
    """Request some topics, or all with null; in v0 an empty list means all."""

    topics: list[MetadataRequestTopic] | None = wire(array(MetadataRequestTopic), nullable=1)
    allow_auto_topic_creation: bool = wire(boolean, since=4, default=True)
    include_cluster_authorized_operations: bool = wire(boolean, since=8, until=10)
    include_topic_authorized_operations: bool = wire(boolean, since=8)


@struct
class MetadataResponseBroker:
    """A broker and its address on the listener of the request."""

    node_id: int = wire(int32)
    host: str = wire(string)
    port: int = wire(int32)
    rack: str | None = wire(string, since=1, nullable=0, default=None)


@struct
class MetadataResponsePartition:
    """One partition: its leader and its replicas."""

    error_code: int = wire(int16)
    partition_index: int = wire(int32)
    leader_id: int = wire(int32)
    leader_epoch: int = wire(int32, since=7, default=-1)
    replica_nodes: list[int] = wire(array(int32))
    isr_nodes: list[int] = wire(array(int32))
    offline_replicas: list[int] = wire(array(int32), since=5)


@struct
class MetadataResponseTopic:
    """One topic, or the reason it cannot be shown."""

    error_code: int = wire(int16)
    # Null for an id that does not exist.
    name: str | None = wire(string, nullable=12)
    topic_id: bytes = wire(uuid, since=10)
    is_internal: bool = wire(boolean, since=1)
    partitions: list[MetadataResponsePartition] = wire(array(MetadataResponsePartition))
    # The smallest int32 stands for operations that were not requested.
    topic_authorized_operations: int = wire(int32, since=8, default=-(2**31))


@message(api_key=3, versions=(0, 13), flexible=9)
class MetadataResponse:
    """The brokers and the partitions of the requested topics."""

    throttle_time_ms: int = wire(int32, since=3)
    brokers: list[MetadataResponseBroker] = wire(array(MetadataResponseBroker))
    cluster_id: str | None = wire(string, since=2, nullable=0, default=None)
    controller_id: int = wire(int32, since=1, default=-1)
    topics: list[MetadataResponseTopic] = wire(array(MetadataResponseTopic))
    cluster_authorized_operations: int = wire(int32, since=8, until=10, default=-(2**31))
    error_code: int = wire(int16, since=13)
