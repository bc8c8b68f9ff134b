"""The Python client on SASL listeners: names of Java and of librdkafka, refusals, logins that are renewed."""

import asyncio
from pathlib import Path

import pytest

from client.certificates import Authority
from harness.inprocess import NodeThread
from harness.wire import unique
from klamm.client import Admin, AsyncProducer, AuthenticationError, Consumer, Producer
from klamm.client.admin.acl_types import ScramMechanism
from klamm.client.blocking_cluster import BlockingCluster
from klamm.client.client_settings import admin_settings
from klamm.client.login import client_credentials
from klamm.client.tls import tls_context
from klamm.model.errors import ConfigError

PASSWORD = 'pass"word\\, =;'
ESCAPED = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="{ESCAPED}";'
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
SESSION_MS = 3000


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def node(tmp_path_factory, authority):
    folder = tmp_path_factory.mktemp("keystore")
    files = authority.issue("broker", "127.0.0.1")
    keystore = folder / "keystore.pem"
    keystore.write_text(Path(files.key).read_text() + Path(files.certificate).read_text())
    names = {"CLIENTS": "SASL_PLAINTEXT", "SECURE": "SASL_SSL", "SHORT": "SASL_PLAINTEXT", "TLS": "SSL"}
    overrides = (
        "listeners=PLAINTEXT://127.0.0.1:0,"
        + "".join(f"{name}://127.0.0.1:0," for name in names)
        + "CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        + ",".join(f"{name}:{protocol}" for name, protocol in names.items()),
        f"sasl.enabled.mechanisms={','.join(MECHANISMS)}",
        f"sasl.jaas.config={JAAS}",
        f"listener.name.short.connections.max.reauth.ms={SESSION_MS}",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={keystore}",
        "connection.failed.authentication.delay.ms=0",
    )
    with NodeThread(tmp_path_factory.mktemp("node"), *overrides) as running:
        with Admin(bootstrap_servers=f"127.0.0.1:{running.port}") as admin:
            for mechanism in ScramMechanism:
                admin.alter_user_scram_credentials({("alice", mechanism): PASSWORD})
        yield running


def at(node, listener: str, **settings: str) -> dict[str, str]:
    protocol = {"SECURE": "SASL_SSL", "TLS": "SSL"}.get(listener, "SASL_PLAINTEXT")
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return {
        "bootstrap.servers": f"127.0.0.1:{node.node.addresses[listener][1]}",
        "security.protocol": protocol,
        **named,
    }


def round_trip(settings: dict[str, str]) -> None:
    topic = unique()
    with Producer(settings) as producer:
        producer.send(topic, b"value").result(30)
    with Consumer({**settings, "group.id": unique(), "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        records = []
        while not records:
            records = list(consumer.poll(30))
        assert [record.value for record in records] == [b"value"]
    with Admin(settings) as admin:
        assert topic in {listing.name for listing in admin.list_topics()}
    with BlockingCluster(settings["bootstrap.servers"], settings=settings) as cluster:
        assert cluster.broker_ids == [1]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("listener", ["CLIENTS", "SECURE"])
def test_user_and_password(node, authority, mechanism, listener):
    trust = {"ssl_ca_location": authority.path} if listener == "SECURE" else {}
    round_trip(at(node, listener, sasl_mechanism=mechanism, sasl_username="alice", sasl_password=PASSWORD, **trust))


def test_settings_of_a_java_client(node, authority):
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas = f'{module} required username="alice" password="{ESCAPED}";'
    settings = at(node, "SECURE", sasl_mechanism="SCRAM-SHA-512")
    settings |= {
        "sasl.jaas.config": jaas,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": Path(authority.path).read_text(),
    }
    round_trip(settings)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_raised_at_once(node, mechanism):
    settings = at(node, "CLIENTS", sasl_mechanism=mechanism, sasl_username="alice", sasl_password="wrong")
    with pytest.raises(AuthenticationError, match=r"refuses the login as alice: Authentication failed") as caught:
        Admin(settings)
    assert "wrong" not in str(caught.value)
    with pytest.raises(AuthenticationError, match="refuses the login as alice"):
        BlockingCluster(settings["bootstrap.servers"], settings=settings)


def test_a_mechanism_that_is_not_enabled(node):
    address = f"127.0.0.1:{node.port}"
    settings = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "x",
    }
    with pytest.raises(AuthenticationError, match="begins no login"):
        Admin(settings)


def test_a_login_is_renewed_on_the_open_connection(node):
    settings = at(node, "SHORT", sasl_mechanism="SCRAM-SHA-256", sasl_username="alice", sasl_password=PASSWORD)
    topic = unique()

    async def main() -> int:
        async with AsyncProducer(settings) as producer:
            await producer.send(topic, b"first")
            connections = set(producer.cluster._connections.values())
            loop = asyncio.get_running_loop()
            until = loop.time() + 1.4 * SESSION_MS / 1000
            count = 1
            while loop.time() < until:
                await producer.send(topic, b"value")
                count += 1
            # Neither closed by the broker nor replaced.
            assert [connection.closed for connection in connections] == [None] * len(connections)
            assert connections <= set(producer.cluster._connections.values())
            return count

    count = asyncio.run(main())
    with Admin(bootstrap_servers=f"127.0.0.1:{node.port}") as admin:
        assert count > 3
        assert topic in {listing.name for listing in admin.list_topics()}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, r"needs sasl\.mechanism; write one of PLAIN"),
        ({"sasl.mechanism": "GSSAPI"}, r"sasl\.mechanism=GSSAPI is not supported"),
        ({"sasl.mechanism": "PLAIN"}, "needs a password"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "a"}, "needs a password"),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": "M"}, "must be followed by"),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": "M required;"}, "PLAIN needs PlainLoginModule"),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": "PlainLoginModule required username=a;"},
            "has no username or no password",
        ),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": "x", "sasl.username": "a"}, "say the same thing"),
    ],
)
def test_settings_that_are_missing(settings, words):
    known = admin_settings({"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", **settings}, {})
    with pytest.raises(ConfigError, match=words):
        client_credentials(known)


def test_two_kinds_of_stores_exclude_each_other(authority):
    settings = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SSL",
        "ssl.ca.location": authority.path,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority.path,
    }
    with pytest.raises(ConfigError, match="exclude each other"):
        tls_context(admin_settings(settings, {}))
