"""SCRAM: the examples of the RFCs, both sides against each other, and what hostile peers send."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.decoys import decoy_maker
from klamm.security.core.refusal import InvalidCredentials, LoginRefused
from klamm.security.core.scram import (
    ANSWER_ITERATIONS_MAX,
    SCRAM_MECHANISMS,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    ScramClient,
    ScramHash,
    ScramServer,
    escape_name,
    make_keys,
    unescape_name,
)
from klamm.security.core.secret import Secret

SHA_1 = ScramHash("SCRAM-SHA-1", 0, "sha1")
"""Only for the example of RFC 5802."""


def server(mechanism, users, nonce="server"):
    return ScramServer(mechanism, lambda user, _token: users.get(user), nonce=nonce, make_decoy=decoy_maker(mechanism))


@pytest.mark.parametrize(
    ("mechanism", "nonce", "server_nonce", "salt", "final", "signature"),
    [
        (  # RFC 5802, section 5
            SHA_1,
            "fyko+d2lbbFgONRv9qkxdawL",
            "3rfcNHYJY1ZVvWVs7j",
            "QSXCR+Q6sek8bf92",
            "v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
            "rmF9pqV8S7suAoZWja4dJRkFsKQ=",
        ),
        (  # RFC 7677, section 3
            SCRAM_SHA_256,
            "rOprNGfwEbeRWgbNEkqO",
            "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
            "W22ZaJ0SNY7soEsUEjb6gQ==",
            "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        ),
    ],
)
def test_examples_of_the_rfcs(mechanism, nonce, server_nonce, salt, final, signature):
    credential = make_keys(mechanism, Secret("pencil"), base64.b64decode(salt), 4096)
    broker = server(mechanism, {"user": credential}, nonce=server_nonce)
    client = ScramClient(mechanism, "user", Secret("pencil"), nonce=nonce)
    assert client.first() == f"n,,n=user,r={nonce}".encode()
    challenge = broker.step(client.first())
    assert challenge == f"r={nonce}{server_nonce},s={salt},i=4096".encode()
    proof = client.step(challenge)
    assert proof == f"c=biws,r={nonce}{server_nonce},p={final}".encode()
    answer = broker.step(proof)
    assert answer == f"v={signature}".encode()
    assert client.step(answer) == b""
    assert (broker.user, broker.complete, client.complete) == ("user", True, True)


@pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])
def test_names_with_commas_and_equals_signs(mechanism):
    name = "a=b,c=2C"
    users = {name: make_keys(mechanism, Secret("pass,word="), b"salt", 4096)}
    broker = server(mechanism, users)
    client = ScramClient(mechanism, name, Secret("pass,word="), nonce="client")
    client.step(broker.step(client.step(broker.step(client.first()))))
    assert broker.user == name


@given(st.text())
def test_escaped_names_have_no_separators(name):
    escaped = escape_name(name)
    assert "," not in escaped
    assert unescape_name(escaped) == name


@pytest.mark.parametrize("user", ["alice", "unknown"])
def test_wrong_password_and_unknown_user_look_the_same(user):
    broker = server(SCRAM_SHA_256, {"alice": make_keys(SCRAM_SHA_256, Secret("right"), b"salt" * 4, 4096)})
    client = ScramClient(SCRAM_SHA_256, user, Secret("wrong"), nonce="client")
    challenge = broker.step(client.first())
    assert challenge.startswith(b"r=clientserver,s=")
    assert challenge.endswith(b",i=4096")
    with pytest.raises(InvalidCredentials):
        broker.step(client.step(challenge))
    assert not broker.complete


def test_an_unknown_user_gets_the_same_salt_every_time():
    first = ScramClient(SCRAM_SHA_256, "unknown", Secret("x"), nonce="n").first()
    assert server(SCRAM_SHA_256, {}).step(first) == server(SCRAM_SHA_256, {}).step(first)
    other = ScramClient(SCRAM_SHA_256, "unknown2", Secret("x"), nonce="n").first()
    assert server(SCRAM_SHA_256, {}).step(other) != server(SCRAM_SHA_256, {}).step(first)


def test_cve_2017_12610_the_authorization_id_is_empty_or_the_user():
    users = {"alice": make_keys(SCRAM_SHA_256, Secret("x"), b"salt", 4096)}
    assert server(SCRAM_SHA_256, users).step(b"n,a=alice,n=alice,r=nonce")
    with pytest.raises(LoginRefused, match="different from username"):
        server(SCRAM_SHA_256, users).step(b"n,a=admin,n=alice,r=nonce")


def test_cve_2024_56128_the_final_nonce_is_the_servers():
    users = {"alice": make_keys(SCRAM_SHA_256, Secret("x"), b"salt", 4096)}
    # A proof recorded from another login, whose server had another nonce.
    client = ScramClient(SCRAM_SHA_256, "alice", Secret("x"), nonce="client")
    proof = client.step(server(SCRAM_SHA_256, users, nonce="one").step(client.first()))
    replayed = server(SCRAM_SHA_256, users, nonce="two")
    replayed.step(client.first())
    with pytest.raises(InvalidCredentials, match="nonce"):
        replayed.step(proof)


@pytest.mark.parametrize("iterations", [1, 4095, ANSWER_ITERATIONS_MAX + 1, 999_999_999])
def test_cve_2026_10143_the_client_bounds_iterations(iterations):
    client = ScramClient(SCRAM_SHA_256, "alice", Secret("x"), nonce="client")
    client.first()
    with pytest.raises(InvalidCredentials, match="iterations"):
        client.step(f"r=clientserver,s=c2FsdA==,i={iterations}".encode())


def test_a_server_without_the_keys_is_refused():
    client = ScramClient(SCRAM_SHA_256, "alice", Secret("x"), nonce="client")
    client.first()
    client.step(b"r=clientserver,s=c2FsdA==,i=4096")
    with pytest.raises(InvalidCredentials, match="signature"):
        client.step(b"v=" + base64.b64encode(bytes(32)))
    assert not client.complete


@pytest.mark.parametrize("answer", [b"r=client,s=c2FsdA==,i=4096", b"r=other,s=c2FsdA==,i=4096", b"e=other-error", b""])
def test_the_client_refuses_challenges_that_are_none(answer):
    client = ScramClient(SCRAM_SHA_256, "alice", Secret("x"), nonce="client")
    client.first()
    with pytest.raises(InvalidCredentials):
        client.step(answer)


def test_tokens_log_in_by_an_extension():
    lookups = []

    def look_up(user, token):
        lookups.append((user, token))

    broker = ScramServer(SCRAM_SHA_256, look_up, nonce="s", make_decoy=decoy_maker(SCRAM_SHA_256))
    client = ScramClient(SCRAM_SHA_256, "token-id", Secret("hmac"), nonce="c", token_authentication=True)
    assert client.first() == b"n,,n=token-id,r=c,tokenauth=true"
    broker.step(client.first())
    assert lookups == [("token-id", True)]
    assert broker.token_authentication


@given(st.sampled_from(sorted(SCRAM_MECHANISMS)), st.binary(max_size=200), st.binary(max_size=200))
def test_random_tokens_are_refused_and_nothing_else(name, first, second):
    broker = server(SCRAM_MECHANISMS[name], {})
    with pytest.raises((InvalidCredentials, LoginRefused)):
        [broker.step(token) for token in (first, second)]


def test_credentials_do_not_print_their_keys():
    credential = make_keys(SCRAM_SHA_256, Secret("x"), b"salt", 4096)
    assert repr(credential) == "ScramKeys(iterations=4096)"
