"""AddOffsetsToTxn, v0-4: make a group's offsets part of a transaction.

v1 quota applied after the response · v2 PRODUCER_FENCED · v3 flexible · v4 abortable errors (KIP-890)
"""

from klamm.protocol.schema import int16, int32, int64, message, string, wire


@message(api_key=25, versions=(0, 4), flexible=3)
class AddOffsetsToTxnRequest:
    """Announce that the transaction will commit offsets of a group."""

    transactional_id: str = wire(string)
    producer_id: int = wire(int64)
    producer_epoch: int = wire(int16)
    group_id: str = wire(string)


@message(api_key=25, versions=(0, 4), flexible=3)
class AddOffsetsToTxnResponse:
    """Whether the group's partition of the offsets topic was added."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
