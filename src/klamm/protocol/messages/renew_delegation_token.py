"""RenewDelegationToken, v1-2: extend the lifetime of a delegation token.

v2 flexible
"""

from klamm.protocol.schema import blob, int16, int32, int64, message, wire


@message(api_key=39, versions=(1, 2), flexible=2)
class RenewDelegationTokenRequest:
    """Name the token and the time to add."""

    hmac: bytes = wire(blob)
    renew_period_ms: int = wire(int64)


@message(api_key=39, versions=(1, 2), flexible=2)
class RenewDelegationTokenResponse:
    """When it now ends."""

    error_code: int = wire(int16)
    expiry_timestamp_ms: int = wire(int64)
    throttle_time_ms: int = wire(int32)
