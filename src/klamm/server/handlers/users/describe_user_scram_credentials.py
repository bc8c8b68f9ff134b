"""DescribeUserScramCredentials, v0: mechanisms and iterations of users, never their keys.

Without names, all users that have credentials. A name that is requested twice gets DUPLICATE_RESOURCE, an unknown one
RESOURCE_NOT_FOUND.
"""

from collections import Counter
from collections.abc import Iterable

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from klamm.protocol.messages.metadata_records import UserScramCredentialRecord
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


def handle(
    services: Services, _context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Describe users from the committed metadata."""
    by_user: dict[str, list[UserScramCredentialRecord]] = {}
    for credential in services.image.scram.values():
        by_user.setdefault(credential.name, []).append(credential)
    # As Kafka: an empty list is all users, too.
    names = [user.name for user in request.users or ()] or list(by_user)
    return DescribeUserScramCredentialsResponse(
        error_message=None,
        results=[_describe(name, by_user.get(name, ()), count=count) for name, count in Counter(names).items()],
    )


def _describe(
    name: str, credentials: Iterable[UserScramCredentialRecord], *, count: int
) -> DescribeUserScramCredentialsResult:
    infos = [
        CredentialInfo(mechanism=credential.mechanism, iterations=credential.iterations) for credential in credentials
    ]
    result = DescribeUserScramCredentialsResult(user=name, error_message=None)
    if count > 1:
        result.error_code = ErrorCode.DUPLICATE_RESOURCE
        result.error_message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
    elif not infos:
        result.error_code = ErrorCode.RESOURCE_NOT_FOUND
        result.error_message = f"Attempt to describe a user credential that does not exist: {name}"
    else:
        result.credential_infos = infos
    return result
