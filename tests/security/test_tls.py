"""Kafka's ssl.* settings as contexts: PEM by file and inline, encrypted keys, versions, suites, and what is refused."""

import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from client.certificates import Authority
from klamm.model.errors import ConfigError
from klamm.security.tls import (
    check_has_key,
    client_context,
    openssl_name,
    read_tls_settings,
    server_context,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """An authority, and a key store with key and chain in one file."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    files = authority.issue("broker", "localhost", "127.0.0.1")
    keystore = folder / "keystore.pem"
    keystore.write_text(Path(files.key).read_text() + Path(files.certificate).read_text())
    return {
        "folder": folder,
        "trust": authority.path,
        "keystore": str(keystore),
        "key": Path(files.key).read_text(),
        "chain": Path(files.certificate).read_text(),
    }


def settings(**values):
    named = {f"ssl.{name.replace('_', '.')}": value for name, value in values.items()}
    return read_tls_settings(named.get)


def keystore(store, **values):
    return settings(keystore_type="PEM", keystore_location=store["keystore"], **values)


def connect(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> ssl.SSLSocket:
    """A handshake between two contexts over a pair of sockets; the client's side, closed, is returned."""
    left, right = socket.socketpair()
    failures = []

    def serve() -> None:
        try:
            with server.wrap_socket(left, server_side=True) as tls:
                tls.sendall(b"hello")
                tls.recv(1)
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(right, server_hostname=host) as tls:
            assert tls.recv(5) == b"hello"
            return tls.version(), tls.cipher()[0]
    finally:
        right.close()
        thread.join(10)


def trusting(store, **values):
    return client_context(settings(truststore_type="PEM", truststore_location=store["trust"], **values))


def test_a_file_with_key_and_chain(store):
    version, _ = connect(server_context(keystore(store)), trusting(store))
    assert version == "TLSv1.3"


def test_pem_in_the_settings_themselves(store):
    inline = settings(keystore_type="PEM", keystore_key=store["key"], keystore_certificate_chain=store["chain"])
    trust = Path(store["trust"]).read_text()
    connect(server_context(inline), client_context(settings(truststore_type="PEM", truststore_certificates=trust)))
    assert "PRIVATE" not in repr(inline)
    assert inline.files == ()


@pytest.mark.parametrize("form", [("-v1", "PBE-SHA1-3DES"), ("-v2", "aes-256-cbc")], ids=["PBES1", "PBES2"])
@pytest.mark.parametrize("inline", [True, False])
def test_encrypted_keys_of_both_kinds(store, tmp_path, form, inline):
    (tmp_path / "key.pem").write_text(store["key"])
    encrypted = subprocess.run(
        ["openssl", "pkcs8", "-topk8", *form, "-in", tmp_path / "key.pem", "-passout", "pass:hunter2"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "ENCRYPTED PRIVATE KEY" in encrypted
    if inline:
        values = {"keystore_key": encrypted, "keystore_certificate_chain": store["chain"]}
    else:
        (tmp_path / "keystore.pem").write_text(encrypted + store["chain"])
        values = {"keystore_location": str(tmp_path / "keystore.pem")}
    connect(server_context(settings(keystore_type="PEM", key_password="hunter2", **values)), trusting(store))
    with pytest.raises(ConfigError, match=r"ssl\.key\.password does not decrypt"):
        server_context(settings(keystore_type="PEM", key_password="wrong", **values))
    with pytest.raises(ConfigError, match=r"is encrypted; write its password as ssl\.key\.password"):
        server_context(settings(keystore_type="PEM", **values))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"keystore_location": "a.jks"}, r"keystore\.type=JKS is a format of Java's.*keytool.*openssl pkcs12.*=PEM"),
        ({"keystore_location": "a.p12", "keystore_type": "PKCS12"}, "ssl.keystore.type=PKCS12"),
        ({"truststore_location": "a.jks"}, "ssl.truststore.type=JKS.*-nokeys"),
        ({"keystore_type": "PEM", "keystore_location": "a", "keystore_password": "x"}, "is ssl.key.password"),
        ({"truststore_type": "PEM", "truststore_location": "a", "truststore_password": "x"}, "must not be written"),
        ({"keystore_type": "PEM", "keystore_key": "x"}, "belong together"),
        (
            {
                "keystore_type": "PEM",
                "keystore_key": "x",
                "keystore_certificate_chain": "x",
                "keystore_location": "a",
            },
            "exclude each other",
        ),
        ({"enabled_protocols": ("TLSv1.1",)}, "ssl.enabled.protocols has TLSv1.1"),
        ({"endpoint_identification_algorithm": "ldaps"}, "write https"),
        ({"engine_factory_class": "a.B"}, "names Java code"),
    ],
)
def test_settings_that_cannot_work(values, words):
    with pytest.raises(ConfigError, match=words):
        settings(**values)


