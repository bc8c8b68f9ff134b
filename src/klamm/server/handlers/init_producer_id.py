"""InitProducerId, v0-5: an id under which a producer's batches are recognised, so that a retry is no duplicate.

Without a transactional id the answer is always a new id at epoch 0. Transactional ids belong to a transaction
coordinator, which this broker does not have: COORDINATOR_NOT_AVAILABLE.
v2 flexible · v3 current id and epoch (KIP-360) · v4 PRODUCER_FENCED
"""

from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.server.context import RequestContext
from klamm.server.services import Services


async def handle(
    services: Services, _context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Allocate an id; a half-given current identity is refused."""
    if request.transactional_id == "" or (request.producer_id < 0) != (request.producer_epoch < 0):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    if request.transactional_id is not None:
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, producer_epoch=-1)
    try:
        producer_id = await services.producer_ids.allocate()
    except KlammError:
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
