"""Java's, Go's and JavaScript's clients log in to Klamm: PLAIN and SCRAM, plain and over TLS, and with certificates."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client.certificates import Authority
from compat import toolchain
from compat.clients import JavaClient
from compat.scripts import MAINS
from harness.process import KlammProcess
from harness.wire import unique
from klamm.client import Admin
from klamm.client.admin.acl_types import ScramMechanism
from klamm.net.free_ports import free_ports

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
MODULES = {"PLAIN": PLAIN, "SCRAM-SHA-256": SCRAM, "SCRAM-SHA-512": SCRAM}


class Secured:
    """A node with a listener of each kind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.carol = self.authority.issue("carol")
        files = self.authority.issue("broker", "127.0.0.1", "localhost")
        keystore = folder / "keystore.pem"
        keystore.write_text(Path(files.key).read_text() + Path(files.certificate).read_text())
        plaintext, secure, mutual, open_login = free_ports("127.0.0.1", 4)
        self.secure, self.mutual = f"localhost:{secure}", f"localhost:{mutual}"
        self.open_login = f"localhost:{open_login}"
        self.node = KlammProcess(
            folder / "node",
            overrides={
                "listeners": (
                    f"PLAINTEXT://127.0.0.1:{plaintext},SECURE://127.0.0.1:{secure},MUTUAL://127.0.0.1:{mutual},"
                    f"OPEN://127.0.0.1:{open_login},CONTROLLER://127.0.0.1:0"
                ),
                "advertised.listeners": (
                    f"PLAINTEXT://127.0.0.1:{plaintext},SECURE://localhost:{secure},MUTUAL://localhost:{mutual},"
                    f"OPEN://localhost:{open_login}"
                ),
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL,MUTUAL:SSL,OPEN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
                ),
                "sasl.enabled.mechanisms": ",".join(MODULES),
                "listener.name.secure.plain.sasl.jaas.config": f'{PLAIN} user_alice="alice-secret";',
                "listener.name.open.plain.sasl.jaas.config": f'{PLAIN} user_alice="alice-secret";',
                "connections.max.reauth.ms": "3000",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(keystore),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": self.authority.path,
                "listener.name.mutual.ssl.client.auth": "required",
            },
        )
        self.node.port = plaintext

    def settings(self, **values: str) -> str:
        """A file of client settings."""
        path = self.folder / f"{unique('client')}.properties"
        named = {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority.path,
            **{name.replace("_", "."): value for name, value in values.items()},
        }
        path.write_text("".join(f"{name}={value}\n" for name, value in named.items()))
        return str(path)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    with made.node:
        with Admin(bootstrap_servers=made.node.bootstrap) as admin:
            for mechanism in ScramMechanism:
                admin.alter_user_scram_credentials({("alice", mechanism): "alice-secret"})
        yield made


def use_tools(java: JavaClient, bootstrap: str, settings: str) -> None:
    """Create a topic, write to it and read from it with Kafka's tools."""
    topic = unique()
    where = ("--bootstrap-server", bootstrap)
    done = java.tool(MAINS["kafka-topics"], *where, "--create", "--topic", topic, "--command-config", settings)
    assert done.exit == 0, done.text
    done = java.tool(
        MAINS["kafka-producer-perf-test"],
        *("--topic", topic, "--num-records", "5000", "--record-size", "100", "--throughput", "1000"),
        *("--bootstrap-server", bootstrap, "--command-config", settings),
    )
    assert done.exit == 0, done.text
    assert "5000 records sent" in done.out, done.text
    done = java.tool(
        MAINS["kafka-console-consumer"],
        *(*where, "--topic", topic, "--from-beginning", "--max-messages", "5000", "--timeout-ms", "30000"),
        *("--command-config", settings),
    )
    assert len(done.out.splitlines()) == 5000, done.text