def test_a_listener_needs_a_certificate():
    with pytest.raises(ConfigError, match="needs a certificate"):
        check_has_key(settings())


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "no such file"), ("nonsense", "it is no PEM file"), ("other", "is not that of the certificate")],
)
def test_key_stores_that_cannot_be_used(store, tmp_path, text, words):
    path = tmp_path / "keystore.pem"
    if text == "other":
        other = Authority(tmp_path, "other").issue("other", "localhost")
        path.write_text(Path(other.key).read_text() + store["chain"])
    elif text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=rf"ssl\.keystore\.location={path} cannot be used: .*{words}"):
        server_context(settings(keystore_type="PEM", keystore_location=str(path)))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"\xfe\xed\xfe\xed\0\0\0\2", "it looks like JKS, not PEM; convert it with `keytool .*openssl pkcs12"),
        (b"\x30\x82\x0a\0\2\1\3", "it looks like PKCS12 .*convert it with `openssl pkcs12 -in .*store"),
    ],
)
def test_stores_of_other_formats_are_named(tmp_path, content, words):
    path = tmp_path / "store"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        server_context(settings(keystore_type="PEM", keystore_location=str(path)))
    with pytest.raises(ConfigError, match=words):
        client_context(settings(truststore_type="PEM", truststore_location=str(path)))


def test_pem_without_its_type_line(store):
    with pytest.raises(ConfigError, match=r"location has PEM.*write ssl\.keystore\.type=PEM$"):
        settings(keystore_location=store["keystore"])
    with pytest.raises(ConfigError, match=r"certificates has PEM.*write ssl\.truststore\.type=PEM$"):
        settings(truststore_certificates=Path(store["trust"]).read_text())


def test_trust_stores_that_cannot_be_used(store, tmp_path):
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.location=.* cannot be used"):
        client_context(settings(truststore_type="PEM", truststore_location=str(tmp_path / "none.pem")))
    with pytest.raises(ConfigError, match=r"ssl\.client\.auth=required needs the authorities"):
        server_context(keystore(store, client_auth="required"))


def test_versions(store):
    server = server_context(keystore(store, enabled_protocols=("TLSv1.2",)))
    assert connect(server, trusting(store))[0] == "TLSv1.2"
    server = server_context(keystore(store, enabled_protocols=("TLSv1.3",)))
    assert connect(server, trusting(store))[0] == "TLSv1.3"
    with pytest.raises(ssl.SSLError):
        connect(server, trusting(store, enabled_protocols=("TLSv1.2",)))


def test_suites_have_their_iana_names(store):
    suite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    # Without a suite of TLS 1.3 it is never negotiated, as in Java.
    version, cipher = connect(server_context(keystore(store, cipher_suites=(suite,))), trusting(store))
    assert (version, cipher) == ("TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256")
    newer = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
    assert connect(server_context(keystore(store, cipher_suites=(*newer, suite))), trusting(store))[0] == "TLSv1.3"
    with pytest.raises(ConfigError, match="cannot be chosen singly; add TLS_AES_128"):
        server_context(keystore(store, cipher_suites=newer[:2]))
    with pytest.raises(ConfigError, match="TLS_NO_SUCH_SUITE, which OpenSSL does not have"):
        server_context(keystore(store, cipher_suites=("TLS_NO_SUCH_SUITE",)))
    with pytest.raises(ConfigError, match="has no suite for any of"):
        server_context(keystore(store, cipher_suites=(suite,), enabled_protocols=("TLSv1.3",)))


@pytest.mark.parametrize(
    ("iana", "name"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256", "ECDHE-ECDSA-AES128-SHA256"),
        ("TLS_DHE_RSA_WITH_AES_128_GCM_SHA256", "DHE-RSA-AES128-GCM-SHA256"),
        ("TLS_RSA_WITH_AES_256_CBC_SHA", "AES256-SHA"),
    ],
)
def test_names_of_suites(iana, name):
    assert openssl_name(iana) == name
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(name)


def test_hosts_are_checked_unless_turned_off(store):
    server = server_context(keystore(store))
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(server, trusting(store), host="other.example")
    connect(server, trusting(store, endpoint_identification_algorithm=""), host="other.example")
