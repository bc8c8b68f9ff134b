"""SaslHandshake, v0-1: agree on a SASL mechanism.

v0 raw tokens follow without frames · v1 tokens travel in SaslAuthenticate; never flexible
"""

from klamm.protocol.schema import array, int16, message, string, wire


@message(api_key=17, versions=(0, 1))
class SaslHandshakeRequest:
    """Choose a mechanism."""

    mechanism: str = wire(string)


@message(api_key=17, versions=(0, 1))
class SaslHandshakeResponse:
    """Whether it may be used, and which others could be."""

    error_code: int = wire(int16)
    mechanisms: list[str] = wire(array(string))
