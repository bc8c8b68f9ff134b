"""security.protocol=SSL: everything works through TLS, and whom a client does not believe, it does not speak to."""

import ssl

import pytest

from client.certificates import Authority
from client.lying_broker import LyingBroker
from client.tls_proxy import TlsProxy
from harness import KlammProcess, unique
from harness.client_stories import PATIENCE_S, read, reader
from klamm.client import Admin, Producer, TopicPartition
from klamm.client.errors import DisconnectedError
from klamm.model.errors import ConfigError


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def proxy(authority, tmp_path_factory):
    """A Klamm node that is reached by TLS alone; client certificates are asked for, and checked when they come."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.path)
    context.load_cert_chain(*authority.issue("broker", "127.0.0.1"))
    context.verify_mode = ssl.CERT_OPTIONAL
    with TlsProxy(context) as front:
        advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{front.port}"}
        with KlammProcess(tmp_path_factory.mktemp("node"), overrides=advertised) as node:
            front.target_port = node.port
            yield front


@pytest.fixture
def believing(authority):
    return {"security_protocol": "SSL", "ssl_ca_location": authority.path}


def test_records_of_every_size_make_the_round(proxy, believing):
    """Answers larger than a TLS record and requests larger than the socket's buffer arrive whole and in order."""
    values = [bytes([index % 251]) * size for index, size in enumerate([0, 1, 100, 16_384, 200_000, 900_000] * 3)]
    with Admin(bootstrap_servers=proxy.bootstrap, **believing) as admin:
        name = unique("tls")
        admin.create_topic(name, 1)
        assert name in [topic.name for topic in admin.list_topics()]
    with Producer(bootstrap_servers=proxy.bootstrap, **believing) as producer:
        promised = [producer.send(name, value) for value in values]
        producer.flush(PATIENCE_S)
        assert [delivery.metadata.offset for delivery in promised] == list(range(len(values)))
    with reader(proxy.bootstrap, group_id=unique("group"), **believing) as consumer:
        consumer.subscribe([name])
        assert [record.value for record in read(consumer, len(values))] == values
        consumer.commit()
        assert consumer.committed([(name, 0)])[TopicPartition(name, 0)].offset == len(values)


def test_an_untrusted_authority_is_refused(proxy, tmp_path):
    other = Authority(tmp_path, "another authority")
    with pytest.raises(DisconnectedError, match="certificate verify failed"):
        Admin(bootstrap_servers=proxy.bootstrap, security_protocol="SSL", ssl_ca_location=other.path)


def test_a_certificate_for_another_host_is_refused_unless_names_do_not_matter(authority, believing, proxy):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("elsewhere", "broker.example"))
    with TlsProxy(context) as front:
        front.target_port = proxy.target_port
        with pytest.raises(DisconnectedError, match=r"127\.0\.0\.1"):
            Admin(bootstrap_servers=front.bootstrap, bootstrap_timeout_ms=0, **believing)
        anyone = {**believing, "ssl_endpoint_identification_algorithm": ""}
        with Admin(bootstrap_servers=front.bootstrap, **anyone) as admin:
            assert len(admin.describe_cluster().brokers) == 1


def test_a_broker_may_ask_who_is_there(authority, believing, proxy):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.path)
    context.load_cert_chain(*authority.issue("careful", "127.0.0.1"))
    context.verify_mode = ssl.CERT_REQUIRED
    files = authority.issue("client")
    known = {"ssl_certificate_location": files.certificate, "ssl_key_location": files.key}
    with TlsProxy(context) as front:
        front.target_port = proxy.target_port
        with Admin(bootstrap_servers=front.bootstrap, **believing, **known) as admin:
            assert len(admin.describe_cluster().brokers) == 1
        with pytest.raises(DisconnectedError, match="cannot connect to"):
            Admin(bootstrap_servers=front.bootstrap, bootstrap_timeout_ms=0, **believing)


def test_a_context_of_ones_own(authority, proxy):
    context = ssl.create_default_context(cafile=authority.path)
    with Admin(bootstrap_servers=proxy.bootstrap, security_protocol="ssl", ssl_context=context) as admin:
        assert len(admin.describe_cluster().brokers) == 1


def test_plain_words_to_a_tls_port_and_the_other_way_round(proxy, believing):
    with pytest.raises(DisconnectedError, match="cannot connect to"):
        Admin(bootstrap_servers=proxy.bootstrap, bootstrap_timeout_ms=0)
    with pytest.raises(DisconnectedError, match="cannot connect to"):
        Admin(bootstrap_servers=f"127.0.0.1:{proxy.target_port}", bootstrap_timeout_ms=0, **believing)


def test_an_alert_is_recognised():
    alert = b"\x15\x03\x03\x00\x02\x02\x46"
    with (
        LyingBroker({"ApiVersions": lambda *_: alert}) as broker,
        pytest.raises(DisconnectedError, match=r"security\.protocol=SSL"),
    ):
        Admin(bootstrap_servers=broker.bootstrap)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ssl_ca_location": "/nowhere.pem"}, "ssl.ca.location=/nowhere.pem"),
        ({"ssl_certificate_location": "/nowhere.pem"}, "ssl.certificate.location=/nowhere.pem"),
        ({"ssl_context": "strict"}, "ssl.context is an ssl.SSLContext"),
    ],
)
def test_files_that_are_none_are_said_at_the_start(settings, words):
    with pytest.raises(ConfigError, match=words):
        Admin(bootstrap_servers="127.0.0.1:1", security_protocol="SSL", **settings)


def test_a_connection_that_breaks_is_made_again(proxy, believing):
    """The proxy drops every connection in the middle of a stream of records: none is lost, none comes twice."""
    with Admin(bootstrap_servers=proxy.bootstrap, **believing) as admin:
        name = unique("tls")
        admin.create_topic(name, 1)
    with Producer(bootstrap_servers=proxy.bootstrap, retry_backoff_ms=10, batch_size=2000, **believing) as producer:
        for number in range(3000):
            producer.send(name, b"%d" % number)
            if number % 1000 == 500:
                proxy.drop()
        producer.flush(PATIENCE_S)
    with reader(proxy.bootstrap, **believing) as consumer:
        consumer.assign([(name, 0)])
        assert [int(record.value) for record in read(consumer, 3000)] == list(range(3000))
