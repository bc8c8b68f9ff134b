"""Envelope, v0: a client's admin request, forwarded by a broker to the active controller.

The embedded response has the inner API and version. Beside Kafka's fields, the envelope has a tagged field, which other
brokers skip, with the offset of the last record of the change: the broker waits until its own image is there.
"""

from typing import Any

from klamm.model.errors import ErrorCode, KlammError, ProtocolError
from klamm.protocol.apis import APIS
from klamm.protocol.budget import elements_max
from klamm.protocol.codec import decode, encode
from klamm.protocol.header import decode_request_header, encode_response_header
from klamm.protocol.messages.add_raft_voter import AddRaftVoterRequest
from klamm.protocol.messages.envelope import EnvelopeRequest
from klamm.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from klamm.server.controller.channel import ForwardedResponse
from klamm.server.handlers.quorum.describe_quorum import describe
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import FORWARDED, refuse_request
from klamm.server.services import Services

QUORUM_REQUESTS = frozenset({"AddRaftVoter", "DescribeQuorum", "RemoveRaftVoter"})
"""Answered by the quorum, not by the controller on top of it; Kafka's brokers forward them in an Envelope too."""


async def handle(services: Services, _context: RequestContext, request: EnvelopeRequest) -> ForwardedResponse:
    """Decide the embedded request and embed its response."""
    try:
        header, start = decode_request_header(request.request_data)
        api = APIS.get(header.api_key)
        # Anything else a broker could forward is not the controller's to decide.
        if api is None or api.name not in FORWARDED | QUORUM_REQUESTS or not api.serves(header.api_version):
            return ForwardedResponse(error_code=ErrorCode.INVALID_REQUEST)
        inner, _ = decode(
            api.request, header.api_version, request.request_data, start, elements_max=elements_max(api.key)
        )
    except ProtocolError:
        return ForwardedResponse(error_code=ErrorCode.INVALID_REQUEST)
    offset = -1
    try:
        if api.name in QUORUM_REQUESTS:
            response = await _ask_quorum(services, inner)
        else:
            outcome = await services.controllers.runtime.ask(inner, header.api_version)
            response, offset = outcome.response, outcome.offset
    except KlammError as error:
        # An error of the envelope makes the broker retry with the active controller; others are the client's response.
        if error.code is ErrorCode.NOT_CONTROLLER:
            return ForwardedResponse(error_code=error.code)
        response = refuse_request(inner, error.code, str(error) or None)
    head = encode_response_header(header.correlation_id, header.api_key, header.api_version)
    return ForwardedResponse(response_data=head + encode(response, header.api_version), offset=offset)


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
