"""The records of the KRaft metadata log, `__cluster_metadata-0`: what the controller decided, one change each.

`api_key` is the record's type id. On disk a value is three unsigned varints (frame version 1, type id, record
version) and the body; `klamm.metadata.records` adds and removes them.
"""

from klamm.protocol.schema import (
    array,
    blob,
    boolean,
    float64,
    int8,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
    uint16,
    uuid,
    wire,
)


@struct
class BrokerEndpoint:
    """One listener of a broker."""

    name: str = wire(string)
    host: str = wire(string)
    # Unsigned: ports above 32767 fit.
    port: int = wire(uint16)
    security_protocol: int = wire(int16)


@struct
class BrokerFeature:
    """The levels of one feature a broker can run."""

    name: str = wire(string)
    min_supported_version: int = wire(int16)
    max_supported_version: int = wire(int16)


@message(api_key=0, versions=(0, 4), flexible=0)
class RegisterBrokerRecord:
    """A broker process joined the cluster, under a new epoch.

    v1 controlled shutdown · v2 ZooKeeper migration · v3 log directories · v4 cordoned directories
    """

    broker_id: int = wire(int32)
    is_migrating_zk_broker: bool = wire(boolean, since=2)
    incarnation_id: bytes = wire(uuid)
    broker_epoch: int = wire(int64)
    end_points: list[BrokerEndpoint] = wire(array(BrokerEndpoint))
    features: list[BrokerFeature] = wire(array(BrokerFeature))
    rack: str | None = wire(string, nullable=0)
    fenced: bool = wire(boolean, default=True)
    in_controlled_shutdown: bool = wire(boolean, since=1)
    log_dirs: list[bytes] = wire(array(uuid), since=3, tag=0)
    cordoned_log_dirs: list[bytes] | None = wire(array(uuid), since=4, nullable=4, tag=1, default=None)


@message(api_key=1, versions=(0, 0), flexible=0)
class UnregisterBrokerRecord:
    """A broker left for good."""

    broker_id: int = wire(int32)
    broker_epoch: int = wire(int64)


@message(api_key=2, versions=(0, 0), flexible=0)
class TopicRecord:
    """A topic exists from here on; its partitions follow."""

    name: str = wire(string)
    topic_id: bytes = wire(uuid)


@message(api_key=3, versions=(0, 2), flexible=0)
class PartitionRecord:
    """A partition exists, whole state. v1 directories · v2 eligible leader replicas."""

    partition_id: int = wire(int32, default=-1)
    topic_id: bytes = wire(uuid)
    replicas: list[int] = wire(array(int32))
    isr: list[int] = wire(array(int32))
    removing_replicas: list[int] = wire(array(int32))
    adding_replicas: list[int] = wire(array(int32))
    leader: int = wire(int32, default=-1)
    leader_recovery_state: int = wire(int8, tag=0)
    leader_epoch: int = wire(int32, default=-1)
    partition_epoch: int = wire(int32, default=-1)
    directories: list[bytes] = wire(array(uuid), since=1)
    eligible_leader_replicas: list[int] | None = wire(array(int32), since=2, nullable=2, tag=1, default=None)
    last_known_elr: list[int] | None = wire(array(int32), since=2, nullable=2, tag=2, default=None)


@message(api_key=4, versions=(0, 0), flexible=0)
class ConfigRecord:
    """One config of one resource was set, or with a null value removed."""

    resource_type: int = wire(int8)
    resource_name: str = wire(string)
    name: str = wire(string)
    value: str | None = wire(string, nullable=0)


