"""Users' SCRAM credentials: what AlterUserScramCredentials changes (KIP-554)."""

from collections import Counter

from klamm.controller.context import ControllerContext, ControllerDecision, refuse
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages import alter_user_scram_credentials as asc
from klamm.protocol.messages.metadata_records import (
    MetadataRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from klamm.security.core.scram import ITERATIONS_MAX, ITERATIONS_MIN, SCRAM_BY_NUMBER, ScramHash, keys_from_salted

ScramAlteration = asc.ScramCredentialDeletion | asc.ScramCredentialUpsertion


def alter_user_scram_credentials(
    context: ControllerContext, request: asc.AlterUserScramCredentialsRequest
) -> ControllerDecision[asc.AlterUserScramCredentialsResponse]:
    """Set and delete credentials; each user has a result of its own."""
    changes: list[ScramAlteration] = [*request.deletions, *request.upsertions]
    counts = Counter(change.name for change in changes)
    results: dict[str, asc.AlterUserScramCredentialsResult] = {}
    records: list[MetadataRecord] = []
    for change in changes:
        result = results.setdefault(change.name, asc.AlterUserScramCredentialsResult(user=change.name))
        result.error_message = None
        try:
            # Whatever the mechanism: results are by user, and one of two would have no place.
            if counts[change.name] > 1:
                refuse(ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
            records.append(_decide(context, change))
        except KlammError as error:
            result.error_code, result.error_message = error.code, str(error)
    response = asc.AlterUserScramCredentialsResponse(results=list(results.values()))
    return ControllerDecision(tuple(records), response)


def _decide(context: ControllerContext, change: ScramAlteration) -> MetadataRecord:
    if not change.name:
        refuse(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    mechanism = SCRAM_BY_NUMBER.get(change.mechanism)
    if mechanism is None:
        refuse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, asc.ScramCredentialDeletion):
        if (change.mechanism, change.name) not in context.image.scram:
            refuse(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
        return RemoveUserScramCredentialRecord(name=change.name, mechanism=change.mechanism)
    return _credential(mechanism, change)


def _credential(mechanism: ScramHash, change: asc.ScramCredentialUpsertion) -> MetadataRecord:
    if change.iterations < ITERATIONS_MIN:
        refuse(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > ITERATIONS_MAX:
        refuse(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    keys = keys_from_salted(mechanism, bytes(change.salted_password), bytes(change.salt), change.iterations)
    return UserScramCredentialRecord(
        name=change.name,
        mechanism=mechanism.number,
        salt=keys.salt,
        stored_key=keys.stored_key,
        server_key=keys.server_key,
        iterations=keys.iterations,
    )
