"""Signatures of bearer tokens: algorithms, key sets, and forgeries."""

import base64
import hashlib
import hmac
import json
import time

import pytest

from harness.identity_provider import SigningKey, claims_of, key_set
from klamm.security.core.bearer_claims import ClaimRules, InvalidToken, format_unsecured
from klamm.security.token_signatures import UnknownKey, check_signed, parse_key_set

RSA = SigningKey("rsa", "RS256")
EC = SigningKey("ec", "ES256")


def check(token: str, *keys: SigningKey) -> str:
    return check_signed(token, parse_key_set(key_set(*keys)), ClaimRules(), time.time()).subject


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
def test_rsa_keys_verify_six_algorithms(algorithm):
    assert check(RSA.sign(claims_of("alice"), algorithm), RSA, EC) == "alice"


@pytest.mark.parametrize("algorithm", ["ES256", "ES384", "ES512"])
def test_each_curve_verifies_its_own_algorithm(algorithm):
    key = SigningKey("k", algorithm)
    assert check(key.sign(claims_of("alice")), key) == "alice"


def test_the_key_is_the_one_that_the_token_names():
    other = SigningKey("other")
    with pytest.raises(InvalidToken, match="signature"):
        check(EC.sign(claims_of("alice"), kid="other"), EC, other)
    with pytest.raises(UnknownKey):
        check(EC.sign(claims_of("alice"), kid="third"), EC, other)


def test_without_a_key_id_the_only_key_is_taken():
    assert check(EC.sign(claims_of("alice"), kid=None), EC, RSA) == "alice"
    with pytest.raises(UnknownKey):
        check(EC.sign(claims_of("alice"), kid=None), EC, SigningKey("other"))


def sign_by_hmac(key: bytes, key_id: str) -> str:
    def encode(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    header = json.dumps({"alg": "HS256", "kid": key_id}).encode()
    text = f"{encode(header)}.{encode(json.dumps(claims_of('admin')).encode())}"
    return f"{text}.{encode(hmac.digest(key, text.encode(), hashlib.sha256))}"


def test_a_public_key_is_no_secret_of_an_hmac():
    with pytest.raises(InvalidToken, match="HS256"):
        check(sign_by_hmac(RSA.public_pem, "rsa"), RSA)


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE"])
def test_tokens_without_a_signature_are_never_taken(name):
    token = format_unsecured(claims_of("admin"))
    header = base64.urlsafe_b64encode(json.dumps({"alg": name, "kid": "ec"}).encode()).decode().rstrip("=")
    with pytest.raises(InvalidToken, match="algorithm"):
        check(f"{header}.{token.split('.')[1]}.", EC)


def test_changed_claims_and_signatures_are_refused():
    header, _, signature = EC.sign(claims_of("alice")).split(".")
    claims = format_unsecured(claims_of("admin")).split(".")[1]
    for token in (f"{header}.{claims}.{signature}", f"{header}.{claims}."):
        with pytest.raises(InvalidToken, match="signature"):
            check(token, EC)


def test_a_valid_signature_does_not_replace_the_claims():
    with pytest.raises(InvalidToken, match="expired"):
        check(EC.sign(claims_of("alice", -31)), EC)


def test_critical_headers_are_refused():
    with pytest.raises(InvalidToken):
        check(EC.sign(claims_of("alice"), crit=["x"], x=1), EC)


@pytest.mark.parametrize(
    "key_id", ["../../etc/passwd", "file:///dev/zero", "http://127.0.0.1/keys", "' OR 1=1", "ec\0"]
)
def test_a_key_id_is_only_compared(key_id):
    with pytest.raises(UnknownKey):
        check(EC.sign(claims_of("alice"), kid=key_id), EC)


def test_a_token_brings_no_key_of_its_own():
    """RFC 7515 has headers with a key, or its address: a token that is verified with them proves nothing."""
    forger = SigningKey("ec")
    for header in (
        {"jwk": forger.public},
        {"jku": "http://127.0.0.1:1/keys"},
        {"x5u": "http://127.0.0.1:1/certificate"},
        {"x5c": ["MIIB"]},
    ):
        with pytest.raises(InvalidToken, match="signature"):
            check(forger.sign(claims_of("admin"), kid="ec", **header), EC)
        with pytest.raises(UnknownKey):
            check(forger.sign(claims_of("admin"), kid="forged", **header), EC)


def test_an_algorithm_of_the_key_excludes_others():
    keys = json.dumps({"keys": [{**RSA.public, "alg": "PS256"}]}).encode()
    token = RSA.sign(claims_of("alice"), "RS256")
    with pytest.raises(UnknownKey):
        check_signed(token, parse_key_set(keys), ClaimRules(), time.time())


def test_keys_of_other_kinds_are_passed_over():
    entries = [
        None,
        {"kty": "oct", "k": "AAAA", "kid": "a"},
        {"kty": "EC", "crv": "P-256", "x": "no", "y": "point", "kid": "b"},
        {"kty": "EC", "crv": ["P-256"], "kid": "c"},
        {**EC.public, "use": "enc", "kid": "d"},
        SigningKey("e", "RS256", bits=1024).public,
        EC.public,
    ]
    keys = parse_key_set(json.dumps({"keys": entries}).encode())
    assert [key.key_id for key in keys.keys] == ["ec"]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"keys": 1}', b'{"keys": []}', b"[" * 100_000, b"\xff"])
def test_what_is_no_key_set(data):
    with pytest.raises(ValueError, match="key"):
        parse_key_set(data)
