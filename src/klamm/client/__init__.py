"""The client: producing to, consuming from and administering any cluster that speaks Kafka's protocol.

`AsyncProducer`, `AsyncConsumer` and `AsyncAdmin` run on the caller's event loop; `Producer`, `Consumer` and `Admin` are
the same for code without one, over a single thread. Nothing here imports a broker.

    config, client_settings          definitions of settings by Kafka's names; the validated settings of one client
    unsupported_settings             settings of Java's clients that this client does not have
    errors, types, arguments         what callers pass in and get back
    connection, cluster              one broker; all brokers, their metadata and retries
    group_member                     a member of a classic group of any protocol type
    core/                            pure parts all clients share: metadata, routing, durations, buffer pool
    producer/, producer/core/        sender, session, tables; pure: accumulator, partitioners, idempotence, transactions
    consumer/, consumer/core/        fetcher, membership, commits; pure: subscription, assignors, sessions, fetch buffer
    admin/                           one class per family of requests, over any transport
    filter/                          expressions over one record, for commands and the console
    columns, bounded_read            Arrow tables out: a topic read to its end (in: producer/tables)
    blocking_producer, _consumer, _admin   the same classes over the thread of `loop_thread`
    blocking_cluster                 the transport of admin families for the command line: sockets without an event loop

Names are imported when they are first used: listing topics should not wait for the rest.
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
