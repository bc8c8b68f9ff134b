"""Clients of a registry with HTTPS: tokens, certificates and authorities of commands, proxies and serializers."""

import contextlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from client.certificates import Authority
from klamm.cli.main import cli
from klamm.http.login import CertificateLogin, HttpLogins
from klamm.model.errors import ConfigError
from klamm.registry.client import Registry, parse_settings
from klamm.registry.serializers import AvroSerializer
from klamm.security.core.principal import Principal
from klamm.security.core.principal_mapping import parse_mapping_rules
from klamm.security.core.secret import Secret
from klamm.security.tls import TlsSettings, client_context, server_context
from klamm.telemetry.log import Level, configure
from klamm.testing import unique
from rest.test_secured_proxy import call, running

from .conftest import running_registry

AVRO_V2 = "application/vnd.kafka.avro.v2+json"


class TokenLogin:
    """Takes one token, which a test may change."""

    name = "bearer"
    challenge = "Bearer"

    def __init__(self, token):
        self.token = token

    async def authenticate(self, credentials):
        return Principal("User", "proxy") if credentials == self.token else None


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


def server_tls(authority, **more):
    files = authority.issue("registry", "127.0.0.1")
    key, chain = (Secret(Path(path).read_text()) for path in (files.key, files.certificate))
    return server_context(TlsSettings(keystore_key=key, keystore_chain=chain, **more))


@contextlib.contextmanager
def secured_registry(broker, authority, login, **more):
    options = {"tls": server_tls(authority, **more), "login": login}
    topic, group = unique("_schemas"), unique("schema-registry")
    with running_registry(broker.bootstrap, topic, group, scheme="https", served=options) as registry:
        registry.tls = client_context(TlsSettings(truststore_location=str(authority.path)))
        yield registry


@pytest.fixture(scope="module")
def tokens():
    return TokenLogin("a-token")


@pytest.fixture(scope="module")
def registry(klamm_broker, authority, tokens):
    with secured_registry(klamm_broker, authority, HttpLogins([tokens])) as running_one:
        yield running_one


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text("a-token\n")
    return path


@pytest.fixture
def topic(klamm_topic):
    return klamm_topic


@pytest.fixture
def run():
    def invoke(*args, code=0, given=None, **env):
        result = CliRunner().invoke(cli, args, input=given, env=env)
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.output

    configure(Level.WARNING)
    yield invoke
    configure()


def test_a_proxy_logs_in_to_an_https_registry_with_a_token(klamm_broker, registry, authority, token_file, topic):
    options = ("--registry-url", registry.url, "--registry-ca", str(authority.path))
    login = ("--registry-token-file", str(token_file))
    body = {"value_schema": '"string"', "records": [{"value": "tea"}]}
    with running("rest", "-b", klamm_broker.bootstrap, "--port", "0", *options, *login) as url:
        status, answer = call(url, f"/topics/{topic}", body, content_type=AVRO_V2)
        assert (status, answer["offsets"][0]["offset"]) == (200, 0), answer
    with running("rest", "-b", klamm_broker.bootstrap, "--port", "0", *options) as url:
        status, answer = call(url, f"/topics/{topic}", body, content_type=AVRO_V2)
        assert status >= 400, answer


def test_a_token_file_is_read_again_when_the_token_is_replaced(registry, authority, tokens, token_file):
    settings = {"url": registry.url, "ssl.ca.location": str(authority.path), "bearer.auth.token.file": str(token_file)}
    serializer = AvroSerializer(settings, '"string"')
    assert serializer.serialize(unique("t"), "tea") is not None
    try:
        tokens.token = "another"
        token_file.write_text("another")
        assert serializer.serialize(unique("t"), "tea") is not None
    finally:
        tokens.token = "a-token"


def test_commands_take_a_token_of_a_file_or_the_environment(run, registry, authority, token_file, klamm_broker, topic):
    where = ("--registry", registry.url, "--registry-ca", str(authority.path))
    assert "401" in run("schema", "ls", *where, code=1)
    assert run("schema", "ls", *where, "--registry-token-file", str(token_file)) is not None
    assert run("schema", "ls", *where, KLAMM_REGISTRY_TOKEN="a-token") is not None
    login = (*where, "--registry-token-file", str(token_file))
    run("schema", "put", f"{topic}-value", "-", *login, given='"string"')
    run("produce", topic, "--value", "registry", *login, "-b", klamm_broker.bootstrap, given='"tea"\n')
    consumed = run("consume", topic, "--value", "registry", *login, "-b", klamm_broker.bootstrap, "-f", "%v\\n")
    assert consumed == '"tea"\n'


