"""Delegation tokens (KIP-48): what their requests change in the metadata log, and the removal of expired ones."""

from dataclasses import replace
from typing import Final

from klamm.controller.context import ControllerContext, ControllerDecision
from klamm.model.errors import ErrorCode
from klamm.model.ids import uuid_to_str
from klamm.protocol.messages.create_delegation_token import CreateDelegationTokenRequest, CreateDelegationTokenResponse
from klamm.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse
from klamm.protocol.messages.metadata_records import DelegationTokenRecord, RemoveDelegationTokenRecord
from klamm.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from klamm.security.core.delegation_tokens import find_by_hmac, has_expired, may_renew, sign_token_id
from klamm.security.core.principal import Principal

REMOVALS_MAX: Final = 1000
"""Of one decision: the loop has other work."""

_TIME_MAX: Final = 2**63 - 1


def create_token(
    context: ControllerContext, request: CreateDelegationTokenRequest, requester: Principal, now_ms: int
) -> ControllerDecision[CreateDelegationTokenResponse]:
    """Create a token of the requester, or of another owner; the right to do the latter is checked before."""
    settings = context.config.tokens
    owner = find_owner(request, requester)
    response = CreateDelegationTokenResponse(
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
    )
    code = ErrorCode.NONE
    if settings.secret_key is None:
        code = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    elif requester.token_authenticated:
        code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    elif any(renewer.principal_type != "User" for renewer in request.renewers):
        code = ErrorCode.INVALID_PRINCIPAL_TYPE
    if code or settings.secret_key is None:
        response.error_code = code
        return ControllerDecision((), response)
    lifetime_ms = settings.max_lifetime_ms
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    record = DelegationTokenRecord(
        owner=str(owner),
        requester=str(requester),
        renewers=[f"{renewer.principal_type}:{renewer.principal_name}" for renewer in request.renewers],
        issue_timestamp=now_ms,
        max_timestamp=now_ms + lifetime_ms,
        expiration_timestamp=now_ms + min(lifetime_ms, settings.renewal_ms),
        token_id=_make_id(context),
    )
    response.issue_timestamp_ms = record.issue_timestamp
    response.expiry_timestamp_ms = record.expiration_timestamp
    response.max_timestamp_ms = record.max_timestamp
    response.token_id = record.token_id
    response.hmac = sign_token_id(settings.secret_key, record.token_id)
    return ControllerDecision((record,), response)


def _make_id(context: ControllerContext) -> str:
    while True:
        # A random UUID (RFC 9562, version 4) as text.
        raw = bytearray(context.random.randbytes(16))
        raw[6], raw[8] = raw[6] & 0x0F | 0x40, raw[8] & 0x3F | 0x80
        token_id = uuid_to_str(bytes(raw))
        # A command line takes a leading "-" for a flag.
        if not token_id.startswith("-") and token_id not in context.image.delegation_tokens:
            return token_id


def find_owner(request: CreateDelegationTokenRequest, requester: Principal) -> Principal:
    """Return the owner of a new token: the requester unless the request names another."""
    if not request.owner_principal_name:
        return requester
    return Principal(request.owner_principal_type or "User", request.owner_principal_name)


def renew_token(
    context: ControllerContext, request: RenewDelegationTokenRequest, requester: Principal, now_ms: int
) -> ControllerDecision[RenewDelegationTokenResponse]:
    """Extend a token up to its longest lifetime."""
    code, token = _find(context, bytes(request.hmac), requester, now_ms)
    if token is None:
        return ControllerDecision((), RenewDelegationTokenResponse(error_code=code))
    period_ms = context.config.tokens.renewal_ms
    if request.renew_period_ms > 0:
        period_ms = min(period_ms, request.renew_period_ms)
    expires_at_ms = min(token.max_timestamp, now_ms + period_ms)
    record = replace(token, expiration_timestamp=expires_at_ms)
    return ControllerDecision((record,), RenewDelegationTokenResponse(expiry_timestamp_ms=expires_at_ms))


def expire_token(
    context: ControllerContext, request: ExpireDelegationTokenRequest, requester: Principal, now_ms: int
) -> ControllerDecision[ExpireDelegationTokenResponse]:
    """Set the end of a token; a negative period removes it at once."""
    code, token = _find(context, bytes(request.hmac), requester, now_ms)
    period_ms = request.expiry_time_period_ms
    if token is None:
        return ControllerDecision((), ExpireDelegationTokenResponse(error_code=code))
    if period_ms < 0:
        # Kafka answers with the period of the request here, not with a time.
        removal = RemoveDelegationTokenRecord(token_id=token.token_id)
        return ControllerDecision((removal,), ExpireDelegationTokenResponse(expiry_timestamp_ms=period_ms))
    expires_at_ms = min(token.max_timestamp, now_ms + min(period_ms, _TIME_MAX - now_ms))
    record = replace(token, expiration_timestamp=expires_at_ms)
    return ControllerDecision((record,), ExpireDelegationTokenResponse(expiry_timestamp_ms=expires_at_ms))


def remove_expired(context: ControllerContext, now_ms: int) -> ControllerDecision[bool]:
    """Remove tokens that have expired; the response is whether there are more."""
    expired = [token.token_id for token in context.image.delegation_tokens.values() if has_expired(token, now_ms)]
    records = tuple(RemoveDelegationTokenRecord(token_id=token_id) for token_id in expired[:REMOVALS_MAX])
    return ControllerDecision(records, len(expired) > REMOVALS_MAX, divisible=True)


def _find(
    context: ControllerContext, token_hmac: bytes, requester: Principal, now_ms: int
) -> tuple[ErrorCode, DelegationTokenRecord | None]:
    secret_key = context.config.tokens.secret_key
    if secret_key is None:
        return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, None
    if requester.token_authenticated:
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, None
    stored = find_by_hmac(context.image.delegation_tokens, secret_key, token_hmac)
    token = context.image.delegation_tokens[stored.token_id] if stored is not None else None
    if token is None:
        return ErrorCode.DELEGATION_TOKEN_NOT_FOUND, None
    if has_expired(token, now_ms):
        return ErrorCode.DELEGATION_TOKEN_EXPIRED, None
    if not may_renew(token, requester):
        return ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, None
    return ErrorCode.NONE, token
