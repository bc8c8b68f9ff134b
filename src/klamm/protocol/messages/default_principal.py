"""The principal of a forwarded request, inside an Envelope request.

It travels behind an int16 with its version. v0 flexible from the start
"""

from klamm.protocol.schema import boolean, message, string, wire


@message(versions=(0, 0), flexible=0)
class DefaultPrincipalData:
    """A principal as the forwarding broker authenticated it."""

    type: str = wire(string)
    name: str = wire(string)
    token_authenticated: bool = wire(boolean)
