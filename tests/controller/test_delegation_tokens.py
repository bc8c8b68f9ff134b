"""Delegation tokens: who creates, renews and expires them, and when they end."""

import base64
import hashlib
import hmac

import pytest

from klamm.controller import QuotaClient
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from klamm.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from klamm.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from klamm.security.core.delegation_tokens import TokenSettings, token_password
from klamm.security.core.principal import Principal
from klamm.security.core.secret import Secret

NOW = 1_700_000_000_000
ALICE, BOB, CAROL = (Principal("User", name) for name in ("alice", "bob", "carol"))
SETTINGS = TokenSettings(Secret("master"), max_lifetime_ms=1000, renewal_ms=300)


@pytest.fixture
def one(cluster):
    return cluster(1, tokens=SETTINGS)


def decide(one, request, principal=ALICE, now=NOW):
    client = QuotaClient(principal.name, "", principal)
    decision = one.controller.decide(request, 3, next_offset=one.next_offset, now_ms=0, client=client, wall_ms=now)
    return one.commit(decision)


def create(one, principal=ALICE, *, renewers=(), lifetime=-1, owner=None, now=NOW):
    request = CreateDelegationTokenRequest(
        owner_principal_type=owner.type if owner else None,
        owner_principal_name=owner.name if owner else None,
        renewers=[CreatableRenewers(principal_type=renewer.type, principal_name=renewer.name) for renewer in renewers],
        max_lifetime_ms=lifetime,
    )
    return decide(one, request, principal, now)


def renew(one, token, principal=ALICE, *, period=-1, now=NOW):
    return decide(one, RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=period), principal, now)


def expire(one, token, principal=ALICE, *, period=-1, now=NOW):
    return decide(one, ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=period), principal, now)


def test_a_token_and_its_record(one):
    token = create(one, renewers=[BOB])
    assert token.error_code == 0
    assert (token.principal_type, token.principal_name) == ("User", "alice")
    assert (token.issue_timestamp_ms, token.expiry_timestamp_ms, token.max_timestamp_ms) == (NOW, NOW + 300, NOW + 1000)
    assert token.hmac == hmac.new(b"master", token.token_id.encode(), hashlib.sha512).digest()
    assert token_password(token.hmac).reveal() == base64.b64encode(token.hmac).decode()
    record = one.image.delegation_tokens[token.token_id]
    assert (record.owner, record.requester, record.renewers) == ("User:alice", "User:alice", ["User:bob"])
    assert (record.issue_timestamp, record.expiration_timestamp, record.max_timestamp) == (NOW, NOW + 300, NOW + 1000)


@pytest.mark.parametrize(("lifetime", "ends"), [(-1, 1000), (0, 1000), (5000, 1000), (200, 200)])
def test_the_longest_lifetime_is_the_shorter_of_two(one, lifetime, ends):
    token = create(one, lifetime=lifetime)
    assert token.max_timestamp_ms == NOW + ends
    assert token.expiry_timestamp_ms == NOW + min(ends, 300)


def test_a_token_of_another_owner(one):
    token = create(one, BOB, owner=ALICE)
    assert (token.principal_name, token.token_requester_principal_name) == ("alice", "bob")
    # The requester is neither owner nor renewer.
    assert renew(one, token, BOB).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert renew(one, token, ALICE).error_code == 0


def test_owner_and_renewers_renew_up_to_the_longest_lifetime(one):
    token = create(one, renewers=[BOB])
    assert renew(one, token, now=NOW + 200).expiry_timestamp_ms == NOW + 500
    assert renew(one, token, BOB, period=100, now=NOW + 300).expiry_timestamp_ms == NOW + 400
    assert renew(one, token, BOB, period=2**63 - 1, now=NOW + 400).expiry_timestamp_ms == NOW + 700
    assert renew(one, token, now=NOW + 700).expiry_timestamp_ms == NOW + 1000
    assert renew(one, token, CAROL).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert renew(one, token, now=NOW + 1001).error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert one.image.delegation_tokens[token.token_id].expiration_timestamp == NOW + 1000


def test_owner_and_renewers_expire(one):
    token = create(one, renewers=[BOB])
    assert expire(one, token, CAROL).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert expire(one, token, BOB, period=50).expiry_timestamp_ms == NOW + 50
    assert expire(one, token, BOB, period=2**63 - 1).expiry_timestamp_ms == NOW + 1000
    assert expire(one, token, period=-1).expiry_timestamp_ms == -1
    assert not one.image.delegation_tokens
    assert expire(one, token).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert renew(one, token).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_expired_tokens_are_removed(one):
    tokens = [create(one, lifetime=lifetime) for lifetime in (100, 200, 1000)]
    assert one.commit(one.controller.remove_expired_tokens(NOW + 100)) is False
    assert len(one.image.delegation_tokens) == 3
    assert one.commit(one.controller.remove_expired_tokens(NOW + 201)) is False
    assert list(one.image.delegation_tokens) == [tokens[2].token_id]


def test_removals_are_bounded(one, monkeypatch):
    monkeypatch.setattr("klamm.controller.delegation_tokens.REMOVALS_MAX", 2)
    for _ in range(3):
        create(one)
    assert one.commit(one.controller.remove_expired_tokens(NOW + 5000)) is True
    assert one.commit(one.controller.remove_expired_tokens(NOW + 5000)) is False
    assert not one.image.delegation_tokens


def test_renewers_are_users(one):
    refused = create(one, renewers=[Principal("Group", "g")])
    assert (refused.error_code, refused.hmac) == (ErrorCode.INVALID_PRINCIPAL_TYPE, b"")


def test_a_token_does_not_make_tokens(one):
    session = Principal("User", "alice", token_authenticated=True)
    token = create(one)
    assert create(one, session).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert renew(one, token, session).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert expire(one, token, session).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_without_a_key_tokens_are_disabled(cluster):
    one = cluster(1)
    disabled = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    token = create(one)
    assert (token.error_code, token.token_id, one.image.delegation_tokens) == (disabled, "", {})
    assert renew(one, token).error_code == disabled
    assert expire(one, token).error_code == disabled


def test_the_key_is_in_no_text(one):
    assert "master" not in repr(one.controller.config)
