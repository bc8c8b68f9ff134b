"""Envelope, v0: a client's admin request, forwarded by a broker to the active controller.

The embedded response has the inner API and version. Beside Kafka's fields, the envelope has a tagged field, which other
brokers skip, with the offset of the last record of the change: the broker waits until its own image is there.
"""

import ipaddress
from typing import Any, Final

from klamm.controller import QuotaClient
from klamm.model.errors import ErrorCode, KlammError, ProtocolError
from klamm.protocol.apis import APIS
from klamm.protocol.budget import elements_max
from klamm.protocol.codec import decode, encode
from klamm.protocol.header import decode_request_header, encode_response_header
from klamm.protocol.messages.add_raft_voter import AddRaftVoterRequest
from klamm.protocol.messages.envelope import EnvelopeRequest
from klamm.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from klamm.server.controller.channel import ForwardedResponse, decode_principal
from klamm.server.handlers.acls.create_acls import NO_AUTHORIZER
from klamm.server.handlers.quorum.describe_quorum import describe
from klamm.server.requests.access.admin_requests import decide_allowed
from klamm.server.requests.access.guard import meets
from klamm.server.requests.access.refusals import refuse_whole
from klamm.server.requests.access.rights import Requirements, find_requirements, is_guarded
from klamm.server.requests.context import ForwardedContext, RequestContext
from klamm.server.requests.forwarding import FORWARDED, refuse_request
from klamm.server.services import Services

_NO_FRAME: Final = memoryview(b"")

QUORUM_REQUESTS = frozenset({"AddRaftVoter", "DescribeQuorum", "RemoveRaftVoter"})
"""Answered by the quorum, not by the controller on top of it; Kafka's brokers forward them in an Envelope too."""


async def handle(services: Services, context: RequestContext, request: EnvelopeRequest) -> ForwardedResponse:
    """Decide the embedded request as the client that the envelope names, and embed its response."""
    try:
        principal = decode_principal(request.request_principal)
    except ProtocolError:
        return ForwardedResponse(error_code=ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE)
    try:
        host = str(ipaddress.ip_address(bytes(request.client_host_address)))
        header, start = decode_request_header(request.request_data)
        api = APIS.get(header.api_key)
        # Anything else a broker could forward is not the controller's to decide.
        if api is None or api.name not in FORWARDED | QUORUM_REQUESTS:
            return ForwardedResponse(error_code=ErrorCode.INVALID_REQUEST)
        if not api.serves(header.api_version):
            return ForwardedResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        inner, _ = decode(
            api.request, header.api_version, request.request_data, start, elements_max=elements_max(api.key)
        )
    # ValueError: an address of neither four nor sixteen bytes. The code for both is Kafka's.
    except (ProtocolError, ValueError):
        return ForwardedResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    client = ForwardedContext(
        context.channel,
        context.listener,
        header.api_key,
        header.api_version,
        header.correlation_id,
        header.client_id,
        _NO_FRAME,
        principal,
        host,
    )
    call = _ControllerCall(services, header.api_version, QuotaClient(principal.name, header.client_id or "", principal))
    try:
        if not meets(services, client, _cluster_requirements(api.name)):
            response = refuse_whole(inner, header.api_version, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        elif services.access is None and api.name in ("CreateAcls", "DeleteAcls"):
            response = refuse_request(inner, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        elif api.name in QUORUM_REQUESTS:
            response = await _ask_quorum(services, inner)
        else:
            response = await decide_allowed(services, client, inner, call.decide)
    except KlammError as error:
        # An error of the envelope makes the broker retry with the active controller; others are the client's response.
        if error.code is ErrorCode.NOT_CONTROLLER:
            return ForwardedResponse(error_code=error.code)
        response = refuse_request(inner, error.code, str(error) or None)
    head = encode_response_header(header.correlation_id, header.api_key, header.api_version)
    return ForwardedResponse(response_data=head + encode(response, header.api_version), offset=call.offset)


class _ControllerCall:
    """Has a request decided by this node's controller, and keeps the offset of the change."""

    def __init__(self, services: Services, version: int, client: QuotaClient) -> None:
        self._services = services
        self._version = version
        self._client = client
        self.offset = -1

    async def decide(self, request: Any) -> Any:
        outcome = await self._services.controllers.runtime.ask(request, self._version, self._client)
        self.offset = outcome.offset
        return outcome.response


def _cluster_requirements(api: str) -> Requirements:
    requirements = find_requirements(api, "broker")
    return requirements if is_guarded(requirements) else ()


async def _ask_quorum(services: Services, request: Any) -> Any:
    # The active controller leads the quorum: the same retry as for admin requests finds it.
    if not services.raft.is_leader:
        raise KlammError(ErrorCode.NOT_CONTROLLER, f"the leader is {services.raft.leader[0]}")
    match request:
        case AddRaftVoterRequest():
            return await services.membership.add(request)
        case RemoveRaftVoterRequest():
            return await services.membership.remove(request)
    return describe(services, request)
