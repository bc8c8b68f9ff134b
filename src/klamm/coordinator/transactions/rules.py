"""The rules of transactions as functions of values: what a request makes of a transactional id, or why it is refused.

Each returns the metadata that should follow, or None when nothing has to change; a refusal is a KlammError with the
code Kafka answers with.
"""

from collections.abc import Callable
from typing import NamedTuple, NoReturn

from klamm.coordinator.transactions.state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    EPOCH_BUMP_VERSION,
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ONGOING,
    PREPARE_COMMIT,
    PREPARED,
    TransactionMetadata,
    epoch_exhausted,
)
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import TopicPartition


class ProducerIdAndEpoch(NamedTuple):
    """The id and epoch of a producer."""

    id: int
    epoch: int


TakeProducerId = Callable[[], int]
"""Returns an unused producer id; raises KlammError when none is allocated to this broker."""


def refuse(code: ErrorCode, message: str) -> NoReturn:
    """Raise a KlammError."""
    raise KlammError(code, message)


def require_known(metadata: TransactionMetadata | None, transactional_id: str) -> TransactionMetadata:
    """Return the metadata of a transactional id; KlammError when it is unknown."""
    if metadata is None:
        refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"the transactional id {transactional_id} is not initialized")
    return metadata


def check_owner(metadata: TransactionMetadata, producer: ProducerIdAndEpoch) -> None:
    """Require the current producer of a transactional id."""
    # First: the next producer id is not foreign but early, so its client must get an error that it retries.
    check_not_next(metadata, producer)
    if metadata.producer_id != producer.id:
        refuse(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"{metadata.transactional_id} belongs to producer {metadata.producer_id}, not {producer.id}",
        )
    if metadata.producer_epoch != producer.epoch:
        refuse(
            ErrorCode.PRODUCER_FENCED,
            f"epoch {producer.epoch} of {metadata.transactional_id} is not the current {metadata.producer_epoch}",
        )


def check_not_ending(metadata: TransactionMetadata) -> None:
    """Refuse while markers of the last transaction are being written."""
    if metadata.state in PREPARED:
        refuse(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"the last transaction of {metadata.transactional_id} is still being completed",
        )


def check_not_next(metadata: TransactionMetadata, producer: ProducerIdAndEpoch) -> None:
    """Refuse the next producer id, given out when epochs ran out, until the last transaction is complete."""
    if metadata.next_producer_id != NO_PRODUCER_ID and producer.id == metadata.next_producer_id:
        check_not_ending(metadata)


def initialize(
    metadata: TransactionMetadata | None,
    transactional_id: str,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None,
    *,
    transaction_version: int,
    take_producer_id: TakeProducerId,
    now_ms: int,
) -> TransactionMetadata:
    """InitProducerId: the epoch under which a producer begins. An open transaction is aborted first: PrepareAbort."""
    if metadata is None:
        metadata = TransactionMetadata(transactional_id, take_producer_id())
    if expected is not None:
        check_not_next(metadata, expected)
    if expected is not None and not _may_continue(metadata, expected):
        refuse(ErrorCode.PRODUCER_FENCED, f"producer {expected.id} of {transactional_id} was replaced")
    check_not_ending(metadata)
    # The old producer's transaction is aborted first; the client retries on CONCURRENT_TRANSACTIONS.
    if metadata.state is ONGOING:
        return fence(metadata, transaction_version, take_producer_id, now_ms)
    if metadata.epoch_exhausted and (expected is None or expected.epoch == metadata.producer_epoch):
        return metadata.rotate_producer_id(take_producer_id(), timeout_ms, now_ms, keep_last=expected is not None)
    following = None
    if not metadata.epoch_exhausted:
        following = metadata.increment_epoch(
            timeout_ms, now_ms, expected_epoch=None if expected is None else expected.epoch
        )
    if following is None:
        refuse(
            ErrorCode.PRODUCER_FENCED,
            f"epoch {expected and expected.epoch} of {transactional_id} is not the current {metadata.producer_epoch}",
        )
    return following


