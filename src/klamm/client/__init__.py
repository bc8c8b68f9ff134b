"""Speaking to a cluster as its client: producing, consuming and administering any cluster that speaks Kafka's protocol.

`AsyncProducer`, `AsyncConsumer` and `AsyncAdmin` live on the caller's event loop; `Producer`, `Consumer` and `Admin`
are the same for code without one, over a single thread. Nothing here knows how a broker works inside.

    config, kafka_settings, durations                       settings by Kafka's names; those of Java's that are not ours
    errors, types                                           what crosses the border
    frames, connection, metadata, cluster                   bytes, one broker, what is known, all brokers
    producer/     partitioners, accumulator, idempotence, transactions: pure; sender, tables, producer: the shell
    consumer/     assignors, subscription, sessions, shelf: pure; fetcher, groups, consumer: the shell
    admin/        one file per family of questions
    columns       Arrow tables out (in: producer/tables)     bounded, moments   a topic read to its end
    spares        buffers used again
    blocking_*    the blocking face                         wire, groups       the small one the command line began with

Names are imported when they are first used: asking for a topic list should not wait for the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.client.admin.async_admin import AsyncAdmin
    from klamm.client.blocking_admin import Admin
    from klamm.client.blocking_consumer import Consumer
    from klamm.client.blocking_producer import Producer
    from klamm.client.columns import read_topic
    from klamm.client.consumer import AsyncConsumer
    from klamm.client.errors import (
        AuthenticationError,
        AuthorizationError,
        BrokersUnreachableError,
        BufferFullError,
        ClusterAuthorizationError,
        CommitFailedError,
        ConfigError,
        CoordinatorError,
        CorruptRecordError,
        DisconnectedError,
        ErrorCode,
        FencedError,
        FencedInstanceIdError,
        FencedMemberError,
        GroupAuthorizationError,
        GroupNotEmptyError,
        GroupNotFoundError,
        IllegalStateError,
        InvalidRequestError,
        InvalidTransactionStateError,
        KafkaError,
        KafkaTimeoutError,
        KlammError,
        NoOffsetError,
        NotLeaderError,
        OffsetOutOfRangeError,
        OutOfOrderSequenceError,
        ProducerFencedError,
        RecordError,
        RecordTooLargeError,
        RetriableError,
        SerializationError,
        SomeFailed,
        TopicAlreadyExistsError,
        TopicAuthorizationError,
        TransactionAbortableError,
        TransactionalIdAuthorizationError,
        TransactionError,
        UnknownTopicOrPartitionError,
        UnsupportedVersionError,
    )
    from klamm.client.producer import AsyncProducer, Delivery
    from klamm.client.types import (
        NewPartitions,
        NewTopic,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        Record,
        RecordMetadata,
        TopicPartition,
    )

_HOMES = {
    "Admin": "blocking_admin",
    "AsyncAdmin": "admin.async_admin",
    "AsyncConsumer": "consumer",
    "AsyncProducer": "producer",
    "Consumer": "blocking_consumer",
    "Delivery": "producer",
    "NewPartitions": "types",
    "NewTopic": "types",
    "OffsetAndMetadata": "types",
    "OffsetAndTimestamp": "types",
    "Producer": "blocking_producer",
    "Record": "types",
    "RecordMetadata": "types",
    "TopicPartition": "types",
    "read_topic": "columns",
}
"""Where names are that are not errors."""

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "AuthenticationError",
    "AuthorizationError",
    "BrokersUnreachableError",
    "BufferFullError",
    "ClusterAuthorizationError",
    "CommitFailedError",
    "ConfigError",
    "Consumer",
    "CoordinatorError",
    "CorruptRecordError",
    "Delivery",
    "DisconnectedError",
    "ErrorCode",
    "FencedError",
    "FencedInstanceIdError",
    "FencedMemberError",
    "GroupAuthorizationError",
    "GroupNotEmptyError",
    "GroupNotFoundError",
    "IllegalStateError",
    "InvalidRequestError",
    "InvalidTransactionStateError",
    "KafkaError",
    "KafkaTimeoutError",
    "KlammError",
    "NewPartitions",
    "NewTopic",
    "NoOffsetError",
    "NotLeaderError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetOutOfRangeError",
    "OutOfOrderSequenceError",
    "Producer",
    "ProducerFencedError",
    "Record",
    "RecordError",
    "RecordMetadata",
    "RecordTooLargeError",
    "RetriableError",
    "SerializationError",
    "SomeFailed",
    "TopicAlreadyExistsError",
    "TopicAuthorizationError",
    "TopicPartition",
    "TransactionAbortableError",
    "TransactionError",
    "TransactionalIdAuthorizationError",
    "UnknownTopicOrPartitionError",
    "UnsupportedVersionError",
    "read_topic",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
