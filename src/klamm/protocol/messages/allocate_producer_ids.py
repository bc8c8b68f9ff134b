"""AllocateProducerIds, v0: a broker gets a block of producer ids to hand out.

v0 flexible from the start
"""

from klamm.protocol.schema import int16, int32, int64, message, wire


@message(api_key=67, versions=(0, 0), flexible=0)
class AllocateProducerIdsRequest:
    """Request a block from the controller."""

    broker_id: int = wire(int32)
    broker_epoch: int = wire(int64, default=-1)


@message(api_key=67, versions=(0, 0), flexible=0)
class AllocateProducerIdsResponse:
    """The first id of the block and its length."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    producer_id_start: int = wire(int64)
    producer_id_len: int = wire(int32)
