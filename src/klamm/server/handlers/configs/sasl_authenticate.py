"""SaslAuthenticate, v0-2: tokens of a SASL mechanism, where no authentication is under way.

v1 session lifetime · v2 flexible
"""

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


def handle(
    _services: Services, _context: RequestContext, _request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """Refuse; the connection goes on."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )
