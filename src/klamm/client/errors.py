"""The errors of the client; an error that a broker sent keeps the broker's error code.

KafkaError(KlammError)                  code, message, retriable
├─ RetriableError                       the same call may succeed later; the client has retried until its timeout
│  ├─ KafkaTimeoutError (TimeoutError)  a timeout passed
│  │  └─ BufferFullError                buffer.memory stayed full for max.block.ms
│  ├─ DisconnectedError                 a connection was lost
│  │  └─ BrokersUnreachableError        no broker answers
│  ├─ UnknownTopicOrPartitionError
│  └─ NotLeaderError, CoordinatorError
├─ AuthorizationError                   TopicAuthorizationError, GroupAuthorizationError, ClusterAuthorizationError,
│                                       TransactionalIdAuthorizationError
├─ AuthenticationError
├─ FencedError                          another client with the same id has replaced this one; it can only be closed
│  └─ ProducerFencedError, FencedInstanceIdError, FencedMemberError
├─ TransactionError                     InvalidTransactionStateError, TransactionAbortableError
├─ OutOfOrderSequenceError              the broker misses records of this producer
├─ OffsetOutOfRangeError, NoOffsetError
├─ CommitFailedError                    the group rebalanced and this member lost its partitions
├─ RecordTooLargeError
├─ RecordError                          a record cannot be read; it has its topic_partition, offset and bytes
│  └─ SerializationError, CorruptRecordError
├─ TopicAlreadyExistsError, GroupNotFoundError, GroupNotEmptyError, UnsupportedVersionError, InvalidRequestError
├─ IllegalStateError                    called at the wrong time: closed, not subscribed, no transaction
└─ SomeFailed                           an operation on several items failed for some; `failures` has them
"""

from collections.abc import Hashable, Mapping
from typing import Any, Self

from klamm.model.errors import ConfigError, ErrorCode, KlammError
from klamm.model.ids import TopicPartition

__all__ = [
    "AuthenticationError",
    "AuthorizationError",
    "BrokersUnreachableError",
    "BufferFullError",
    "ClusterAuthorizationError",
    "CommitFailedError",
    "ConfigError",
    "CoordinatorError",
    "CorruptRecordError",
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
    "NoOffsetError",
    "NotLeaderError",
    "OffsetOutOfRangeError",
    "OutOfOrderSequenceError",
    "ProducerFencedError",
    "RecordError",
    "RecordTooLargeError",
    "RetriableError",
    "SerializationError",
    "SomeFailed",
    "TopicAlreadyExistsError",
    "TopicAuthorizationError",
    "TransactionAbortableError",
    "TransactionError",
    "TransactionalIdAuthorizationError",
    "UnknownTopicOrPartitionError",
    "UnsupportedVersionError",
]


class KafkaError(KlammError):
    """An error that a broker sent, or that the client raises in its place."""

    detail: str | None = None
    """The message without the error's name and the item it is about; the broker's own where it sent one."""
    item: Any = None
    """Which item of a request failed, when the request was about items: a topic, a partition, a group."""

    @property
    def retriable(self) -> bool:
        """Whether the same call may succeed later."""
        return isinstance(self, RetriableError) or self.code.retriable


class RetriableError(KafkaError):
    """May succeed later; the client has already retried until its timeout."""


class KafkaTimeoutError(RetriableError, TimeoutError):
    """A timeout passed before a response arrived."""

    def __init__(self, message: str = "", code: ErrorCode = ErrorCode.REQUEST_TIMED_OUT) -> None:
        super().__init__(code, message)


class BufferFullError(KafkaTimeoutError):
    """buffer.memory stayed full for max.block.ms."""


class DisconnectedError(RetriableError):
    """The connection to a broker was lost while a request was in flight."""

    def __init__(self, message: str = "") -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message)


class BrokersUnreachableError(DisconnectedError):
    """None of the known addresses answers."""

    hopeless = False
    """Whether every address answered, but not with Kafka's protocol or without valid TLS: waiting cannot help."""


class UnknownTopicOrPartitionError(RetriableError):
    """The topic or partition does not exist, or is not in the broker's metadata yet."""


