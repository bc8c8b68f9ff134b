"""The records of `__transaction_state`: how far every transaction has come.

On disk a key starts with its record type as int16 and a value with its version as int16.
"""

from klamm.protocol.schema import array, int8, int16, int32, int64, message, string, struct, wire


@message(api_key=0, versions=(0, 0))
class TransactionLogKey:
    """Which transactional id."""

    transactional_id: str = wire(string)


@struct
class PartitionsSchema:
    """Partitions of one topic that the transaction wrote to."""

    topic: str = wire(string)
    partition_ids: list[int] = wire(array(int32))


@message(api_key=0, versions=(0, 1), flexible=1)
class TransactionLogValue:
    """The state of a transactional id. v1 the producer ids before and after an epoch bump (KIP-890)."""

    producer_id: int = wire(int64)
    previous_producer_id: int = wire(int64, since=1, tag=0, default=-1)
    next_producer_id: int = wire(int64, since=1, tag=1, default=-1)
    producer_epoch: int = wire(int16)
    # Belongs to two-phase commit (KIP-939); not used here.
    next_producer_epoch: int = wire(int16, since=1, tag=3, default=-1)
    transaction_timeout_ms: int = wire(int32)
    transaction_status: int = wire(int8)
    # Null in the state Empty.
    transaction_partitions: list[PartitionsSchema] | None = wire(array(PartitionsSchema), nullable=0)
    transaction_last_update_timestamp_ms: int = wire(int64)
    transaction_start_timestamp_ms: int = wire(int64)
    # From 2 on the end of the transaction has bumped the epoch (KIP-890).
    client_transaction_version: int = wire(int16, since=1, tag=2)
