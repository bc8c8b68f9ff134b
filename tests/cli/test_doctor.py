"""`klamm doctor`: it speaks as it goes, waits no longer than asked, and leaves nothing behind."""

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, NewTopic

from harness import KLAMM, KlammProcess
from harness.access import PLAIN_MODULE, secured_node
from harness.members import wait_until
from klamm.cli import exit_codes
from klamm.cli.main import cli
from klamm.testing import broker

PATIENCE_S = 60
TLS = Path(__file__).parent / "tls"


@pytest.fixture(autouse=True)
def no_contexts(monkeypatch, tmp_path):
    monkeypatch.setenv("KLAMM_CONTEXTS", str(tmp_path / "contexts.json"))


def run(bootstrap, *args, exits=0):
    result = CliRunner().invoke(cli, [*args, "-b", bootstrap], prog_name="klamm")
    assert result.exit_code == exits, result.output
    return result


def checks(result):
    return {row["check"]: row["state"] for row in map(json.loads, result.stdout.splitlines())}


def topics(bootstrap):
    """What an independent client sees."""
    return set(AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=20).topics)


def test_a_wrong_advertised_address_is_told_at_once(tmp_path):
    overrides = {"advertised.listeners": "PLAINTEXT://nowhere.invalid:9092"}
    with KlammProcess(tmp_path, overrides=overrides) as node:
        began = time.monotonic()
        report = run(node.bootstrap, "doctor", "--timeout", "4s", exits=exit_codes.REFUSED)
        assert time.monotonic() - began < 30
        states = checks(report)
        assert states["advertised addresses"] == "wrong"
        assert (states["round trip"], states["disk"]) == ("left out", "left out")
        assert "nowhere.invalid" in report.stdout
        assert "advertised.listeners" in report.stdout
        assert not [name for name in topics(node.bootstrap) if name.startswith("klamm-doctor")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_what_it_found_is_printed_as_it_goes_and_its_topic_is_gone_at_the_end(number):
    with broker() as node:
        node.slow(40, api="Produce")
        env = {**os.environ, "KLAMM_CONTEXTS": os.devnull}
        process = subprocess.Popen(
            [*KLAMM, "doctor", "-b", node.bootstrap], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        try:
            lines = [json.loads(process.stdout.readline())["check"] for _ in range(6)]
            assert lines == ["DNS", "TCP", "versions", "advertised addresses", "partitions", "disk"]
            wait_until(lambda: [name for name in topics(node.bootstrap) if name.startswith("klamm-doctor")])
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == (143 if number == signal.SIGTERM else 130)
        finally:
            process.kill()
            process.communicate()
        assert not [name for name in topics(node.bootstrap) if name.startswith("klamm-doctor")]


def test_what_another_doctor_left_is_swept_once_it_is_old(klamm):
    admin = AdminClient({"bootstrap.servers": klamm.bootstrap, "log_level": 0})
    old, young = (f"klamm-doctor-{time.time_ns() - hours * 3600 * 10**9}" for hours in (2, 0))
    other = "klamm-doctor-notes"
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in (old, young, other)]).values():
        made.result(20)
    assert old in run(klamm.bootstrap, "doctor").stdout
    assert topics(klamm.bootstrap) & {old, young, other} == {young, other}
    for gone in admin.delete_topics([young, other]).values():
        gone.result(20)


@pytest.fixture
def answering():
    """A port where something answers the first bytes it gets with bytes of its own."""
    servers = []

    def start(answer):
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    if callable(answer):
                        answer(connection)
                    else:
                        connection.recv(1000)
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ["speaks HTTP"]),
        (bytes.fromhex("15030300020246"), ["speaks TLS", "-X security.protocol=SSL or, with a login, SASL_SSL"]),
        (b"SSH-2.0-OpenSSH_9.6\r\n", ["speaks SSH"]),
        (b"\xff\xff\xff\xffwhatever", ["does not speak Kafka's protocol"]),
    ],
    ids=["HTTP", "TLS", "SSH", "anything"],
)
def test_a_port_that_speaks_something_else(answering, answer, words):
    bootstrap = answering(answer)
    message = run(bootstrap, "topic", "ls", exits=exit_codes.NO_ANSWER).stderr
    report = run(bootstrap, "doctor", exits=exit_codes.REFUSED).stdout
    sent = CliRunner().invoke(cli, ["produce", "t", "--timeout", "2s", "-b", bootstrap], input="x\n")
    assert sent.exit_code == exit_codes.NO_ANSWER, sent.output
    assert words[0] in sent.stderr
    for word in words:
        assert word in message
        assert report.count(word) == 1


