"""The messages of OAUTHBEARER."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.security.core.bearer_claims import BearerIdentity, InvalidToken
from klamm.security.core.oauthbearer import (
    BearerClient,
    BearerMessage,
    BearerServer,
    check_extension,
    format_bearer,
    parse_bearer,
)
from klamm.security.core.refusal import InvalidCredentials, LoginRefused
from klamm.security.core.secret import Secret


def test_messages_round_trip():
    message = BearerMessage(Secret("aa.bb.cc"), "al,ice", {"scope": "a b", "traceId": "1"})
    data = format_bearer(message)
    assert data == b"n,a=al=2Cice,\x01auth=Bearer aa.bb.cc\x01scope=a b\x01traceId=1\x01\x01"
    assert parse_bearer(data) == message


@pytest.mark.parametrize("scheme", [b"Bearer", b"bearer", b"BEARER"])
def test_the_scheme_has_no_case(scheme):
    # RFC 7628, section 4.1, in Kafka's form
    message = parse_bearer(b"n,,\x01auth=" + scheme + b" vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg\x01\x01")
    assert message.token.reveal() == "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg"
    assert message.authorization_id == ""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"y,,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer a\x01",
    ],
)
def test_other_messages_are_refused(data):
    with pytest.raises(InvalidCredentials):
        parse_bearer(data)


@given(st.binary(max_size=200))
def test_random_messages_are_refused_and_nothing_else(data):
    with pytest.raises(InvalidCredentials):
        parse_bearer(data)


IDENTITY = BearerIdentity("alice", 5_000)


def accept(token: Secret) -> BearerIdentity:
    if token.reveal() != "good":
        raise InvalidToken("wrong signature")
    return IDENTITY


def test_a_login_is_one_message():
    client, server = BearerClient(Secret("good"), {"traceId": "1"}), BearerServer(accept)
    assert client.step(server.step(client.first())) == b""
    assert client.complete
    assert (server.complete, server.user, server.expires_at_ms) == (True, "alice", 5_000)


def test_a_refused_token_is_answered_with_json_and_then_with_the_error():
    client, server = BearerClient(Secret("bad")), BearerServer(accept)
    answer = server.step(client.first())
    assert answer == b'{"status":"invalid_token"}'
    acknowledgement = client.step(answer)
    assert acknowledgement == b"\x01"
    assert not client.complete
    with pytest.raises(LoginRefused) as refusal:
        server.step(acknowledgement)
    assert str(refusal.value).endswith('{"status":"invalid_token"}')
    assert refusal.value.reason == "wrong signature"


def test_a_second_token_is_not_tried():
    server = BearerServer(accept)
    server.step(BearerClient(Secret("bad")).first())
    with pytest.raises(LoginRefused):
        server.step(BearerClient(Secret("good")).first())
    assert not server.complete


def test_another_authorization_id_is_refused():
    # CVE-2017-12610, for tokens
    data = format_bearer(BearerMessage(Secret("good"), "admin"))
    with pytest.raises(LoginRefused, match="different from the token's principal name"):
        BearerServer(accept).step(data)
    own = format_bearer(BearerMessage(Secret("good"), "alice"))
    assert BearerServer(accept).step(own) == b""


@pytest.mark.parametrize(("name", "value"), [("auth", "x"), ("a-b", "x"), ("a", "x\x01"), ("a", "")])
def test_extensions_that_no_message_can_carry_are_refused(name, value):
    with pytest.raises(ValueError, match="extension"):
        check_extension(name, value)
