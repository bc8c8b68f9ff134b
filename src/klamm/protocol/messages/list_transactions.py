"""ListTransactions, v0-2: the transactions of a coordinator.

v1 filter by duration · v2 filter by a pattern of ids
"""

from klamm.protocol.schema import array, int16, int32, int64, message, string, struct, wire


@message(api_key=66, versions=(0, 2), flexible=0)
class ListTransactionsRequest:
    """Request the transactions that pass the filters."""

    state_filters: list[str] = wire(array(string))
    producer_id_filters: list[int] = wire(array(int64))
    duration_filter: int = wire(int64, since=1, default=-1)
    transactional_id_pattern: str | None = wire(string, since=2, nullable=0, default=None)


@struct
class TransactionState:
    """One transaction in brief."""

    transactional_id: str = wire(string)
    producer_id: int = wire(int64)
    transaction_state: str = wire(string)


@message(api_key=66, versions=(0, 2), flexible=0)
class ListTransactionsResponse:
    """The transactions, by id."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    unknown_state_filters: list[str] = wire(array(string))
    transaction_states: list[TransactionState] = wire(array(TransactionState))
