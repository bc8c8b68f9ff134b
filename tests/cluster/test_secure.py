"""Three nodes that speak to each other, and to clients, over TLS and with passwords only."""

import ssl
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from client.certificates import Authority
from harness.cluster import KlammCluster
from harness.identity_provider import IdentityProvider
from harness.wire import unique
from klamm.cli.main import cli
from klamm.server.boot.first_records import parse_scram_credential, write_first_records
from klamm.server.login.bearer_settings import ALLOWED_URLS
from klamm.storage.disk import Disk

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
CREDENTIALS = ("SCRAM-SHA-512=[name=broker,password=between-brokers]", "SCRAM-SHA-512=[name=alice,password=secret]")


class SecureCluster(KlammCluster):
    """A cluster without a plaintext listener."""

    settings: dict[str, str]

    def _wait_acquainted(self) -> None:
        """Wait until a client sees every node."""
        admin = AdminClient(self.settings)
        deadline = time.monotonic() + 60
        while len(admin.list_topics(timeout=30).brokers) < len(self.nodes):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def overrides(tmp_path, authority):
    files = authority.issue("node", "127.0.0.1", "localhost")
    keystore = tmp_path / "keystore.pem"
    keystore.write_text(Path(files.key).read_text() + Path(files.certificate).read_text())
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority.path,
    }


def produce_and_consume(settings: dict[str, object], count: int = 500) -> None:
    topic = unique()
    producer = Producer({**settings, "acks": "all", "message.timeout.ms": 60_000})
    for number in range(count):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(60) == 0
    consumer = Consumer({**settings, "group.id": unique(), "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values = []
    while len(values) < count:
        message = consumer.poll(60)
        assert message is not None, f"{len(values)} of {count}"
        if message.error() is None:
            values.append(int(message.value()))
    consumer.close()
    assert sorted(values) == list(range(count))


def test_passwords_over_tls_between_nodes(tmp_path, authority, overrides):
    overrides |= {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:SASL_SSL",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": (
            f'{PLAIN} username="node" password="among-nodes" user_node="among-nodes";'
        ),
        "listener.name.plaintext.scram-sha-512.sasl.jaas.config": (
            f'{SCRAM} username="broker" password="between-brokers";'
        ),
        # Short, so that nodes log in to each other again and again.
        "connections.max.reauth.ms": "2000",
    }
    cluster = SecureCluster(tmp_path / "nodes", overrides=overrides)
    records = [parse_scram_credential(text) for text in CREDENTIALS]
    for planned in cluster.planned:
        write_first_records(Disk(), str(Path(planned.folder) / "data"), records, 0)
    cluster.settings = settings = {
        "bootstrap.servers": ",".join(node.address for node in cluster.planned),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "secret",
        "ssl.ca.location": authority.path,
    }
    with cluster:
        produce_and_consume(settings)
        cluster.nodes[0].kill9()
        produce_and_consume(settings)
        cluster.nodes[0].start()
        produce_and_consume(settings)


@pytest.mark.long
def test_tokens_over_https_between_nodes(tmp_path, authority, overrides, monkeypatch):
    """Nodes and clients fetch tokens and keys over HTTPS; tokens expire while the cluster runs."""
    monkeypatch.setenv("SSL_CERT_FILE", authority.path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(overrides["ssl.keystore.location"])
    with IdentityProvider(tls) as provider:
        provider.lifetime_s = 8.0
        overrides |= {
            "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:SASL_SSL",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            "sasl.mechanism.controller.protocol": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": provider.keys_url,
            "sasl.oauthbearer.token.endpoint.url": provider.token_url,
            "sasl.oauthbearer.client.credentials.client.id": "node",
            "sasl.oauthbearer.client.credentials.client.secret": "node-secret",
            ALLOWED_URLS: f"{provider.keys_url},{provider.token_url}",
        }
        cluster = SecureCluster(tmp_path / "nodes", overrides=overrides)
        cluster.settings = settings = {
            "bootstrap.servers": ",".join(node.address for node in cluster.planned),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": provider.token_url,
            "sasl.oauthbearer.client.id": "alice",
            "sasl.oauthbearer.client.secret": "alice-secret",
            "https.ca.location": authority.path,
            "ssl.ca.location": authority.path,
        }
        with cluster:
            produce_and_consume(settings)
            issued = provider.tokens_issued
            deadline = time.monotonic() + 60
            while provider.tokens_issued < issued + 3:  # the nodes' tokens have expired, and been replaced
                assert time.monotonic() < deadline
                time.sleep(0.1)
            cluster.nodes[0].kill9()
            produce_and_consume(settings)


def test_certificates_between_nodes(tmp_path, authority, overrides):
    overrides |= {
        "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:SSL",
        "ssl.client.auth": "required",
    }
    client = authority.issue("client")
    cluster = SecureCluster(tmp_path / "nodes", overrides=overrides)
    cluster.settings = settings = {
        "bootstrap.servers": ",".join(node.address for node in cluster.planned),
        "security.protocol": "SSL",
        "ssl.ca.location": authority.path,
        "ssl.certificate.location": client.certificate,
        "ssl.key.location": client.key,
    }
    with cluster:
        produce_and_consume(settings)
    log = next(Path(cluster.planned[0].folder).rglob("__cluster_metadata-0/*.log"))
    dumped = CliRunner().invoke(cli, ["kafka-dump-log", "--cluster-metadata-decoder", "--files", str(log)])
    registrations = [line for line in dumped.stdout.splitlines() if "REGISTER_CONTROLLER_RECORD" in line]
    assert registrations
    assert all('"securityProtocol":1' in line for line in registrations), "a controller is registered with SSL"
