"""Tokens in exchange for assertions (KIP-1139): what is signed, what an identity provider accepts, what is refused."""

import json

import jwt
import pytest

from harness.identity_provider import JWT_BEARER, IdentityProvider, SigningKey
from klamm.model.errors import ConfigError
from klamm.security.bearer_credentials import read_bearer_credentials
from klamm.security.bearer_tokens import BearerCredentials, TokenUnavailable
from klamm.security.core.bearer_claims import split_token
from klamm.security.core.oauthbearer import parse_bearer
from klamm.security.token_assertions import AssertionSigner

URL = "sasl.oauthbearer.token.endpoint.url"
ASSERTION = "sasl.oauthbearer.assertion."
JAVA = {"sasl.oauthbearer.jwt.retriever.class": "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"}
LIBRDKAFKA = {"sasl.oauthbearer.grant.type": JWT_BEARER}
PASSWORD = "key-password"


@pytest.fixture(scope="module")
def provider():
    with IdentityProvider() as running:
        yield running


@pytest.fixture(scope="module", params=["RS256", "ES256"])
def client_key(request):
    return SigningKey("orders", request.param)


def read(settings: dict[str, object]) -> BearerCredentials:
    return read_bearer_credentials(settings.get, None)


def settings_of(provider: IdentityProvider, key: SigningKey, path, password: str | None = None) -> dict[str, object]:
    provider.client_keys["orders"] = key.public_pem
    path.write_bytes(key.private_pem(password.encode() if password else None))
    return {
        URL: provider.token_url,
        f"{ASSERTION}private.key.file": str(path),
        f"{ASSERTION}algorithm": key.algorithm,
        f"{ASSERTION}claim.iss": "orders",
        f"{ASSERTION}claim.sub": "alice",
        f"{ASSERTION}claim.aud": provider.token_url,
        **({f"{ASSERTION}private.key.passphrase": password} if password else {}),
    }


@pytest.mark.parametrize("names", [JAVA, LIBRDKAFKA], ids=["Java", "librdkafka"])
@pytest.mark.parametrize("password", [None, PASSWORD], ids=["plain key", "encrypted key"])
def test_a_signed_assertion_is_exchanged_for_a_token(provider, client_key, tmp_path, names, password):
    settings = {**settings_of(provider, client_key, tmp_path / "key.pem", password), **names}
    settings["sasl.oauthbearer.scope"] = "kafka"
    credentials = read(settings)
    credentials.refresh_blocking()
    assert split_token(parse_bearer(credentials.begin().first()).token.reveal()).claims["sub"] == "alice"
    assert provider.forms[-1]["scope"] == "kafka"
    assert credentials.user == "alice"
    assert PASSWORD not in repr(credentials)


def test_an_assertion_of_another_key_is_refused(provider, client_key, tmp_path):
    settings = settings_of(provider, client_key, tmp_path / "key.pem")
    (tmp_path / "key.pem").write_bytes(SigningKey("other", client_key.algorithm).private_pem())
    with pytest.raises(TokenUnavailable, match="answers 400"):
        read({**settings, **JAVA}).refresh_blocking()


def test_an_assertion_of_a_file_is_read_again(provider, client_key, tmp_path):
    settings = settings_of(provider, client_key, tmp_path / "key.pem")
    signer = AssertionSigner(
        str(tmp_path / "key.pem"),
        None,
        client_key.algorithm,
        {"iss": "orders", "sub": "bob", "aud": provider.token_url},
    )
    path = tmp_path / "assertion"
    path.write_text(signer() + "\n")
    credentials = read({URL: settings[URL], f"{ASSERTION}file": str(path), **JAVA})
    credentials.refresh_blocking()
    assert split_token(parse_bearer(credentials.begin().first()).token.reveal()).claims["sub"] == "bob"


def test_claims_of_settings_replace_those_of_the_template(client_key, tmp_path):
    (tmp_path / "key.pem").write_bytes(client_key.private_pem())
    template = {"header": {"kid": "7"}, "payload": {"sub": "template", "tenant": "shop", "iat": 1, "exp": 2}}
    (tmp_path / "template.json").write_text(json.dumps(template))
    signer = AssertionSigner(
        str(tmp_path / "key.pem"), None, client_key.algorithm, {"sub": "alice"}, 100, 10, True,
        str(tmp_path / "template.json"),
    )  # fmt: skip
    first, second = signer(), signer()
    claims = jwt.decode(first, client_key.public_pem, [client_key.algorithm])
    assert jwt.get_unverified_header(first)["kid"] == "7"
    assert (claims["sub"], claims["tenant"]) == ("alice", "shop")
    assert claims["exp"] - claims["iat"] == 100
    assert claims["iat"] - claims["nbf"] == 10
    assert claims["jti"] != jwt.decode(second, client_key.public_pem, [client_key.algorithm])["jti"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "private.key.file with the key that signs it"),
        ({f"{ASSERTION}private.key.file": "k", f"{ASSERTION}algorithm": "HS256"}, "write one of RS256, ES256"),
    ],
)
def test_settings_without_an_assertion_are_refused(settings, reason):
    with pytest.raises(ConfigError, match=reason):
        read({URL: "https://login.example.com/token", **JAVA, **settings})


@pytest.mark.parametrize("content", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----"])
def test_a_file_that_is_no_key_is_named(tmp_path, content):
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"key\.pem cannot be read as a private key"):
        AssertionSigner(str(path))()


def test_a_wrong_password_is_not_printed(client_key, tmp_path):
    path = tmp_path / "key.pem"
    path.write_bytes(client_key.private_pem(b"right"))
    settings = {URL: "http://127.0.0.1:1/token", f"{ASSERTION}private.key.file": str(path), **JAVA}
    with pytest.raises(TokenUnavailable) as refusal:
        read({**settings, f"{ASSERTION}private.key.passphrase": PASSWORD}).refresh_blocking()
    assert PASSWORD not in str(refusal.value)
    assert "key.pem" in str(refusal.value)


@pytest.mark.parametrize("text", ["[]", "{", '{"payload": 5}'])
def test_a_template_that_is_none_is_named(client_key, tmp_path, text):
    (tmp_path / "key.pem").write_bytes(client_key.private_pem())
    (tmp_path / "template.json").write_text(text)
    signer = AssertionSigner(
        str(tmp_path / "key.pem"), None, client_key.algorithm, template_path=str(tmp_path / "template.json")
    )
    with pytest.raises(ConfigError, match="is no template of an assertion"):
        signer()
