"""Envelope, v0: a client's request, forwarded by a broker to the active controller.

v0 flexible from the start
"""

from klamm.protocol.schema import blob, int16, message, wire


@message(api_key=58, versions=(0, 0), flexible=0)
class EnvelopeRequest:
    """Carry a whole request and its principal."""

    request_data: bytes = wire(blob)
    request_principal: bytes | None = wire(blob, nullable=0)
    # The raw bytes of the IP address, four or sixteen.
    client_host_address: bytes = wire(blob)


@message(api_key=58, versions=(0, 0), flexible=0)
class EnvelopeResponse:
    """Carry the whole response back."""

    # Null when the envelope itself failed.
    response_data: bytes | None = wire(blob, nullable=0, default=None)
    error_code: int = wire(int16)
