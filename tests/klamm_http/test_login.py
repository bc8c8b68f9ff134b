"""Logins of HTTP services: passwords of a file, signed tokens, and client certificates."""

import asyncio
import base64
import json
import os
import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner

from client.certificates import Authority
from harness.identity_provider import SigningKey, claims_of, key_set
from klamm.cli.main import cli
from klamm.http.authfile import format_user, hash_password, parse_auth_file
from klamm.http.login import BasicLogin, BearerLogin, CertificateLogin, HttpLogins, WatchedAuthFile
from klamm.http.refusals import HttpRefusal
from klamm.model.clock import SystemClock
from klamm.model.errors import ConfigError
from klamm.security.core.bearer_claims import ClaimRules
from klamm.security.core.principal_mapping import parse_mapping_rules
from klamm.security.http import HttpSettings
from klamm.security.key_store import KeySource, KeyStore
from klamm.telemetry import configure

KARAPACE = [
    # From the test configuration of Karapace 6 (Apache-2.0): user, algorithm, salt, hash, password.
    (
        "admin",
        "scrypt",
        "adminsalt",
        "AG7+ttm/skHjqEZ90yzEkgjy75yaqoucNnQPIP2S++1rYOPXEtm4+AF7WdDGj+J0sIPFdYC9nXYsvkB1xYDYkw==",
        "admin",
    ),
    (
        "aladdin",
        "sha512",
        "salt",
        "uofa7Uw+IolY0GDeCQApTVAUPlBthFYPFQ+QN+kKtXBzSwddiyLrNnIC2UQcA5X+hCL/mHNNqEMA30oIM4oqxA==",
        "opensesame",
    ),
    ("reader", "sha1", "third-salt", "SeUTCvKCE8rj6lHFkyFkhopktuY=", "secret"),
]


@pytest.mark.parametrize(("user", "algorithm", "salt", "password_hash", "password"), KARAPACE)
def test_hashes_are_those_of_karapace(user, algorithm, salt, password_hash, password):
    assert hash_password(algorithm, salt, password) == password_hash
    entry = {"username": user, "algorithm": algorithm, "salt": salt, "password_hash": password_hash}
    contents = parse_auth_file(json.dumps({"users": [entry]}), "f")
    assert contents.users[user].verify(password)
    assert not contents.users[user].verify(password + "x")


def test_write_includes_read_and_names_match_from_the_start():
    permissions = [
        {"username": "ada", "operation": "Write", "resource": "Subject:orders-.*"},
        {"username": "bob", "operation": "Read", "resource": "Subject:orders-.*"},
    ]
    contents = parse_auth_file(json.dumps({"permissions": permissions}), "f")
    assert contents.allows("ada", "Read", "Subject:orders-value")
    assert contents.allows("ada", "Write", "Subject:orders-value")
    assert contents.allows("bob", "Read", "Subject:orders-value")
    assert not contents.allows("bob", "Write", "Subject:orders-value")
    assert not contents.allows("ada", "Read", "Subject:my-orders-value")
    assert not contents.allows("eve", "Read", "Subject:orders-value")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ({"users": {}}, "users is not a list"),
        ({"users": [{"username": "a"}]}, "no algorithm"),
        ({"users": [{"username": "a", "algorithm": "md5", "salt": "s", "password_hash": "h"}]}, "algorithm md5"),
        ({"users": [{"username": "a:b", "algorithm": "scrypt", "salt": "s", "password_hash": "h"}]}, "colon"),
        ({"permissions": [{"username": "a", "operation": "All", "resource": "x"}]}, "operation All"),
        ({"permissions": [{"username": "a", "operation": "Read", "resource": "("}]}, "regular expression"),
    ],
)
def test_mistakes_of_a_file_are_named(document, words):
    text = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(ConfigError, match=words):
        parse_auth_file(text, "f")


def write_users(path, **passwords):
    users = [format_user(name, password, "salt") for name, password in passwords.items()]
    path.write_text(json.dumps({"users": users}))


def basic(user, password):
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def log_in(login, headers, certificate=None):
    async def run():
        return str(await login.authenticate(headers, "127.0.0.1", certificate))

    try:
        return asyncio.run(run())
    except HttpRefusal as refusal:
        return refusal.status


