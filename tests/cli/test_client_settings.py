"""Settings of clients on a command line and in files: who takes which, and what cannot be obeyed is said at once."""

import contextlib
import os
import socket
import ssl
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness import unique
from klamm.cli.client_settings import from_java, taken_by
from klamm.cli.main import cli
from klamm.client import Admin
from klamm.client.blocking_cluster import BlockingCluster, ClusterUnreachable
from klamm.client.client_settings import admin_settings
from klamm.client.login import client_credentials
from klamm.client.tls import tls_context
from klamm.model.errors import ConfigError
from klamm.protocol.messages.metadata import MetadataRequest

TLS = Path(__file__).parent / "tls"


def run(*words: str, exits: int = 0, stdin: str | None = None):
    done = CliRunner().invoke(cli, list(words), input=stdin, prog_name="klamm", env={"KLAMM_CONTEXTS": os.devnull})
    assert done.exit_code == exits, done.output
    return done


# Whose is it


def test_a_client_takes_its_own_and_leaves_those_of_others():
    given = {"linger.ms": "5", "fetch.min.bytes": "1", "client.id": "me", "default.api.timeout.ms": "1000"}
    assert taken_by("producer", given) == {"linger.ms": "5", "client.id": "me"}
    assert taken_by("admin", given) == {"client.id": "me", "default.api.timeout.ms": "1000"}
    with pytest.raises(ConfigError, match=r"did you mean linger\.ms"):
        taken_by("producer", {"linger.mss": "5"})


def test_a_file_for_java_is_read_as_java_reads_it():
    given = {
        "bootstrap.servers": "elsewhere:9092",
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "/me.pem",
        "key.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
        "partition.assignment.strategy": "org.apache.kafka.clients.consumer.StickyAssignor,range",
        "another.setting": "yes",
    }
    assert from_java("consumer", given) == {
        "bootstrap.servers": "elsewhere:9092",
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "/me.pem",
        "partition.assignment.strategy": "sticky,range",
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "SASL_SSL needs a password"),
        (
            {"security.protocol": "SSL", "ssl.truststore.location": "/x.jks"},
            r"ssl\.truststore\.type=JKS is a format of Java's",
        ),
    ],
)
def test_what_cannot_be_obeyed_is_refused(given, words):
    settings = admin_settings({"bootstrap.servers": "a:1", **from_java("admin", given)}, {})
    with pytest.raises(ConfigError, match=words):
        (client_credentials(settings), tls_context(settings))


# Every command of Kafka's obeys its file


@pytest.fixture
def refused_file(tmp_path):
    """A file that cannot be followed: commands that read it report that, others do not."""
    path = tmp_path / "client.properties"
    path.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")
    return str(path)


@pytest.mark.parametrize(
    "words",
    [
        ("kafka-topics", "--list"),
        ("kafka-configs", "--describe", "--topic", "t"),
        ("kafka-consumer-groups", "--list"),
        ("kafka-get-offsets", "--topic", "t"),
        ("kafka-leader-election", "--election-type", "preferred", "--all-topic-partitions"),
        ("kafka-reassign-partitions", "--list"),
        ("kafka-log-dirs", "--describe"),
        ("kafka-transactions", "list"),
        ("kafka-metadata-quorum", "describe", "--status"),
        ("kafka-console-producer", "--topic", "t"),
        ("kafka-console-consumer", "--topic", "t"),
        ("kafka-console-consumer", "--topic", "t", "--group", "g"),
        ("kafka-producer-perf-test", "--topic", "t", "--num-records", "1", "--record-size", "1", "--throughput", "-1"),
        ("kafka-consumer-perf-test", "--topic", "t", "--num-records", "1"),
    ],
    ids=lambda words: "-".join(words[:2]),
)
def test_every_command_obeys_its_file(klamm, refused_file, words):
    done = run(*words, "--bootstrap-server", klamm.bootstrap, "--command-config", refused_file, exits=1)
    assert "needs a password" in done.stderr
    assert "Traceback" not in done.stderr


def test_delete_records_obeys_its_file(klamm, refused_file, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text('{"version": 1, "partitions": []}')
    where = ("--bootstrap-server", klamm.bootstrap, "--command-config", refused_file)
    assert "needs a password" in run("kafka-delete-records", "--offset-json-file", str(plan), *where, exits=1).stderr


def test_a_harmless_file_is_fine(klamm, wire, tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("client.id=me\nrequest.timeout.ms=20000\nlinger.ms=1\nunheard.of=1\n")
    where = ("--bootstrap-server", klamm.bootstrap, "--command-config", str(file))
    topic = wire.create_topic()
    assert topic in run("kafka-topics", "--list", *where).stdout
    run("kafka-console-producer", "--topic", topic, *where, stdin="hello\n")
    read = run("kafka-console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "1", *where)
    assert read.stdout == "hello\n"
    assert topic in run("topic", "ls", "-b", klamm.bootstrap, "--command-config", str(file)).stdout
    assert "no such file" in run("topic", "ls", "--command-config", str(tmp_path / "none"), exits=1).stderr


# TLS, as commands speak it


@pytest.fixture
def tls_port(klamm):
    """A door that speaks TLS in front of the broker, one thread per way."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "node.pem")
    door = socket.create_server(("127.0.0.1", 0))
    closing = [door]

    def pump(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for side in (source, sink):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                plain, _ = door.accept()
                try:
                    guest = context.wrap_socket(plain, server_side=True)
                except OSError:
                    plain.close()
                    continue
                behind = socket.create_connection(("127.0.0.1", klamm.port))
                closing.extend((guest, behind))
                threading.Thread(target=pump, args=(guest, behind), daemon=True).start()
                threading.Thread(target=pump, args=(behind, guest), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield door.getsockname()[1]
    for connection in closing:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


def test_a_command_speaks_tls(tls_port, wire):
    topic = wire.create_topic(unique("tls"))
    believed = {"security.protocol": "SSL", "ssl.ca.location": str(TLS / "ca.pem")}
    with BlockingCluster(f"127.0.0.1:{tls_port}", settings=believed) as cluster:
        assert topic in {listed.name for listed in cluster.ask(MetadataRequest(topics=None)).topics}
    pairs = [word for name, value in believed.items() for word in ("-X", f"{name}={value}")]
    assert topic in run("topic", "ls", "-b", f"127.0.0.1:{tls_port}", *pairs).stdout
    with Admin({"bootstrap.servers": f"127.0.0.1:{tls_port}", **believed}) as admin:
        assert admin.describe_cluster().cluster_id


def test_a_stranger_is_not_believed(tls_port):
    with pytest.raises(ClusterUnreachable, match=r"do not agree on TLS: .*certificate"):
        BlockingCluster(f"127.0.0.1:{tls_port}", settings={"security.protocol": "SSL"})
    done = run("topic", "ls", "-b", f"127.0.0.1:{tls_port}", "-X", "security.protocol=SSL", exits=5)
    assert "do not agree on TLS" in done.stderr
    assert "is a node running there" not in done.stderr


def test_a_plain_listener_speaks_no_tls(klamm):
    with pytest.raises(ClusterUnreachable, match=r"do not agree on TLS|closed"):
        BlockingCluster(klamm.bootstrap, 5.0, settings={"security.protocol": "SSL"})
