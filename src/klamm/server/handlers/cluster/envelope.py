"""Envelope, v0: a client's admin request, carried to the active controller by the broker that was asked.

The answer inside has the form of the inner API and version. Beside Kafka's fields it tells, in a tag that others skip,
where in the log its changes end, so that the broker can wait until it knows of them itself.
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
from klamm.server.requests.forwarding import FORWARDED, refusal
from klamm.server.services import Services

ABOUT_THE_QUORUM = frozenset({"AddRaftVoter", "DescribeQuorum", "RemoveRaftVoter"})
"""What the quorum answers rather than the controller on top of it; Kafka's brokers put it into an Envelope too."""


async def handle(services: Services, _context: RequestContext, request: EnvelopeRequest) -> ForwardedResponse:
    """Decide about the request inside."""
    try:
        header, start = decode_request_header(request.request_data)
        api = APIS.get(header.api_key)
        if api is None or api.name not in FORWARDED | ABOUT_THE_QUORUM or not api.serves(header.api_version):
            return ForwardedResponse(error_code=ErrorCode.INVALID_REQUEST)
        inner, _ = decode(
            api.request, header.api_version, request.request_data, start, elements_max=elements_max(api.key)
        )
    except ProtocolError:
        return ForwardedResponse(error_code=ErrorCode.INVALID_REQUEST)
    offset = -1
    try:
        if api.name in ABOUT_THE_QUORUM:
            response = await _ask_the_quorum(services, inner)
        else:
            outcome = await services.controllers.runtime.ask(inner, header.api_version)
            response, offset = outcome.response, outcome.offset
    except KlammError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            return ForwardedResponse(error_code=error.code)
        response = refusal(inner, error.code, str(error) or None)
    head = encode_response_header(header.correlation_id, header.api_key, header.api_version)
    return ForwardedResponse(response_data=head + encode(response, header.api_version), offset=offset)


async def _ask_the_quorum(services: Services, request: Any) -> Any:
    if not services.raft.is_leader:
        raise KlammError(ErrorCode.NOT_CONTROLLER, f"the leader is {services.raft.leader[0]}")
    match request:
        case AddRaftVoterRequest():
            return await services.membership.add(request)
        case RemoveRaftVoterRequest():
            return await services.membership.remove(request)
    return describe(services, request)
