"""Transactions as records of `__transaction_state`, in Kafka's formats: one key per transactional id."""

from collections.abc import Iterable

from klamm.coordinator.core.shard import CoordinatorRecord, decode_key, decode_value, make_record, record_type
from klamm.coordinator.transactions.state import EMPTY, TransactionMetadata, TransactionState
from klamm.model.errors import RemoteProtocolError
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.transaction_records import PartitionsSchema, TransactionLogKey, TransactionLogValue

VALUE_VERSIONS = {0: 0, 1: 1, 2: 1}
"""Which version of the value a level of `transaction.version` writes."""

_STATES = frozenset(map(int, TransactionState))


def metadata_record(metadata: TransactionMetadata, transaction_version: int) -> CoordinatorRecord:
    """Return the record with the state of a transactional id."""
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=int(metadata.state),
        # Kafka writes null for Empty and an array in every other state.
        transaction_partitions=None if metadata.state is EMPTY else _by_topic(metadata.partitions),
        transaction_last_update_timestamp_ms=metadata.last_update_timestamp_ms,
        transaction_start_timestamp_ms=metadata.start_timestamp_ms,
        client_transaction_version=metadata.client_version,
    )
    key = TransactionLogKey(transactional_id=metadata.transactional_id)
    return make_record(key, value, VALUE_VERSIONS.get(transaction_version, 1))


def tombstone(transactional_id: str) -> CoordinatorRecord:
    """Return the record that removes a transactional id."""
    return make_record(TransactionLogKey(transactional_id=transactional_id), None)


def read_record(record: CoordinatorRecord) -> tuple[str, TransactionMetadata | None] | None:
    """Return the transactional id and its metadata, None for a tombstone; None for an unknown record type."""
    if record_type(record.key) != 0:
        return None
    transactional_id = decode_key(TransactionLogKey, record.key).transactional_id
    if record.value is None:
        return transactional_id, None
    value = decode_value(TransactionLogValue, record.value)
    if value.transaction_status not in _STATES:
        raise RemoteProtocolError(f"{transactional_id}: there is no transaction state {value.transaction_status}")
    return transactional_id, TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=TransactionState(value.transaction_status),
        partitions=frozenset(
            TopicPartition(topic.topic, index)
            for topic in value.transaction_partitions or ()
            for index in topic.partition_ids
        ),
        start_timestamp_ms=value.transaction_start_timestamp_ms,
        last_update_timestamp_ms=value.transaction_last_update_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_version=value.client_transaction_version,
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> list[PartitionsSchema]:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return [PartitionsSchema(topic=topic, partition_ids=indexes) for topic, indexes in topics.items()]
