"""CreateDelegationToken, v1-3: make a token that stands for a user's credentials.

v2 flexible · v3 tokens on behalf of another owner
"""

from klamm.protocol.schema import array, blob, int16, int32, int64, message, string, struct, wire


@struct
class CreatableRenewers:
    """A principal that may renew the token."""

    principal_type: str = wire(string)
    principal_name: str = wire(string)


@message(api_key=38, versions=(1, 3), flexible=2)
class CreateDelegationTokenRequest:
    """Request a token and name its renewers."""

    # Null: the requester owns the token.
    owner_principal_type: str | None = wire(string, since=3, nullable=0)
    owner_principal_name: str | None = wire(string, since=3, nullable=0)
    renewers: list[CreatableRenewers] = wire(array(CreatableRenewers))
    # -1 takes the broker's maximum.
    max_lifetime_ms: int = wire(int64)


@message(api_key=38, versions=(1, 3), flexible=2)
class CreateDelegationTokenResponse:
    """The token and its secret."""

    error_code: int = wire(int16)
    principal_type: str = wire(string)
    principal_name: str = wire(string)
    token_requester_principal_type: str = wire(string, since=3)
    token_requester_principal_name: str = wire(string, since=3)
    issue_timestamp_ms: int = wire(int64)
    expiry_timestamp_ms: int = wire(int64)
    max_timestamp_ms: int = wire(int64)
    token_id: str = wire(string)
    hmac: bytes = wire(blob)
    throttle_time_ms: int = wire(int32)