def _may_continue(metadata: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Whether a producer that names its identity (KIP-360) is, or just was, the owner."""
    if metadata.producer_epoch == NO_PRODUCER_EPOCH or expected.id == metadata.producer_id:
        return True
    # A retry after its epochs ran out: the response with the new id was lost.
    return expected.id == metadata.previous_producer_id and epoch_exhausted(expected.epoch)


def fence(
    metadata: TransactionMetadata, transaction_version: int, take_producer_id: TakeProducerId, now_ms: int
) -> TransactionMetadata:
    """Abort an open transaction whose producer was replaced or exceeded its timeout."""
    following = NO_PRODUCER_ID
    if transaction_version >= EPOCH_BUMP_VERSION and metadata.epoch_exhausted:
        following = take_producer_id()
    return metadata.fence_epoch(transaction_version).prepare_end(
        committed=False,
        now_ms=now_ms,
        client_version=transaction_version if transaction_version >= EPOCH_BUMP_VERSION else 0,
        next_producer_id=following,
    )


def add_partitions(
    metadata: TransactionMetadata | None,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partitions: frozenset[TopicPartition],
    *,
    client_version: int,
    now_ms: int,
) -> TransactionMetadata | None:
    """AddPartitionsToTxn: partitions join the transaction, or already have (None)."""
    metadata = require_known(metadata, transactional_id)
    check_owner(metadata, producer)
    check_not_ending(metadata)
    # Nothing to write: retries and repeated adds are the usual case.
    if metadata.state is ONGOING and partitions <= metadata.partitions:
        return None
    return metadata.with_partitions(partitions, now_ms, client_version)


def verify_partitions(
    metadata: TransactionMetadata | None,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partitions: frozenset[TopicPartition],
) -> dict[TopicPartition, ErrorCode]:
    """Return whether each partition is part of the open transaction; TRANSACTION_ABORTABLE when not."""
    metadata = require_known(metadata, transactional_id)
    check_owner(metadata, producer)
    check_not_ending(metadata)
    # KIP-890: the client must abort a transaction of which a partition is missing; it is not fatal to the producer.
    return {
        partition: ErrorCode.NONE if partition in metadata.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for partition in partitions
    }


def end(
    metadata: TransactionMetadata | None,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    *,
    committed: bool,
    client_version: int,
    take_producer_id: TakeProducerId,
    now_ms: int,
) -> TransactionMetadata | None:
    """EndTxn: return the state that ends the transaction, or None for a retry of an end already decided."""
    metadata = require_known(metadata, transactional_id)
    if client_version >= EPOCH_BUMP_VERSION:
        return _end_with_bump(metadata, producer, committed, client_version, take_producer_id, now_ms)
    check_owner(metadata, producer)
    if metadata.state is ONGOING:
        return metadata.prepare_end(committed=committed, now_ms=now_ms, client_version=0)
    _check_same_end(metadata, committed)
    return None


def _end_with_bump(
    metadata: TransactionMetadata,
    producer: ProducerIdAndEpoch,
    committed: bool,
    client_version: int,
    take_producer_id: TakeProducerId,
    now_ms: int,
) -> TransactionMetadata | None:
    """End a version 2 transaction. The epoch distinguishes a retry from the end of the next transaction.

    While markers are written every end is refused as concurrent, whatever its epoch: a producer that aborts an empty
    transaction before the previous one is complete must not be fenced. Kafka checks in the same order.
    """
    check_not_ending(metadata)
    # The epoch was exhausted and the producer id rotated: the retry still carries the old id and its last epoch.
    wrapped = (
        metadata.previous_producer_id == producer.id
        and producer.epoch == EPOCH_MAX - 1
        and metadata.producer_epoch == 0
    )
    retry = wrapped or (metadata.producer_id == producer.id and metadata.producer_epoch == producer.epoch + 1)
    if metadata.producer_id != producer.id and not wrapped:
        refuse(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"{metadata.transactional_id} belongs to producer {metadata.producer_id}, not {producer.id}",
        )
    # KIP-890: the end itself bumps the epoch, so a retry carries the epoch before the current one.
    current = not wrapped and producer.epoch == metadata.producer_epoch
    complete = metadata.state in (COMPLETE_COMMIT, COMPLETE_ABORT)
    if not current and not (complete and retry):
        refuse(
            ErrorCode.PRODUCER_FENCED,
            f"epoch {producer.epoch} of {metadata.transactional_id} is not the current {metadata.producer_epoch}",
        )
    if metadata.state is not ONGOING:
        if retry:
            _check_same_end(metadata, committed)
            return None
        if committed:
            _refuse_end(metadata, committed)
    # The id must be at hand before the decision: waiting in the middle of it would let another request in between.
    following = take_producer_id() if metadata.epoch_exhausted else NO_PRODUCER_ID
    return metadata.prepare_end(
        committed=committed, now_ms=now_ms, client_version=client_version, next_producer_id=following
    )


def _check_same_end(metadata: TransactionMetadata, committed: bool) -> None:
    """Accept a retry with the same result; refuse the opposite one."""
    ended_so = metadata.state in (PREPARE_COMMIT, COMPLETE_COMMIT)
    if metadata.state is EMPTY or ended_so != committed:
        _refuse_end(metadata, committed)
    check_not_ending(metadata)


def _refuse_end(metadata: TransactionMetadata, committed: bool) -> NoReturn:
    wish = "commit" if committed else "abort"
    refuse(ErrorCode.INVALID_TXN_STATE, f"cannot {wish} {metadata.transactional_id}: it is {metadata.state.text}")
