"""Listeners with TLS: who a client is by its certificate, passwords over TLS, and what is closed."""

import socket
import ssl
import struct
from pathlib import Path

import pytest

from client.certificates import Authority
from harness.inprocess import NodeThread
from harness.wire import Wire, batch, produce_fields, unique
from klamm.client import Admin
from klamm.client.admin.acl_types import ScramMechanism
from klamm.model.errors import ErrorCode
from klamm.security.core.scram import SCRAM_SHA_512, ScramClient
from klamm.security.core.secret import Secret

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
NAMES = {"ONE": "none", "MAYBE": "requested", "MUTUAL": "required", "MAPPED": "required"}


class Files:
    """An authority, the broker's key store, and certificates of clients."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        files = self.authority.issue("broker", "127.0.0.1", "localhost")
        self.keystore = folder / "keystore.pem"
        self.keystore.write_text(Path(files.key).read_text() + Path(files.certificate).read_text())
        self.carol = self.authority.issue("carol")
        self.dave = self.authority.issue("dave@example")
        (folder / "other").mkdir()
        self.stranger = Authority(folder / "other", "other authority").issue("stranger")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def node(tmp_path_factory, files):
    listeners = ",".join(f"{name}://127.0.0.1:0" for name in ("PLAINTEXT", *NAMES, "SECURE", "CONTROLLER"))
    protocols = ",".join(f"{name}:SSL" for name in NAMES)
    overrides = (
        f"listeners={listeners}",
        f"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL,{protocols}",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={files.keystore}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={files.authority.path}",
        *(f"listener.name.{name.lower()}.ssl.client.auth={auth}" for name, auth in NAMES.items()),
        r"listener.name.mapped.ssl.principal.mapping.rules=RULE:^CN=([a-z]+)$/$1/U",
        # Without prefix: it does not count on a listener with SASL.
        "ssl.client.auth=required",
        "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512",
        f"listener.name.secure.plain.sasl.jaas.config={JAAS}",
        "connection.failed.authentication.delay.ms=0",
    )
    with NodeThread(tmp_path_factory.mktemp("node"), *overrides) as running:
        yield running


class TlsWire(Wire):
    """A raw connection over TLS."""

    def __init__(self, port: int, files: Files, certificate=None, version: ssl.TLSVersion | None = None) -> None:
        super().__init__(port)
        context = ssl.create_default_context(cafile=files.authority.path)
        if certificate is not None:
            context.load_cert_chain(certificate.certificate, certificate.key)
        if version is not None:
            context.minimum_version = context.maximum_version = version
        self.sock = context.wrap_socket(self.sock, server_hostname="127.0.0.1")


def port(node, name: str) -> int:
    return node.node.addresses[name][1]


def principal_of(node, wire: Wire) -> str:
    address = wire.sock.getsockname()
    return node.run(
        lambda running: next(
            str(channel.principal) for channel in running.net._channels if channel.peer_address == address
        )
    )


@pytest.mark.parametrize(
    ("listener", "certificate", "principal"),
    [
        ("ONE", None, "User:ANONYMOUS"),
        ("ONE", "carol", "User:ANONYMOUS"),
        ("MAYBE", None, "User:ANONYMOUS"),
        ("MAYBE", "carol", "User:CN=carol"),
        ("MUTUAL", "carol", "User:CN=carol"),
        ("MAPPED", "carol", "User:CAROL"),
    ],
)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_certificate_names_the_user(node, files, listener, certificate, principal, version):
    pair = getattr(files, certificate) if certificate else None
    with TlsWire(port(node, listener), files, pair, version) as wire:
        assert wire.call("metadata", 12, topics=[]).brokers
        assert principal_of(node, wire) == principal


@pytest.mark.parametrize(
    ("listener", "certificate"),
    [("MUTUAL", None), ("MUTUAL", "stranger"), ("MAYBE", "stranger"), ("MAPPED", "dave")],
)
def test_without_a_fitting_certificate_the_connection_is_closed(node, files, listener, certificate):
    pair = getattr(files, certificate) if certificate else None
    # With TLS 1.3 the client learns of it when it reads.
    with pytest.raises(OSError), TlsWire(port(node, listener), files, pair) as wire:
        wire.call("api_versions", 0)


def test_handshakes_leave_nothing_behind(node, files):
    for _ in range(3):
        with Wire(port(node, "ONE")) as wire:
            wire.sock.sendall(b"no handshake at all, and long enough to be one")
            wire.is_closed_by_peer()
    with TlsWire(port(node, "ONE"), files) as wire:
        assert wire.call("api_versions", 0).error_code == 0
        assert node.run(lambda running: len(running._security._budget)) == 0


def test_old_versions_of_tls_are_refused(node, files):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with socket.create_connection(("127.0.0.1", port(node, "ONE"))) as raw, pytest.raises(ssl.SSLError):
        context.wrap_socket(raw)


def test_plaintext_on_a_tls_port_is_closed(node):
    with Wire(port(node, "ONE")) as wire:
        wire.send("api_versions", 0)
        wire.sock.settimeout(10)
        data = b""
        try:
            while more := wire.sock.recv(100):
                data += more
        except ConnectionResetError:
            pass
        assert len(data) < 32


def test_records_come_back_over_tls(node, files):
    with TlsWire(port(node, "ONE"), files) as wire:
        topic = wire.create_topic()
        values = [bytes([number]) * 30_000 for number in range(100)]
        for value in values:
            wire.call("produce", 9, **produce_fields(topic, batch(value)))
        assert wire.values(topic) == values


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_passwords_over_tls(node, files, mechanism):
    user = "alice" if mechanism == "PLAIN" else unique("user")
    with TlsWire(port(node, "SECURE"), files) as wire:
        assert wire.call("api_versions", 0).error_code == 0
        assert wire.call("sasl_handshake", 1, mechanism=mechanism).error_code == 0
        if mechanism == "PLAIN":
            assert wire.call("sasl_authenticate", 2, auth_bytes=b"\0alice\0secret").error_code == 0
        else:
            with Admin(bootstrap_servers=f"127.0.0.1:{node.port}") as admin:
                admin.alter_user_scram_credentials({(user, ScramMechanism.SCRAM_SHA_512): "secret"})
            client = ScramClient(SCRAM_SHA_512, user, Secret("secret"), nonce="nonce")
            answer = wire.call("sasl_authenticate", 2, auth_bytes=client.first())
            answer = wire.call("sasl_authenticate", 2, auth_bytes=client.step(answer.auth_bytes))
            client.step(answer.auth_bytes)
        assert wire.call("metadata", 12, topics=[]).brokers
        assert principal_of(node, wire) == f"User:{user}"


def test_a_wrong_password_over_tls(node, files):
    with TlsWire(port(node, "SECURE"), files) as wire:
        wire.call("sasl_handshake", 1, mechanism="PLAIN")
        answer = wire.call("sasl_authenticate", 2, auth_bytes=b"\0alice\0wrong")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert wire.is_closed_by_peer()


def test_a_changed_key_store_is_used_by_new_connections(node, files):
    def serial() -> str:
        with TlsWire(port(node, "ONE"), files) as wire:
            return wire.sock.getpeercert()["serialNumber"]

    def replace(*parts: str) -> None:
        fresh = files.keystore.with_suffix(".new")
        fresh.write_text("".join(Path(part).read_text() for part in parts))
        fresh.rename(files.keystore)
        node.run(lambda running: running._security.reload_changed())

    before = serial()
    original = files.keystore.read_text()
    with TlsWire(port(node, "ONE"), files) as open_before:
        renewed = files.authority.issue("broker", "127.0.0.1", "localhost")
        replace(renewed.key, renewed.certificate)
        after = serial()
        assert after != before
        assert open_before.call("api_versions", 0).error_code == 0
        # What cannot be used changes nothing: a key of another certificate, another subject, a lost name, no file.
        other = files.authority.issue("other", "127.0.0.1", "localhost")
        replace(other.key, renewed.certificate)
        assert serial() == after
        replace(other.key, other.certificate)
        assert serial() == after
        fewer = files.authority.issue("broker", "127.0.0.1")
        replace(fewer.key, fewer.certificate)
        assert serial() == after
        files.keystore.unlink()
        node.run(lambda running: running._security.reload_changed())
        assert serial() == after
    files.keystore.write_text(original)
    node.run(lambda running: running._security.reload_changed())
    assert serial() == before


def test_a_request_before_the_login_over_tls_is_closed(node, files):
    with TlsWire(port(node, "SECURE"), files) as wire:
        wire.send_frame(struct.pack(">hhih", 3, 12, 1, -1) + bytes(20))
        assert wire.is_closed_by_peer()
