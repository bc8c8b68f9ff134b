"""PLAIN: one token, checked in constant time; what Kafka answers to bad ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.security.core.jaas import parse_jaas
from klamm.security.core.plain import PlainServer, plain_token, plain_users
from klamm.security.core.refusal import InvalidCredentials, LoginRefused
from klamm.security.core.secret import Secret

USERS = plain_users(
    parse_jaas(
        "org.apache.kafka.common.security.plain.PlainLoginModule required"
        ' username="admin" password="own" user_admin="own" user_alice="alice-secret";'
    )
)


@pytest.mark.parametrize("authorization_id", ["", "alice"])
def test_a_user_logs_in(authorization_id):
    login = PlainServer(USERS)
    assert login.step(authorization_id.encode() + plain_token("alice", Secret("alice-secret"))) == b""
    assert (login.user, login.complete) == ("alice", True)


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b"\0alice\0wrong", "Invalid username or password"),
        (b"\0unknown\0alice-secret", "Invalid username or password"),
        (b"\0username\0admin", "Invalid username or password"),
        (b"\0\0x", "username not specified"),
        (b"\0alice\0", "password not specified"),
        (b"admin\0alice\0alice-secret", "different from username"),  # CVE-2017-12610
    ],
)
def test_refusals_have_kafkas_texts(token, text):
    login = PlainServer(USERS)
    with pytest.raises(LoginRefused, match=f"^Authentication failed: .*{text}$"):
        login.step(token)
    assert not login.complete


@pytest.mark.parametrize("token", [b"", b"alice\0alice-secret", b"\0alice\0alice-secret\0", b"\0\xff\0x"])
def test_malformed_tokens(token):
    with pytest.raises(InvalidCredentials):
        PlainServer(USERS).step(token)


@given(st.binary(max_size=100))
def test_random_tokens_are_refused_and_nothing_else(token):
    with pytest.raises((InvalidCredentials, LoginRefused)):
        PlainServer({}).step(token)


def test_no_user_has_an_empty_password():
    with pytest.raises(LoginRefused):
        PlainServer({"alice": Secret("")}).step(b"\0alice\0")
