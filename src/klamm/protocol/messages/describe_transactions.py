"""DescribeTransactions, v0: show transactions by their ids.

v0 flexible from the start
"""

from klamm.protocol.schema import array, int16, int32, int64, message, string, struct, wire


@message(api_key=65, versions=(0, 0), flexible=0)
class DescribeTransactionsRequest:
    """Name the transactional ids."""

    transactional_ids: list[str] = wire(array(string))


@struct
class TopicData:
    """The partitions of one topic."""

    topic: str = wire(string)
    partitions: list[int] = wire(array(int32))


@struct
class TransactionState:
    """One transaction."""

    error_code: int = wire(int16)
    transactional_id: str = wire(string)
    transaction_state: str = wire(string)
    transaction_timeout_ms: int = wire(int32)
    transaction_start_time_ms: int = wire(int64)
    producer_id: int = wire(int64)
    producer_epoch: int = wire(int16)
    topics: list[TopicData] = wire(array(TopicData))


@message(api_key=65, versions=(0, 0), flexible=0)
class DescribeTransactionsResponse:
    """The state of each transaction."""

    throttle_time_ms: int = wire(int32)
    transaction_states: list[TransactionState] = wire(array(TransactionState))