class NotLeaderError(RetriableError):
    """The broker does not lead the partition, or not in that epoch."""


class CoordinatorError(RetriableError):
    """The coordinator of the group or transaction moved or is loading."""


class AuthorizationError(KafkaError):
    """The principal is not authorized."""


class TopicAuthorizationError(AuthorizationError):
    """Not allowed on the topic."""


class GroupAuthorizationError(AuthorizationError):
    """Not allowed on the group."""


class ClusterAuthorizationError(AuthorizationError):
    """Not allowed on the cluster."""


class TransactionalIdAuthorizationError(AuthorizationError):
    """Not allowed to use the transactional id."""


class AuthenticationError(KafkaError):
    """Authentication failed."""


class FencedError(KafkaError):
    """Another client with the same id has replaced this one; close it."""


class ProducerFencedError(FencedError):
    """A newer producer with the same transactional id exists."""


class FencedInstanceIdError(FencedError):
    """Another member with the same group.instance.id has joined."""


class FencedMemberError(FencedError):
    """The coordinator has removed this member from the group."""


class TransactionError(KafkaError):
    """The transaction cannot continue."""


class InvalidTransactionStateError(TransactionError):
    """The call is not allowed in this state of the transaction."""


class TransactionAbortableError(TransactionError):
    """This transaction can only be aborted; the producer may begin the next one."""


class OutOfOrderSequenceError(KafkaError):
    """The broker misses records of this producer between two that it got."""


class OffsetOutOfRangeError(KafkaError):
    """The offset is not in the log, and auto.offset.reset is none."""


class NoOffsetError(KafkaError):
    """The partition has no committed offset, and auto.offset.reset is none."""


class CommitFailedError(KafkaError):
    """The group has rebalanced: other members own the partitions, and the offsets were not committed."""


class RecordTooLargeError(KafkaError):
    """The record is larger than max.request.size, buffer.memory or the broker allow."""


class RecordError(KafkaError):
    """A record that cannot be read, or written.

    A consumer's error has the record's partition and offset: `consumer.seek(error.topic_partition, error.next_offset)`
    continues behind it, as on.error=skip does. A producer's error has None for all of them.
    """

    topic_partition: TopicPartition | None = None
    offset: int | None = None
    """The offset of the record, or the first one of a batch that cannot be read."""
    next_offset: int | None = None
    """The offset at which reading can continue."""
    key: bytes | None = None
    value: bytes | None = None
    """Key and value as bytes, where the record could be decoded."""
    data: bytes | None = None
    """The bytes of a batch that cannot be read."""

    def locate(self, where: TopicPartition, offset: int, next_offset: int) -> Self:
        """Set the partition and the offsets."""
        self.topic_partition, self.offset, self.next_offset = where, offset, next_offset
        return self


class SerializationError(RecordError):
    """A serializer or deserializer failed; `__cause__` is its exception."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)


class CorruptRecordError(RecordError):
    """A broker sent bytes that cannot be decoded as records."""


class TopicAlreadyExistsError(KafkaError):
    """A topic of that name exists."""


class GroupNotFoundError(KafkaError):
    """The group does not exist."""


class GroupNotEmptyError(KafkaError):
    """The group has members."""


class UnsupportedVersionError(KafkaError):
    """The broker does not support the API or version that is needed."""


class InvalidRequestError(KafkaError):
    """The request is not valid."""


class IllegalStateError(KafkaError):
    """The call is not allowed in this state of the client."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, message)


class SomeFailed(KafkaError):
    """An operation on several items failed for some of them.

    `failures` has the error of every item that failed, `results` the rest; code and message are the first failure's.
    """

    def __init__(self, failures: Mapping[Any, KafkaError], results: Mapping[Any, Any]) -> None:
        first, error = next(iter(failures.items()))
        super().__init__(error.code, f"{len(failures)} failed, first {first}: {error}")
        self.failures = dict(failures)
        self.results = dict(results)


