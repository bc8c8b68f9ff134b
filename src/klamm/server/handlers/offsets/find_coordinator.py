"""FindCoordinator, v0-6: the broker that coordinates a group or a transactional id.

It is the leader of the partition of the internal topic that the key hashes to; the topic is created by the first
request. A key type without a coordinator here is INVALID_REQUEST, as Kafka answers without share groups.
v1 transactions · v3 flexible · v4 several keys at once · v6 share groups
"""

from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from klamm.server.requests.access.checks import cluster_denied, group_denied, transactional_id_denied
from klamm.server.requests.access.refusals import DENIALS
from klamm.server.requests.context import RequestContext
from klamm.server.requests.slices import Pace
from klamm.server.services import Services

GROUP, TRANSACTION, SHARE = range(3)
"""The key types of the request."""


async def handle(
    services: Services, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Name the coordinator of each key."""
    if context.version >= 4:
        coordinators = []
        pace = Pace()
        for key in request.coordinator_keys:
            coordinators.append(await _find(services, context, request.key_type, key))
            await pace.spend()
        return FindCoordinatorResponse(coordinators=coordinators)
    coordinator = await _find(services, context, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=coordinator.error_code,
        error_message=coordinator.error_message,
        node_id=coordinator.node_id,
        host=coordinator.host,
        port=coordinator.port,
    )


def _find_denial(services: Services, context: RequestContext, key_type: int, key: str) -> ErrorCode | None:
    """Return the error for a client without the right on the key; None for one that has it."""
    if key_type == GROUP and group_denied(services, context, AclOperation.DESCRIBE, key):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if key_type == TRANSACTION and transactional_id_denied(services, context, AclOperation.DESCRIBE, key):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if key_type == SHARE and cluster_denied(services, context, AclOperation.CLUSTER_ACTION):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return None


async def _find(services: Services, context: RequestContext, key_type: int, key: str) -> Coordinator:
    denial = _find_denial(services, context, key_type, key)
    if denial is not None:
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=denial, error_message=DENIALS[denial])
    try:
        if services.coordinators.find_runtime(key_type) is None:
            raise KlammError(ErrorCode.INVALID_REQUEST, f"this broker has no coordinator for key type {key_type}")
        broker = await services.coordinators.find(key_type, key)
    except KlammError as error:
        # The internal topic could not be created because the controller is changing. Clients retry this code, not
        # NOT_CONTROLLER.
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if error.code is ErrorCode.NOT_CONTROLLER else error.code
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=str(error))
    host, port = services.endpoint(broker, context)
    return Coordinator(key=key, node_id=broker.id, host=host, port=port, error_message=None)