@message(api_key=5, versions=(0, 2), flexible=0)
class PartitionChangeRecord:
    """What changed in a partition; a field at its default did not change.

    leader -2 is "as before", -1 "none". v1 directories · v2 eligible leader replicas.
    """

    partition_id: int = wire(int32, default=-1)
    topic_id: bytes = wire(uuid)
    # Declared in Kafka's order; on the wire tagged fields are sorted by their tags.
    isr: list[int] | None = wire(array(int32), nullable=0, tag=0, default=None)
    leader: int = wire(int32, tag=1, default=-2)
    replicas: list[int] | None = wire(array(int32), nullable=0, tag=2, default=None)
    removing_replicas: list[int] | None = wire(array(int32), nullable=0, tag=3, default=None)
    adding_replicas: list[int] | None = wire(array(int32), nullable=0, tag=4, default=None)
    leader_recovery_state: int = wire(int8, tag=5, default=-1)
    directories: list[bytes] | None = wire(array(uuid), since=1, nullable=1, tag=8, default=None)
    eligible_leader_replicas: list[int] | None = wire(array(int32), since=2, nullable=2, tag=6, default=None)
    last_known_elr: list[int] | None = wire(array(int32), since=2, nullable=2, tag=7, default=None)


@message(api_key=7, versions=(0, 0), flexible=0)
class FenceBrokerRecord:
    """A broker may no longer lead (the older form; BrokerRegistrationChangeRecord replaced it)."""

    id: int = wire(int32)
    epoch: int = wire(int64)


@message(api_key=8, versions=(0, 0), flexible=0)
class UnfenceBrokerRecord:
    """A broker may lead again (the older form; BrokerRegistrationChangeRecord replaced it)."""

    id: int = wire(int32)
    epoch: int = wire(int64)


@message(api_key=9, versions=(0, 0), flexible=0)
class RemoveTopicRecord:
    """A topic is gone, its partitions and configs with it."""

    topic_id: bytes = wire(uuid)


@message(api_key=10, versions=(0, 0), flexible=0)
class DelegationTokenRecord:
    """A delegation token was made or renewed."""

    owner: str = wire(string)
    requester: str = wire(string)
    renewers: list[str] = wire(array(string))
    issue_timestamp: int = wire(int64)
    max_timestamp: int = wire(int64)
    expiration_timestamp: int = wire(int64)
    token_id: str = wire(string)


@message(api_key=11, versions=(0, 0), flexible=0)
class UserScramCredentialRecord:
    """What a user proves knowledge of when logging in with SCRAM."""

    name: str = wire(string)
    mechanism: int = wire(int8)
    salt: bytes = wire(blob)
    stored_key: bytes = wire(blob)
    server_key: bytes = wire(blob)
    iterations: int = wire(int32)


@message(api_key=12, versions=(0, 0), flexible=0)
class FeatureLevelRecord:
    """The whole cluster runs a feature at this level; 0 turns it off."""

    name: str = wire(string)
    feature_level: int = wire(int16)


@struct
class EntityData:
    """A part of the name of a quota entity; a null name is the default of its type."""

    entity_type: str = wire(string)
    entity_name: str | None = wire(string, nullable=0)


@message(api_key=14, versions=(0, 0), flexible=0)
class ClientQuotaRecord:
    """One limit of one quota entity was set or removed."""

    entity: list[EntityData] = wire(array(EntityData))
    key: str = wire(string)
    # Without meaning when `remove` is set.
    value: float = wire(float64)
    remove: bool = wire(boolean)


@message(api_key=15, versions=(0, 0), flexible=0)
class ProducerIdsRecord:
    """A block of producer ids was handed to a broker; the next block starts here."""

    broker_id: int = wire(int32)
    broker_epoch: int = wire(int64, default=-1)
    next_producer_id: int = wire(int64)


@message(api_key=17, versions=(0, 3), flexible=0)
class BrokerRegistrationChangeRecord:
    """What changed about a registered broker; a field at its default did not change.

    fenced: 1 fenced, -1 unfenced. v1 controlled shutdown · v2 log directories · v3 cordoned directories
    """

    broker_id: int = wire(int32)
    broker_epoch: int = wire(int64)
    fenced: int = wire(int8, tag=0)
    in_controlled_shutdown: int = wire(int8, since=1, tag=1)
    log_dirs: list[bytes] = wire(array(uuid), since=2, tag=2)
    cordoned_log_dirs: list[bytes] | None = wire(array(uuid), since=3, nullable=3, tag=3, default=None)


