"""AlterUserScramCredentials, v0: give users SCRAM passwords or take them away.

v0 flexible from the start
"""

from klamm.protocol.schema import array, blob, int8, int16, int32, message, string, struct, wire


@struct
class ScramCredentialDeletion:
    """A mechanism to take from a user."""

    name: str = wire(string)
    mechanism: int = wire(int8)


@struct
class ScramCredentialUpsertion:
    """A salted password to give to a user."""

    name: str = wire(string)
    mechanism: int = wire(int8)
    iterations: int = wire(int32)
    salt: bytes = wire(blob)
    salted_password: bytes = wire(blob)


@message(api_key=51, versions=(0, 0), flexible=0)
class AlterUserScramCredentialsRequest:
    """Name what to delete and what to set; the password comes salted."""

    deletions: list[ScramCredentialDeletion] = wire(array(ScramCredentialDeletion))
    upsertions: list[ScramCredentialUpsertion] = wire(array(ScramCredentialUpsertion))


@struct
class AlterUserScramCredentialsResult:
    """Whether one user was changed."""

    user: str = wire(string)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)


@message(api_key=51, versions=(0, 0), flexible=0)
class AlterUserScramCredentialsResponse:
    """The result of each user."""

    throttle_time_ms: int = wire(int32)
    results: list[AlterUserScramCredentialsResult] = wire(array(AlterUserScramCredentialsResult))
