"""Producer ids: brokers get them in blocks, so that InitProducerId needs no write to the quorum."""

from klamm.controller.context import ControllerContext, ControllerDecision
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from klamm.protocol.messages.metadata_records import ProducerIdsRecord

BLOCK_SIZE = 1_000  # Kafka's
_MAX_INT64 = 2**63 - 1


def allocate_producer_ids(
    context: ControllerContext, request: AllocateProducerIdsRequest
) -> ControllerDecision[AllocateProducerIdsResponse]:
    """Allocate the next block; the record that reserves it is committed before the response is sent."""
    broker = context.image.cluster.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        return ControllerDecision((), AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    # Ids of a block that a broker loses with its process are never used: there are 2**63 of them.
    first = context.image.next_producer_id
    if first > _MAX_INT64 - BLOCK_SIZE:
        return ControllerDecision((), AllocateProducerIdsResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
    record = ProducerIdsRecord(
        broker_id=request.broker_id, broker_epoch=request.broker_epoch, next_producer_id=first + BLOCK_SIZE
    )
    return ControllerDecision(
        (record,), AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=BLOCK_SIZE)
    )
