"""EndTxn, v0-5: commit or abort the open transaction.

v1 quota applied after the response · v2 PRODUCER_FENCED · v3 flexible · v4 abortable errors · v5 returns the bumped
producer epoch (KIP-890)
"""

from klamm.protocol.schema import boolean, int16, int32, int64, message, string, wire


@message(api_key=26, versions=(0, 5), flexible=3)
class EndTxnRequest:
    """End the transaction of a producer, one way or the other."""

    transactional_id: str = wire(string)
    producer_id: int = wire(int64)
    producer_epoch: int = wire(int16)
    committed: bool = wire(boolean)


@message(api_key=26, versions=(0, 5), flexible=3)
class EndTxnResponse:
    """Whether it is decided, and from v5 the epoch of the next transaction."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    # The id and epoch to continue with: the id changes when its epochs are used up.
    producer_id: int = wire(int64, since=5, default=-1)
    producer_epoch: int = wire(int16, since=5, default=-1)