def test_passwords_are_verified_and_changes_of_the_file_count(tmp_path):
    path = tmp_path / "users.json"
    write_users(path, ada="one")
    file = WatchedAuthFile(str(path))
    login = HttpLogins([BasicLogin(file, "test")])
    assert log_in(login, basic("ada", "one")) == "User:ada"
    assert log_in(login, basic("ada", "two")) == 401
    assert log_in(login, basic("bob", "one")) == 401
    write_users(path, ada="two!")
    file._checked_at -= 10
    # The old password was remembered as verified; the changed file ends that.
    assert log_in(login, basic("ada", "one")) == 401
    assert log_in(login, basic("ada", "two!")) == "User:ada"
    path.write_text("{")
    file._checked_at -= 10
    assert log_in(login, basic("ada", "two!")) == "User:ada"


def test_a_password_is_hashed_once(tmp_path, monkeypatch):
    path = tmp_path / "users.json"
    write_users(path, ada="one")
    login = HttpLogins([BasicLogin(WatchedAuthFile(str(path)), "test")])
    assert log_in(login, basic("ada", "one")) == "User:ada"
    monkeypatch.setattr("klamm.http.authfile.hash_password", None)
    assert log_in(login, basic("ada", "one")) == "User:ada"


@pytest.mark.parametrize("header", ["", "Basic", "Basic !", "Basic YQ==", "Basic OmI=", "Digest x", "Bearer x"])
def test_other_headers_are_refused(tmp_path, header):
    path = tmp_path / "users.json"
    write_users(path, ada="one")
    login = HttpLogins([BasicLogin(WatchedAuthFile(str(path)), "test")])
    assert log_in(login, {"authorization": header}) == 401


def test_a_file_that_is_missing_fails_at_the_start(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        WatchedAuthFile(os.fspath(tmp_path / "none"))


def test_tokens_are_verified(tmp_path):
    key, other = SigningKey("k"), SigningKey("k")
    keys = tmp_path / "keys.json"
    keys.write_bytes(key_set(key))
    store = KeyStore(KeySource(keys.as_uri(), HttpSettings(), 1000, 100, 1000), SystemClock())
    login = HttpLogins([BearerLogin(store, ClaimRules(audiences=("registry",)), "test")], store)
    claims = claims_of("alice") | {"aud": "registry"}
    assert log_in(login, {"authorization": f"Bearer {key.sign(claims)}"}) == "User:alice"
    assert log_in(login, {"authorization": f"Bearer {other.sign(claims)}"}) == 401
    assert log_in(login, {"authorization": f"Bearer {key.sign(claims_of('alice'))}"}) == 401
    assert log_in(login, {"authorization": f"Bearer {key.sign(claims | {'exp': 1})}"}) == 401


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """The certificate of CN=ada, in DER."""
    files = Authority(tmp_path_factory.mktemp("authority")).issue("ada")
    return ssl.PEM_cert_to_DER_cert(Path(files.certificate).read_text())


@pytest.mark.parametrize(
    ("rules", "principal"),
    [("", "User:CN=ada"), ("RULE:^CN=(.*)$/$1/U", "User:ADA"), ("RULE:^O=(.*)$/$1/", 401)],
)
def test_subjects_of_certificates_are_mapped_as_in_kafka(certificate, rules, principal):
    login = HttpLogins([], certificates=CertificateLogin(parse_mapping_rules(rules)))
    assert log_in(login, {}, certificate) == principal
    assert log_in(login, {}, certificate) == principal, "also when it is remembered"
    assert log_in(login, {}) == 401


def test_credentials_win_over_a_certificate(tmp_path, certificate):
    path = tmp_path / "users.json"
    write_users(path, bob="one")
    schemes = [BasicLogin(WatchedAuthFile(str(path)), "test")]
    login = HttpLogins(schemes, certificates=CertificateLogin(parse_mapping_rules("")))
    assert log_in(login, basic("bob", "one"), certificate) == "User:bob"
    assert log_in(login, basic("bob", "two"), certificate) == 401
    assert log_in(login, {}, certificate) == "User:CN=ada"
    assert log_in(HttpLogins(schemes), {}, certificate) == 401, "certificates are not taken there"


def test_a_certificate_that_cannot_be_read_is_refused():
    assert log_in(HttpLogins([], certificates=CertificateLogin(parse_mapping_rules(""))), {}, b"0") == 401


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--ssl-client-auth", "required"], "--ssl-client-auth needs --server-tls-certfile"),
        (["--ssl-principal-mapping-rules", "DEFAULT"], "are for client certificates"),
    ],
)
def test_options_of_certificates_belong_together(words, complaint):
    for command in ("registry", "rest", "services"):
        result = CliRunner().invoke(cli, [command, "-b", "127.0.0.1:1", *words], prog_name="klamm")
        assert result.exit_code == 2
        assert complaint in result.stderr
    configure()