@message(api_key=18, versions=(0, 0), flexible=0)
class AccessControlEntryRecord:
    """An access rule exists."""

    id: bytes = wire(uuid)
    resource_type: int = wire(int8)
    resource_name: str = wire(string)
    pattern_type: int = wire(int8)
    principal: str = wire(string)
    host: str = wire(string)
    operation: int = wire(int8)
    permission_type: int = wire(int8)


@message(api_key=19, versions=(0, 0), flexible=0)
class RemoveAccessControlEntryRecord:
    """An access rule is gone."""

    id: bytes = wire(uuid)


@message(api_key=20, versions=(0, 0), flexible=0)
class NoOpRecord:
    """Nothing changed; shows that the quorum still commits."""


@message(api_key=21, versions=(0, 0), flexible=0)
class ZkMigrationStateRecord:
    """How far the move away from ZooKeeper had come; only ever read."""

    zk_migration_state: int = wire(int8)


@message(api_key=22, versions=(0, 0), flexible=0)
class RemoveUserScramCredentialRecord:
    """A user can no longer log in with this SCRAM mechanism."""

    name: str = wire(string)
    mechanism: int = wire(int8)


@message(api_key=23, versions=(0, 0), flexible=0)
class BeginTransactionRecord:
    """The records up to the next EndTransactionRecord count together or not at all."""

    name: str | None = wire(string, nullable=0, tag=0, default=None)


@message(api_key=24, versions=(0, 0), flexible=0)
class EndTransactionRecord:
    """The records since the BeginTransactionRecord count."""


@message(api_key=25, versions=(0, 0), flexible=0)
class AbortTransactionRecord:
    """The records since the BeginTransactionRecord do not count."""

    reason: str | None = wire(string, nullable=0, tag=0, default=None)


@message(api_key=26, versions=(0, 0), flexible=0)
class RemoveDelegationTokenRecord:
    """A delegation token is gone."""

    token_id: str = wire(string)


@struct
class ControllerEndpoint:
    """One listener of a controller."""

    name: str = wire(string)
    host: str = wire(string)
    port: int = wire(uint16)
    security_protocol: int = wire(int16)


@struct
class ControllerFeature:
    """The levels of one feature a controller can run."""

    name: str = wire(string)
    min_supported_version: int = wire(int16)
    max_supported_version: int = wire(int16)


@message(api_key=27, versions=(0, 0), flexible=0)
class RegisterControllerRecord:
    """The listeners and supported features of a controller process."""

    controller_id: int = wire(int32)
    incarnation_id: bytes = wire(uuid)
    zk_migration_ready: bool = wire(boolean)
    end_points: list[ControllerEndpoint] = wire(array(ControllerEndpoint))
    features: list[ControllerFeature] = wire(array(ControllerFeature))


@message(api_key=28, versions=(0, 0), flexible=0)
class ClearElrRecord:
    """The eligible leader replicas of a topic, or with an empty name of all topics, no longer count."""

    topic_name: str = wire(string)


MetadataRecord = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | ConfigRecord
    | PartitionChangeRecord
    | FenceBrokerRecord
    | UnfenceBrokerRecord
    | RemoveTopicRecord
    | DelegationTokenRecord
    | UserScramCredentialRecord
    | FeatureLevelRecord
    | ClientQuotaRecord
    | ProducerIdsRecord
    | BrokerRegistrationChangeRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | NoOpRecord
    | ZkMigrationStateRecord
    | RemoveUserScramCredentialRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
    | RemoveDelegationTokenRecord
    | RegisterControllerRecord
    | ClearElrRecord
)
"""Anything that may stand in the metadata log."""
