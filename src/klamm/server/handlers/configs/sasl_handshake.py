"""SaslHandshake, v0-1: agree on a SASL mechanism.

Listeners need no authentication, so none can be begun: ILLEGAL_SASL_STATE, as Kafka answers on such a listener. It is
advertised all the same: clients guess a broker's version from the list of its APIs.
"""

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


def handle(_services: Services, _context: RequestContext, _request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Refuse; the connection goes on."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
