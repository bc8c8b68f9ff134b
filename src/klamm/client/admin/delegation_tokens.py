"""Delegation tokens: logins for jobs that should not hold the password of their user (KIP-48)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from klamm.client.admin.acl_types import DelegationToken
from klamm.client.admin.base import AdminBase
from klamm.client.core.arguments import texts
from klamm.protocol.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from klamm.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from klamm.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from klamm.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from klamm.security.core.principal import Principal, parse_principal

if TYPE_CHECKING:
    from klamm.protocol.messages.create_delegation_token import CreateDelegationTokenResponse
    from klamm.protocol.messages.describe_delegation_token import DescribedDelegationToken

OF_THE_BROKER = -1
"""A period that the broker's settings decide; in `expire_delegation_token`: at once."""


class DelegationTokenAdmin(AdminBase):
    """Requests about delegation tokens; principals are texts as `User:ada`."""

    async def create_delegation_token(
        self, *, owner: str | None = None, renewers: Sequence[str] = (), max_lifetime_ms: int = OF_THE_BROKER
    ) -> DelegationToken:
        """A new token of this user, or of `owner`. Its HMAC in base64 is a SCRAM password, its id the user."""
        owned_by = None if owner is None else parse_principal(owner)
        principals = [parse_principal(text) for text in texts(renewers, "create_delegation_token, renewers")]
        response = await self._send(
            CreateDelegationTokenRequest(
                owner_principal_type=None if owned_by is None else owned_by.type,
                owner_principal_name=None if owned_by is None else owned_by.name,
                renewers=[CreatableRenewers(principal_type=user.type, principal_name=user.name) for user in principals],
                max_lifetime_ms=max_lifetime_ms,
            )
        )
        return _build_created_token(response, principals)

    async def renew_delegation_token(self, hmac: bytes, *, period_ms: int = OF_THE_BROKER) -> int:
        """Let a token live for a further period, within its longest lifetime; when it expires now, in ms since 1970."""
        response = await self._send(RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms))
        expires_ms: int = response.expiry_timestamp_ms
        return expires_ms

    async def expire_delegation_token(self, hmac: bytes, *, period_ms: int = OF_THE_BROKER) -> int:
        """End a token after a period, or at once; when it expires now, in ms since 1970."""
        response = await self._send(ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms))
        expires_ms: int = response.expiry_timestamp_ms
        return expires_ms

    async def describe_delegation_tokens(self, owners: Sequence[str] | None = None) -> list[DelegationToken]:
        """The tokens of some owners, or all that this user may see."""
        named = None
        if owners is not None:
            principals = map(parse_principal, texts(owners, "describe_delegation_tokens"))
            named = [
                DescribeDelegationTokenOwner(principal_type=user.type, principal_name=user.name) for user in principals
            ]
        response = await self._send(DescribeDelegationTokenRequest(owners=named))
        return [_build_token(token) for token in response.tokens]


def _build_created_token(token: CreateDelegationTokenResponse, renewers: Iterable[Principal]) -> DelegationToken:
    return DelegationToken(
        token.token_id,
        token.hmac,
        str(Principal(token.principal_type, token.principal_name)),
        str(Principal(token.token_requester_principal_type, token.token_requester_principal_name)),
        tuple(map(str, renewers)),
        token.issue_timestamp_ms,
        token.expiry_timestamp_ms,
        token.max_timestamp_ms,
    )


def _build_token(token: DescribedDelegationToken) -> DelegationToken:
    return DelegationToken(
        token.token_id,
        token.hmac,
        str(Principal(token.principal_type, token.principal_name)),
        str(Principal(token.token_requester_principal_type, token.token_requester_principal_name)),
        tuple(str(Principal(renewer.principal_type, renewer.principal_name)) for renewer in token.renewers),
        token.issue_timestamp,
        token.expiry_timestamp,
        token.max_timestamp,
    )