@pytest.mark.parametrize("mechanism", MODULES)
def test_java_logs_in(java: JavaClient, secured: Secured, mechanism: str) -> None:
    jaas = f'{MODULES[mechanism]} username="alice" password="alice-secret";'
    # Five seconds of records at a session of three: the producer renews its login on the way.
    use_tools(java, secured.secure, secured.settings(sasl_mechanism=mechanism, sasl_jaas_config=jaas))


def test_java_has_a_certificate(java: JavaClient, secured: Secured) -> None:
    store = secured.folder / "carol.pem"
    store.write_text(Path(secured.carol.key).read_text() + Path(secured.carol.certificate).read_text())
    settings = secured.settings(security_protocol="SSL", ssl_keystore_type="PEM", ssl_keystore_location=str(store))
    use_tools(java, secured.mutual, settings)


@pytest.mark.parametrize("mechanism", MODULES)
def test_a_wrong_password_is_explained(java: JavaClient, secured: Secured, mechanism: str) -> None:
    settings = secured.settings(
        sasl_mechanism=mechanism, sasl_jaas_config=f'{MODULES[mechanism]} username="alice" password="wrong";'
    )
    done = java.tool(
        MAINS["kafka-topics"], "--bootstrap-server", secured.secure, "--list", "--command-config", settings
    )
    assert done.exit == 1
    assert "Authentication failed" in done.text


def test_kafka_configs_sets_credentials(java: JavaClient, secured: Secured) -> None:
    user = unique("user")
    entity = ("--bootstrap-server", secured.node.bootstrap, "--entity-type", "users", "--entity-name", user)
    add = ("--add-config", "SCRAM-SHA-256=[iterations=8192,password=user-secret]")
    done = java.tool(MAINS["kafka-configs"], *entity, "--alter", *add)
    assert done.exit == 0, done.text
    settings = secured.settings(
        sasl_mechanism="SCRAM-SHA-256", sasl_jaas_config=f'{SCRAM} username="{user}" password="user-secret";'
    )
    done = java.tool(
        MAINS["kafka-topics"], "--bootstrap-server", secured.secure, "--list", "--command-config", settings
    )
    assert done.exit == 0, done.text
    done = java.tool(MAINS["kafka-configs"], *entity, "--alter", "--delete-config", "SCRAM-SHA-256")
    assert done.exit == 0, done.text


CLIENTS = ("franz-go", "sarama", "kafkajs")


def log_in(client: str, **order: Any) -> dict[str, Any]:
    """Have a client log in, create a topic, write to it and read from it."""
    command = toolchain.js_logins() if client == "kafkajs" else [str(toolchain.go_logins())]
    text = json.dumps({"client": client, "topic": unique(), "count": 20, **order})
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=200, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("mechanism", MODULES)
@pytest.mark.parametrize("encrypted", [False, True], ids=["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("client", CLIENTS)
def test_other_clients_log_in(secured: Secured, client: str, mechanism: str, *, encrypted: bool) -> None:
    answer = log_in(
        client,
        bootstrap=secured.secure if encrypted else secured.open_login,
        mechanism=mechanism,
        user="alice",
        password="alice-secret",
        authority=secured.authority.path if encrypted else "",
    )
    assert answer == {"read": 20}


@pytest.mark.parametrize("client", CLIENTS)
def test_other_clients_have_a_certificate(secured: Secured, client: str) -> None:
    answer = log_in(
        client,
        bootstrap=secured.mutual,
        authority=secured.authority.path,
        key=secured.carol.key,
        chain=secured.carol.certificate,
    )
    assert answer == {"read": 20}


@pytest.mark.parametrize("mechanism", MODULES)
@pytest.mark.parametrize("client", CLIENTS)
def test_other_clients_are_refused_with_a_wrong_password(secured: Secured, client: str, mechanism: str) -> None:
    answer = log_in(
        client,
        bootstrap=secured.secure,
        mechanism=mechanism,
        user="alice",
        password="wrong",
        authority=secured.authority.path,
    )
    assert "error" in answer, answer
    assert not answer.get("read")
