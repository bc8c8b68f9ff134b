"""Every way the client says no; what a broker refused keeps the broker's error code.

KafkaError(KlammError)                  code, message, retriable
├─ RetriableError                       the same may succeed later; the client has tried as long as it was allowed to
│  ├─ KafkaTimeoutError (TimeoutError)  the time ran out
│  │  └─ BufferFullError                buffer.memory stayed full for max.block.ms
│  ├─ DisconnectedError                 a connection broke
│  │  └─ BrokersUnreachableError        no broker answers
│  ├─ UnknownTopicOrPartitionError
│  └─ NotLeaderError, CoordinatorError
├─ AuthorizationError                   TopicAuthorizationError, GroupAuthorizationError, ClusterAuthorizationError,
│                                       TransactionalIdAuthorizationError
├─ AuthenticationError
├─ FencedError                          another took this one's place; it can only be closed
│  └─ ProducerFencedError, FencedInstanceIdError, FencedMemberError
├─ TransactionError                     InvalidTransactionStateError, TransactionAbortableError
├─ OutOfOrderSequenceError              records may have been lost between two that were stored
├─ OffsetOutOfRangeError, NoOffsetError
├─ CommitFailedError                    the group went on without this member
├─ RecordTooLargeError
├─ RecordError                          a record cannot be read; it has its topic_partition, offset and bytes
│  └─ SerializationError, CorruptRecordError
├─ TopicAlreadyExistsError, GroupNotFoundError, GroupNotEmptyError, UnsupportedVersionError, InvalidRequestError
├─ IllegalStateError                    asked at the wrong time: closed, not subscribed, no transaction
└─ SomeFailed                           an operation on several things failed for some; `failures` says which
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
    """A refusal, by the broker or on its behalf."""

    detail: str | None = None
    """The sentence without the error's name and the item it is about; the broker's own where it sent one."""
    item: Any = None
    """Which item of a request failed, when the request was about items: a topic, a partition, a group."""

    @property
    def retriable(self) -> bool:
        """Whether the same may succeed later."""
        return isinstance(self, RetriableError) or self.code.retriable


class RetriableError(KafkaError):
    """May succeed later; the client has already tried as long as its settings allow."""


class KafkaTimeoutError(RetriableError, TimeoutError):
    """The time ran out before an answer came."""

    def __init__(self, message: str = "", code: ErrorCode = ErrorCode.REQUEST_TIMED_OUT) -> None:
        super().__init__(code, message)


class BufferFullError(KafkaTimeoutError):
    """buffer.memory was full and stayed full."""


class DisconnectedError(RetriableError):
    """The connection to a broker broke while a request was under way."""

    def __init__(self, message: str = "") -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message)


class BrokersUnreachableError(DisconnectedError):
    """None of the known addresses answers."""

    hopeless = False
    """Whether something answered at every address, but no broker, or not one that is believed."""


class UnknownTopicOrPartitionError(RetriableError):
    """The broker knows no such topic or partition (yet)."""


class NotLeaderError(RetriableError):
    """The broker does not lead the partition, or not in that epoch."""


class CoordinatorError(RetriableError):
    """The group's or transaction's coordinator is elsewhere or not ready."""


class AuthorizationError(KafkaError):
    """The principal may not do this."""


class TopicAuthorizationError(AuthorizationError):
    """Not allowed on the topic."""


class GroupAuthorizationError(AuthorizationError):
    """Not allowed on the group."""


class ClusterAuthorizationError(AuthorizationError):
    """Not allowed on the cluster."""


class TransactionalIdAuthorizationError(AuthorizationError):
    """Not allowed to use the transactional id."""


class AuthenticationError(KafkaError):
    """The broker does not believe who this is."""


class FencedError(KafkaError):
    """Another took this one's place; close it."""


class ProducerFencedError(FencedError):
    """A newer producer with the same transactional id is at work."""


class FencedInstanceIdError(FencedError):
    """Another member with the same group.instance.id has joined."""


class FencedMemberError(FencedError):
    """The group has given this member up."""


class TransactionError(KafkaError):
    """A transaction cannot go on this way."""


class InvalidTransactionStateError(TransactionError):
    """Asked at the wrong point of a transaction."""


class TransactionAbortableError(TransactionError):
    """This transaction can only be aborted; the producer may begin the next one."""


class OutOfOrderSequenceError(KafkaError):
    """The broker missed records of this producer."""


class OffsetOutOfRangeError(KafkaError):
    """The offset is not in the log, and auto.offset.reset says not to guess."""


class NoOffsetError(KafkaError):
    """Nothing is committed for the partition, and auto.offset.reset says not to guess."""


class CommitFailedError(KafkaError):
    """The group has rebalanced: the partitions belong to others, the offsets were not stored."""


class RecordTooLargeError(KafkaError):
    """The record is larger than max.request.size, buffer.memory or the broker allow."""


class RecordError(KafkaError):
    """A record that cannot be read, or written.

    What a consumer raises says which one: `consumer.seek(error.topic_partition, error.next_offset)` goes on behind it,
    and on.error=skip does so by itself. All of it is None where no record was read, as in a producer.
    """

    topic_partition: TopicPartition | None = None
    offset: int | None = None
    """The offset of the record, or the first one of a batch that cannot be read."""
    next_offset: int | None = None
    """Where reading can go on."""
    key: bytes | None = None
    value: bytes | None = None
    """Key and value as they came, where they could be told apart."""
    data: bytes | None = None
    """The bytes of a batch that cannot be read."""

    def locate(self, where: TopicPartition, offset: int, next_offset: int) -> Self:
        """Say which record it is."""
        self.topic_partition, self.offset, self.next_offset = where, offset, next_offset
        return self


class SerializationError(RecordError):
    """A serializer or deserializer failed; `__cause__` is what it raised."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)


class CorruptRecordError(RecordError):
    """A broker sent bytes that are no records."""


class TopicAlreadyExistsError(KafkaError):
    """There is a topic of that name."""


class GroupNotFoundError(KafkaError):
    """There is no such group."""


class GroupNotEmptyError(KafkaError):
    """The group has members."""


class UnsupportedVersionError(KafkaError):
    """The broker does not speak what is needed."""


class InvalidRequestError(KafkaError):
    """The request cannot be honoured as it is."""


class IllegalStateError(KafkaError):
    """Asked at the wrong time."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, message)


class SomeFailed(KafkaError):
    """An operation on several things failed for some of them.

    `failures` has an error for each that failed, `results` the rest; code and message are the first failure's.
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
    """The code a broker sent; one unknown to this client is UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def error_for(number: int, message: str | None = None) -> KafkaError:
    """The exception for an error code of a broker."""
    code = code_of(number)
    words = f"{code.name}: {message or code.text}"
    error: KafkaError
    if code is ErrorCode.REQUEST_TIMED_OUT:
        error = KafkaTimeoutError(words)
    elif code is ErrorCode.NETWORK_EXCEPTION:
        error = DisconnectedError(words)
    else:
        error = _KINDS.get(code, RetriableError if code.retriable else KafkaError)(code, words)
    error.detail = message or code.text
    return error


def raise_for(number: int, message: str | None = None) -> None:
    """Raise unless the code is NONE."""
    if number:
        raise error_for(number, message)


def settle(failures: Mapping[Hashable, KafkaError], results: Mapping[Any, Any]) -> None:
    """Raise when anything failed: the error itself when one thing was asked for, SomeFailed otherwise."""
    if not failures:
        return
    if len(failures) == 1 and not results:
        raise next(iter(failures.values()))
    raise SomeFailed(failures, results)
