"""InitProducerId, v0-5: get a producer id, and fence older producers of a transactional id.

v2 flexible · v3 a producer may bump its own epoch · v4 PRODUCER_FENCED · v5 abortable errors (KIP-890) · v6
two-phase commit, unstable in 4.3 and not served
"""

from klamm.protocol.schema import boolean, int16, int32, int64, message, string, wire


@message(api_key=22, versions=(0, 6), flexible=2)
class InitProducerIdRequest:
    """Request a producer id; with a transactional id also end what its last owner left open."""

    transactional_id: str | None = wire(string, nullable=0)
    transaction_timeout_ms: int = wire(int32)
    # The present identity, of a producer that bumps its epoch after an error (KIP-360).
    producer_id: int = wire(int64, since=3, default=-1)
    producer_epoch: int = wire(int16, since=3, default=-1)
    enable_2pc: bool = wire(boolean, since=6)
    keep_prepared_txn: bool = wire(boolean, since=6)


@message(api_key=22, versions=(0, 6), flexible=2)
class InitProducerIdResponse:
    """The producer id and epoch to write with."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    producer_id: int = wire(int64, default=-1)
    producer_epoch: int = wire(int16)
    ongoing_txn_producer_id: int = wire(int64, since=6, default=-1)
    ongoing_txn_producer_epoch: int = wire(int16, since=6, default=-1)