def test_logins_of_a_command_exclude_each_other(run, token_file, tmp_path):
    both = ("--registry-user", "ada:secret", "--registry-token-file", str(token_file))
    assert "exclude each other" in run("schema", "ls", *both, code=2)
    assert "cannot be read" in run("schema", "ls", "--registry-token-file", str(tmp_path / "none"), code=1)
    assert "ssl.certificate.location" in run("schema", "ls", "--registry-key", str(token_file), code=1)


def test_a_token_file_without_a_token_is_refused(tmp_path):
    empty = tmp_path / "empty"
    empty.write_text("\n")
    with pytest.raises(ConfigError, match="has no token"):
        Registry(parse_settings({"url": "http://127.0.0.1:1", "bearer.auth.token.file": str(empty)})).latest("s")


def test_commands_and_proxies_log_in_with_a_certificate(run, klamm_broker, authority, topic):
    login = HttpLogins([], certificates=CertificateLogin(parse_mapping_rules("")))
    trust = str(authority.path)
    files = authority.issue("ada")
    with secured_registry(
        klamm_broker, authority, login, truststore_location=trust, client_auth="required"
    ) as certified:
        where = ("--registry-ca", trust)
        own = ("--registry-cert", str(files.certificate), "--registry-key", str(files.key))
        put = ("schema", "put", f"{topic}-value", "-", "--registry", certified.url, *where)
        run(*put, given='"string"', code=5)
        run(*put, *own, given='"string"')
        options = ("--registry-url", certified.url, *where, *own)
        body = {"value_schema": '"string"', "records": [{"value": "tea"}]}
        with running("rest", "-b", klamm_broker.bootstrap, "--port", "0", *options) as url:
            assert call(url, f"/topics/{topic}", body, content_type=AVRO_V2)[0] == 200


@pytest.mark.parametrize("client_auth", [False, True])
def test_the_proxy_of_services_trusts_its_own_registry(klamm_broker, authority, topic, client_auth):
    files = authority.issue("services", "127.0.0.1")
    tls = client_context(TlsSettings(truststore_location=str(authority.path)))
    options = [
        *("--server-tls-certfile", str(files.certificate), "--server-tls-keyfile", str(files.key)),
        *("--server-tls-cafile", str(authority.path)),
        *("--topic", unique("_schemas"), "--group", unique("schema-registry")),
    ]
    if client_auth:
        options += ["--ssl-client-auth", "required", "--ssl-truststore-location", str(authority.path)]
        options += ["--authorizer", "none"]
        key, chain = (Secret(Path(path).read_text()) for path in (files.key, files.certificate))
        settings = TlsSettings(keystore_key=key, keystore_chain=chain, truststore_location=str(authority.path))
        tls = client_context(settings)
    body = {"value_schema": '"string"', "records": [{"value": "tea"}]}
    with running("services", "-b", klamm_broker.bootstrap, "--port", "0", "--rest-port", "0", *options) as url:
        status, answer = call(url, f"/topics/{topic}", body, tls=tls, content_type=AVRO_V2)
        assert (status, answer["offsets"][0]["offset"]) == (200, 0), answer


def test_services_with_logins_need_one_for_the_proxy(run, tmp_path):
    authfile = tmp_path / "auth.json"
    authfile.write_text(json.dumps({"users": [], "permissions": []}))
    refused = run("services", "-b", "127.0.0.1:1", "--authfile", str(authfile), code=2)
    assert "--registry-user" in refused
    assert "--registry-token-file" in refused


def test_the_environment_is_no_login_beside_another_one(run, registry, authority, token_file):
    where = ("--registry", registry.url, "--registry-ca", str(authority.path))
    run("schema", "ls", *where, "--registry-token-file", str(token_file), KLAMM_REGISTRY_USER="ada:wrong")