_KINDS: dict[ErrorCode, type[KafkaError]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopicOrPartitionError,
    ErrorCode.UNKNOWN_TOPIC_ID: UnknownTopicOrPartitionError,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: NotLeaderError,
    ErrorCode.LEADER_NOT_AVAILABLE: NotLeaderError,
    ErrorCode.FENCED_LEADER_EPOCH: NotLeaderError,
    ErrorCode.UNKNOWN_LEADER_EPOCH: NotLeaderError,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: CoordinatorError,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: CoordinatorError,
    ErrorCode.NOT_COORDINATOR: CoordinatorError,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: TopicAuthorizationError,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: GroupAuthorizationError,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ClusterAuthorizationError,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: TransactionalIdAuthorizationError,
    ErrorCode.SASL_AUTHENTICATION_FAILED: AuthenticationError,
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: AuthenticationError,
    ErrorCode.ILLEGAL_SASL_STATE: AuthenticationError,
    ErrorCode.PRODUCER_FENCED: ProducerFencedError,
    # Brokers before 2.7 answer it for a fenced producer (KIP-588).
    ErrorCode.INVALID_PRODUCER_EPOCH: ProducerFencedError,
    ErrorCode.FENCED_INSTANCE_ID: FencedInstanceIdError,
    ErrorCode.FENCED_MEMBER_EPOCH: FencedMemberError,
    ErrorCode.INVALID_TXN_STATE: InvalidTransactionStateError,
    ErrorCode.TRANSACTION_ABORTABLE: TransactionAbortableError,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: TransactionError,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: TransactionError,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: OutOfOrderSequenceError,
    ErrorCode.UNKNOWN_PRODUCER_ID: OutOfOrderSequenceError,
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRangeError,
    # Callers meet these four with commits only: memberships handle them by rejoining.
    ErrorCode.ILLEGAL_GENERATION: CommitFailedError,
    ErrorCode.UNKNOWN_MEMBER_ID: CommitFailedError,
    ErrorCode.STALE_MEMBER_EPOCH: CommitFailedError,
    ErrorCode.REBALANCE_IN_PROGRESS: CommitFailedError,
    ErrorCode.MESSAGE_TOO_LARGE: RecordTooLargeError,
    ErrorCode.RECORD_LIST_TOO_LARGE: RecordTooLargeError,
    ErrorCode.CORRUPT_MESSAGE: CorruptRecordError,
    ErrorCode.TOPIC_ALREADY_EXISTS: TopicAlreadyExistsError,
    ErrorCode.GROUP_ID_NOT_FOUND: GroupNotFoundError,
    ErrorCode.NON_EMPTY_GROUP: GroupNotEmptyError,
    ErrorCode.UNSUPPORTED_VERSION: UnsupportedVersionError,
    ErrorCode.INVALID_REQUEST: InvalidRequestError,
    ErrorCode.INVALID_CONFIG: InvalidRequestError,
}


def code_of(number: int) -> ErrorCode:
    """The code a broker sent; UNKNOWN_SERVER_ERROR for a number of a later Kafka version."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def error_for(number: int, message: str | None = None) -> KafkaError:
    """The exception for an error code of a broker."""
    code = code_of(number)
    text = f"{code.name}: {message or code.text}"
    error: KafkaError
    # These two have constructors of their own, since the client raises them without a response too.
    if code is ErrorCode.REQUEST_TIMED_OUT:
        error = KafkaTimeoutError(text)
    elif code is ErrorCode.NETWORK_EXCEPTION:
        error = DisconnectedError(text)
    else:
        error = _KINDS.get(code, RetriableError if code.retriable else KafkaError)(code, text)
    error.detail = message or code.text
    return error


def raise_for(number: int, message: str | None = None) -> None:
    """Raise unless the code is NONE."""
    if number:
        raise error_for(number, message)


def raise_failures(failures: Mapping[Hashable, KafkaError], results: Mapping[Any, Any]) -> None:
    """Raise if any item failed: its error when it was the only item, SomeFailed otherwise."""
    if not failures:
        return
    if len(failures) == 1 and not results:
        raise next(iter(failures.values()))
    raise SomeFailed(failures, results)