def test_a_port_with_tls_that_hangs_up(answering):
    """Python's own TLS server says nothing to who speaks without."""
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(TLS / "node.pem")

    def shake(connection):
        with contextlib.suppress(OSError):
            served.wrap_socket(connection, server_side=True).close()

    bootstrap = answering(shake)
    assert (
        "speaks TLS; try -X security.protocol=SSL or, with a login, SASL_SSL"
        in run(bootstrap, "topic", "ls", exits=exit_codes.NO_ANSWER).stderr
    )
    assert "speaks TLS" in run(bootstrap, "doctor", exits=exit_codes.REFUSED).stdout


def test_a_login_without_tls_at_a_port_with_tls(answering):
    bootstrap = answering(bytes.fromhex("15030300020246"))
    login = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.username=a", "sasl.password=b")
    pairs = [word for pair in login for word in ("-X", pair)]
    message = run(bootstrap, "topic", "ls", *pairs, exits=exit_codes.NO_ANSWER).stderr
    assert "speaks TLS; try -X security.protocol=SASL_SSL" in message


@pytest.fixture(scope="module")
def login_port(tmp_path_factory):
    """A listener with TLS on which clients log in."""
    overrides = (
        "listeners=PLAINTEXT://127.0.0.1:0,SECURE://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
        "listener.name.secure.sasl.enabled.mechanisms=PLAIN",
        f'listener.name.secure.plain.sasl.jaas.config={PLAIN_MODULE} required user_alice="one";',
        "listener.name.secure.ssl.keystore.type=PEM",
        f"listener.name.secure.ssl.keystore.location={TLS / 'node.pem'}",
    )
    with secured_node(tmp_path_factory.mktemp("login"), *overrides) as node:
        yield f"127.0.0.1:{node.node.addresses['SECURE'][1]}"


def write_pairs(*settings):
    return [word for setting in settings for word in ("-X", setting)]


@pytest.mark.parametrize("command", [("topic", "ls"), ("consume", "t", "--timeout", "3s")], ids=lambda words: words[0])
def test_tls_without_a_login_at_a_port_with_both(login_port, command):
    trusted = f"ssl.ca.location={TLS / 'ca.pem'}"
    pairs = write_pairs("security.protocol=SSL", trusted)
    message = run(login_port, *command, *pairs, exits=exit_codes.NO_ANSWER).stderr
    assert "closed the connection after the TLS handshake" in message
    assert "try -X security.protocol=SASL_SSL with sasl.mechanism, sasl.username and sasl.password" in message
    assert "protocol=SSL" not in message


def test_a_script_with_tls_and_no_login_repeats_nothing(login_port, tmp_path):
    file = tmp_path / "client.properties"
    file.write_text(f"security.protocol=SSL\nssl.ca.location={TLS / 'ca.pem'}\n")
    words = ["kafka-topics", "--list", "--bootstrap-server", login_port, "--command-config", str(file)]
    result = CliRunner().invoke(cli, words, prog_name="klamm")
    assert result.exit_code == 1, result.output
    assert "security.protocol=SASL_SSL with" in result.output
    assert "protocol=SSL" not in result.output


def test_no_hint_repeats_a_protocol_that_is_set(answering):
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(TLS / "node.pem")

    def shake(connection):
        with contextlib.suppress(OSError):
            served.wrap_socket(connection, server_side=True).close()

    login = ("security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", "sasl.username=a", "sasl.password=b")
    pairs = write_pairs(*login, f"ssl.ca.location={TLS / 'ca.pem'}")
    message = run(answering(shake), "topic", "ls", *pairs, exits=exit_codes.NO_ANSWER).stderr
    assert "security.protocol" not in message


def test_tls_at_a_port_without(klamm):
    message = run(klamm.bootstrap, "topic", "ls", "-X", "security.protocol=SSL", exits=exit_codes.NO_ANSWER).stderr
    assert "does not speak TLS; leave security.protocol=SSL out" in message


def test_a_form_with_a_head_has_one(klamm):
    for form, head in (("csv", "check,state,found"), ("table", "CHECK ")):
        lines = run(klamm.bootstrap, "doctor", "-o", form, "--no-round-trip").stdout.splitlines()
        assert [line.startswith(head) for line in lines] == [True] + [False] * (len(lines) - 1)
    assert {row["state"] for row in json.loads(run(klamm.bootstrap, "doctor", "-o", "json").stdout)} == {"ok"}
