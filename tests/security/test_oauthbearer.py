"""The messages of OAUTHBEARER."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.security.core.oauthbearer import BearerMessage, format_bearer, parse_bearer
from klamm.security.core.refusal import InvalidCredentials
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
