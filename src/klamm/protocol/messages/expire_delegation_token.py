"""ExpireDelegationToken, v1-2: let a delegation token end sooner.

v2 flexible
"""

from klamm.protocol.schema import blob, int16, int32, int64, message, wire


@message(api_key=40, versions=(1, 2), flexible=2)
class ExpireDelegationTokenRequest:
    """Name the token and when it should end; a negative time ends it at once."""

    hmac: bytes = wire(blob)
    expiry_time_period_ms: int = wire(int64)


@message(api_key=40, versions=(1, 2), flexible=2)
class ExpireDelegationTokenResponse:
    """When it now ends."""

    error_code: int = wire(int16)
    expiry_timestamp_ms: int = wire(int64)
    throttle_time_ms: int = wire(int32)
