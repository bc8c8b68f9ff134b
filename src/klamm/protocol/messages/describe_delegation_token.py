"""DescribeDelegationToken, v1-3: show delegation tokens.

v2 flexible · v3 the requester of the token
"""

from klamm.protocol.schema import array, blob, int16, int32, int64, message, string, struct, wire


@struct
class DescribeDelegationTokenOwner:
    """A requested owner."""

    principal_type: str = wire(string)
    principal_name: str = wire(string)


@message(api_key=41, versions=(1, 3), flexible=2)
class DescribeDelegationTokenRequest:
    """Request the tokens of some owners, or of all with null."""

    owners: list[DescribeDelegationTokenOwner] | None = wire(array(DescribeDelegationTokenOwner), nullable=0)


@struct
class DescribedDelegationTokenRenewer:
    """A principal that may renew the token."""

    principal_type: str = wire(string)
    principal_name: str = wire(string)


@struct
class DescribedDelegationToken:
    """One token."""

    principal_type: str = wire(string)
    principal_name: str = wire(string)
    token_requester_principal_type: str = wire(string, since=3)
    token_requester_principal_name: str = wire(string, since=3)
    issue_timestamp: int = wire(int64)
    expiry_timestamp: int = wire(int64)
    max_timestamp: int = wire(int64)
    token_id: str = wire(string)
    hmac: bytes = wire(blob)
    renewers: list[DescribedDelegationTokenRenewer] = wire(array(DescribedDelegationTokenRenewer))


@message(api_key=41, versions=(1, 3), flexible=2)
class DescribeDelegationTokenResponse:
    """The tokens that the requester may describe."""

    error_code: int = wire(int16)
    tokens: list[DescribedDelegationToken] = wire(array(DescribedDelegationToken))
    throttle_time_ms: int = wire(int32)
