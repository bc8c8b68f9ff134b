"""Claims of bearer tokens, and tokens without signature."""

import base64
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.security.core.bearer_claims import (
    TOKEN_CHARACTERS_MAX,
    BearerIdentity,
    ClaimRules,
    InvalidToken,
    check_claims,
    check_unsecured,
    format_unsecured,
    read_expiry,
    split_token,
)

NOW = 1_000_000.0
VALID = {"sub": "alice", "iat": NOW - 10, "exp": NOW + 100}


def encode(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def test_the_subject_and_the_end_of_a_token():
    assert check_claims(VALID, ClaimRules(), NOW) == BearerIdentity("alice", 1_000_100_000)
    rules = ClaimRules(subject_claim="client_id", issuer="me", audiences=("a", "b"))
    claims = {**VALID, "client_id": "batch", "iss": "me", "aud": ["x", "b"], "scope": ["r", "w"], "nbf": NOW + 20}
    assert check_claims(claims, rules, NOW).subject == "batch"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": NOW - 30}, "expired"),
        ({"exp": None}, "exp"),
        ({"exp": "1000100"}, "exp"),
        ({"exp": True}, "exp"),
        ({"exp": float("inf")}, "exp"),
        ({"exp": 1e300}, "exp"),
        ({"iat": None}, "iat"),
        ({"iat": NOW + 31}, "future"),
        ({"iat": NOW + 101, "exp": NOW + 100}, "after it expires"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"nbf": NOW + 101}, "expires before"),
        ({"nbf": []}, "nbf"),
        ({"sub": None}, "subject"),
        ({"sub": "  "}, "subject"),
        ({"sub": 7}, "subject"),
        ({"iss": "other"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "other"}, "audience"),
        ({"aud": None}, "audience"),
        ({"aud": [None, 3]}, "audience"),
        ({"scope": 5}, "scope"),
        ({"scope": [5]}, "scope"),
    ],
)
def test_claims_that_are_missing_or_wrong(claims, reason):
    rules = ClaimRules(issuer="me", audiences=("us",))
    valid = {**VALID, "iss": "me", "aud": "us"}
    assert check_claims(valid, rules, NOW).subject == "alice"
    with pytest.raises(InvalidToken, match=reason) as refusal:
        check_claims({**valid, **claims}, rules, NOW)
    assert refusal.value.response == '{"status":"invalid_token"}'


def test_clocks_may_differ_by_the_skew_only():
    rules = ClaimRules(clock_skew_s=5)
    check_claims({**VALID, "exp": NOW - 4}, rules, NOW)
    with pytest.raises(InvalidToken, match="expired"):
        check_claims({**VALID, "exp": NOW - 5}, rules, NOW)


def test_a_missing_scope_is_named():
    rules = ClaimRules(required_scopes=("read", "write"))
    assert check_claims({**VALID, "scope": "write other read"}, rules, NOW).subject == "alice"
    with pytest.raises(InvalidToken) as refusal:
        check_claims({**VALID, "scope": "read"}, rules, NOW)
    assert refusal.value.response == '{"status":"insufficient_scope", "scope":"read write"}'


def test_unsecured_tokens():
    rules = ClaimRules(clock_skew_s=0, requires_issue_time=False)
    assert check_unsecured(format_unsecured({"sub": "alice", "exp": NOW + 1}), rules, NOW).subject == "alice"
    signed = f"{encode({'alg': 'none'})}.{encode(VALID)}.{encode(b'signature')}"
    with pytest.raises(InvalidToken, match="signed"):
        check_unsecured(signed, rules, NOW)
    with pytest.raises(InvalidToken, match="signed"):
        check_unsecured(f"{encode({'alg': 'RS256'})}.{encode(VALID)}.", rules, NOW)
    with pytest.raises(InvalidToken, match="expired"):
        check_unsecured(format_unsecured({"sub": "alice", "exp": NOW}), rules, NOW)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a.b",
        "a.b.c.d",
        f"{encode([])}.{encode(VALID)}.",
        f"{encode(b'{')}.{encode(VALID)}.",
        f"{encode(b'[' * 20_000)}.{encode(VALID)}.",
        f"{encode(b'9' * 5_000)}.{encode(VALID)}.",
        f"{encode({'alg': 'none'})}.{encode('text')}.",
        f"{encode({'alg': 'none'})}=.{encode(VALID)}.",
        f"{encode({'alg': 'none'})}.{encode(VALID)}.a",
        "a" * (TOKEN_CHARACTERS_MAX + 1),
    ],
)
def test_what_is_no_token(token):
    with pytest.raises(InvalidToken):
        split_token(token)


def test_the_expiry_of_a_token_that_cannot_be_read_is_unknown():
    assert read_expiry(format_unsecured(VALID)) == NOW + 100
    assert read_expiry("opaque") is None
    assert read_expiry(format_unsecured({"exp": "soon"})) is None


@given(st.text(max_size=60))
def test_random_tokens_are_refused_and_nothing_else(token):
    with pytest.raises(InvalidToken):
        check_unsecured(token, ClaimRules(), NOW)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["sub", "exp", "iat", "nbf", "iss", "aud", "scope"]), json_values))
def test_random_claims_are_an_identity_or_refused(claims):
    rules = ClaimRules(issuer="me", audiences=("us",))
    with contextlib.suppress(InvalidToken):
        assert check_claims(claims, rules, NOW).subject
