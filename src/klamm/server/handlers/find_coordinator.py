"""FindCoordinator, v0-6: which broker looks after a group or a transactional id.

No coordinator runs here yet, and the answer says so: COORDINATOR_NOT_AVAILABLE, which clients may retry. The API is
served because librdkafka compresses only for brokers that have it.
v3 flexible · v4 several keys at once
"""

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from klamm.server.context import RequestContext
from klamm.server.services import Services

KEY_TYPES = (0, 1, 2)
_REASON = "this broker has no group or transaction coordinator"


def handle(_services: Services, context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Name nobody, with the reason."""
    known = request.key_type in KEY_TYPES
    error = ErrorCode.COORDINATOR_NOT_AVAILABLE if known else ErrorCode.INVALID_REQUEST
    reason = _REASON if known else f"{request.key_type} is no kind of coordinator"
    if context.version < 4:
        return FindCoordinatorResponse(error_code=error, error_message=reason, node_id=-1, host="", port=-1)
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message=reason)
            for key in request.coordinator_keys
        ]
    )
