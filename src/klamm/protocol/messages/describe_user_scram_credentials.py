"""DescribeUserScramCredentials, v0: show which SCRAM mechanisms users have.

v0 flexible from the start
"""

from klamm.protocol.schema import array, int8, int16, int32, message, string, struct, wire


@struct
class UserName:
    """A requested user."""

    name: str = wire(string)


@message(api_key=50, versions=(0, 0), flexible=0)
class DescribeUserScramCredentialsRequest:
    """Request some users, or all with null."""

    users: list[UserName] | None = wire(array(UserName), nullable=0)


@struct
class CredentialInfo:
    """One mechanism and its iterations."""

    mechanism: int = wire(int8)
    iterations: int = wire(int32)


@struct
class DescribeUserScramCredentialsResult:
    """The mechanisms of one user."""

    user: str = wire(string)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
    credential_infos: list[CredentialInfo] = wire(array(CredentialInfo))


@message(api_key=50, versions=(0, 0), flexible=0)
class DescribeUserScramCredentialsResponse:
    """The mechanisms of each user; never the secrets."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
    results: list[DescribeUserScramCredentialsResult] = wire(array(DescribeUserScramCredentialsResult))
