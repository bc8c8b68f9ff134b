"""Registries with HTTPS, passwords and rights, over real brokers."""

import base64
import json
import time
from pathlib import Path

import pytest

from client.certificates import Authority
from harness.inprocess import NodeThread
from klamm.client import Admin
from klamm.client.admin.acl_types import AclBinding
from klamm.http.authfile import format_user
from klamm.http.login import BasicLogin, CertificateLogin, HttpLogins, WatchedAuthFile
from klamm.model.acls import AclOperation, AclResourceType
from klamm.model.errors import ConfigError
from klamm.registry.rights import AclRights, FileRights
from klamm.security.core.principal_mapping import parse_mapping_rules
from klamm.security.core.secret import Secret
from klamm.security.tls import TlsSettings, client_context, server_context
from klamm.testing import unique

from .conftest import running_registry

BODY = {"schema": '"int"'}


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def authfile(tmp_path_factory):
    path = tmp_path_factory.mktemp("auth") / "auth.json"
    permissions = [{"username": "ada", "operation": "Write", "resource": "Subject:orders-.*"}]
    users = [format_user(name, f"{name}'s password", "salt") for name in ("ada", "bob")]
    path.write_text(json.dumps({"users": users, "permissions": permissions}))
    return str(path)


def basic(user):
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{user}'s password".encode()).decode()}


def served(authority, authfile):
    files = authority.issue("registry", "127.0.0.1")
    key, chain = (Secret(Path(path).read_text()) for path in (files.key, files.certificate))
    file = WatchedAuthFile(authfile)
    return {
        "tls": server_context(TlsSettings(keystore_key=key, keystore_chain=chain)),
        "forward_tls": client_context(TlsSettings(truststore_location=str(authority.path))),
        "login": HttpLogins([BasicLogin(file, "registry")]),
        "rights": FileRights(file),
    }


def test_a_follower_forwards_with_the_callers_password_over_https(klamm_broker, authority, authfile):
    topic, group = unique("_schemas"), unique("schema-registry")
    tls = client_context(TlsSettings(truststore_location=str(authority.path)))
    options = {"scheme": "https", "client_tls": tls}
    with (
        running_registry(klamm_broker.bootstrap, topic, group, served=served(authority, authfile), **options) as leader,
        running_registry(
            klamm_broker.bootstrap, topic, group, served=served(authority, authfile), eligible=False, **options
        ) as follower,
    ):
        assert follower.url.startswith("https://")
        path = "/subjects/orders-value/versions"
        assert follower.request("POST", path, BODY)[0] == 401
        assert follower.request("POST", path, BODY, **basic("bob"))[0] == 403
        status, answer = follower.request("POST", path, BODY, **basic("ada"))
        assert (status, answer["id"]) == (200, 1)
        assert leader.request("GET", path, **basic("ada")) == (200, [1])
        assert leader.request("GET", path, **basic("bob"))[0] == 403
        assert follower.request("GET", "/health/ready")[0] == 200


def test_client_certificates_are_principals_beside_passwords(klamm_broker, authority, authfile):
    files = authority.issue("registry", "127.0.0.1")
    key, chain = (Secret(Path(path).read_text()) for path in (files.key, files.certificate))
    file = WatchedAuthFile(authfile)
    trust = str(authority.path)
    settings = TlsSettings(keystore_key=key, keystore_chain=chain, truststore_location=trust, client_auth="requested")
    rules = parse_mapping_rules("RULE:^CN=([a-z]+)$/$1/")
    options = {
        "tls": server_context(settings),
        "login": HttpLogins([BasicLogin(file, "registry")], certificates=CertificateLogin(rules)),
        "rights": FileRights(file),
    }

    def client(name=None):
        if name is None:
            return client_context(TlsSettings(truststore_location=trust))
        own = authority.issue(name)
        key, chain = (Secret(Path(path).read_text()) for path in (own.key, own.certificate))
        return client_context(TlsSettings(keystore_key=key, keystore_chain=chain, truststore_location=trust))

    topic, group = unique("_schemas"), unique("schema-registry")
    path = "/subjects/orders-value/versions"
    with running_registry(klamm_broker.bootstrap, topic, group, scheme="https", served=options) as registry:
        registry.tls = client()
        assert registry.request("POST", path, BODY)[0] == 401
        assert registry.request("POST", path, BODY, **basic("ada"))[0] == 200
        registry.tls = client("ada")
        assert registry.request("POST", path, BODY)[0] == 200
        assert registry.request("GET", path, **basic("bob"))[0] == 403, "credentials win over the certificate"
        registry.tls = client("bob")
        assert registry.request("POST", path, BODY)[0] == 403
        registry.tls = client("Unmapped 7")
        assert registry.request("POST", path, BODY)[0] == 401, "no rule matches its subject"
        assert registry.request("GET", "/health/ready")[0] == 200


AUTHORIZER = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def test_acls_of_the_cluster_count_and_changes_of_them_too(tmp_path, authfile, monkeypatch):
    monkeypatch.setattr("klamm.registry.rights.ACL_REFRESH_S", 0.1)
    with (
        NodeThread(tmp_path, AUTHORIZER, "super.users=User:ANONYMOUS") as node,
        Admin(bootstrap_servers=f"127.0.0.1:{node.port}") as admin,
    ):
        bootstrap = f"127.0.0.1:{node.port}"
        admin.create_acls([AclBinding(AclResourceType.TOPIC, "orders", "User:ada", AclOperation.WRITE)])
        options = {
            "login": HttpLogins([BasicLogin(WatchedAuthFile(authfile), "registry")]),
            "rights": AclRights({"bootstrap.servers": bootstrap}),
        }
        with running_registry(bootstrap, "_schemas", "schema-registry", served=options) as registry:
            path = "/subjects/orders-value/versions"
            assert registry.request("POST", path, BODY, **basic("bob"))[0] == 403
            assert registry.request("POST", path, BODY, **basic("ada"))[0] == 200
            admin.create_acls([AclBinding(AclResourceType.TOPIC, "orders", "User:bob", AclOperation.READ)])
            deadline = time.monotonic() + 60
            while registry.request("GET", path, **basic("bob"))[0] != 200:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert registry.request("POST", path, {"schema": '"long"'}, **basic("bob"))[0] == 403


def test_a_cluster_without_acls_is_refused(klamm_broker):
    options = {"rights": AclRights({"bootstrap.servers": klamm_broker.bootstrap})}
    with (
        pytest.raises(ConfigError, match="no authorizer"),
        running_registry(klamm_broker.bootstrap, unique("_schemas"), unique("sr"), served=options),
    ):
        pass
