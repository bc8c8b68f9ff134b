"""Kafka's ssl.* settings as SSL contexts, for listeners and for clients; key and trust stores are PEM.

A context is made once from the settings and the files they name; a reload makes another.
"""

import contextlib
import os
import re
import ssl
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from klamm.model.errors import ConfigError
from klamm.security.core.distinguished_name import alternative_names, subject_name
from klamm.security.core.secret import Secret

VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_TLS_1_3_SUITES: Final = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"})
"""Those that OpenSSL enables; Python before 3.15 cannot choose among them."""

_JKS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
"""The first bytes of JKS and JCEKS stores."""
_DER_SEQUENCE: Final = (b"\x30\x80", b"\x30\x81", b"\x30\x82", b"\x30\x83")

_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_ENABLE_KTLS: Final = getattr(ssl, "OP_ENABLE_KTLS", 1 << 3)
"""Let the kernel encrypt if it has the module for it; Python has the name from 3.12."""

ReadSetting = Callable[[str], str | Sequence[str] | None]
"""The value of a setting by its name."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The ssl.* settings of one listener or client."""

    keystore_location: str | None = None
    keystore_key: Secret | None = None
    keystore_chain: Secret | None = None
    key_password: Secret | None = None
    truststore_location: str | None = None
    truststore_certificates: Secret | None = None
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    client_auth: str = "none"
    checks_host: bool = True

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the context is made from."""
        return tuple(path for path in (self.keystore_location, self.truststore_location) if path)

    @property
    def has_key(self) -> bool:
        """Whether there is a certificate to present."""
        return self.keystore_location is not None or self.keystore_key is not None

    @property
    def has_trust(self) -> bool:
        """Whether there are authorities of its own."""
        return self.truststore_location is not None or self.truststore_certificates is not None


def read_tls_settings(read: ReadSetting) -> TlsSettings:
    """Read the settings by their names; ConfigError for what cannot work, before the stores are loaded."""
    _check_store(
        read,
        "ssl.keystore.location",
        "ssl.keystore.key",
        kind=str(read("ssl.keystore.type") or "JKS"),
        password="ssl.keystore.password",  # noqa: S106 - the name of a setting
    )
    _check_store(
        read,
        "ssl.truststore.location",
        "ssl.truststore.certificates",
        kind=str(read("ssl.truststore.type") or "JKS"),
        password="ssl.truststore.password",  # noqa: S106
    )
    for name in ("ssl.engine.factory.class", "ssl.provider", "ssl.secure.random.implementation"):
        if read(name):
            raise ConfigError(f"{name} names Java code, which Klamm does not run; remove it")
    key, chain = _secret(read, "ssl.keystore.key"), _secret(read, "ssl.keystore.certificate.chain")
    if (key is None) != (chain is None):
        raise ConfigError("ssl.keystore.key and ssl.keystore.certificate.chain belong together; write both")
    protocols = _list(read, "ssl.enabled.protocols") or tuple(VERSIONS)
    unknown = [protocol for protocol in protocols if protocol not in VERSIONS]
    if unknown:
        raise ConfigError(f"ssl.enabled.protocols has {unknown[0]}; write one or both of {', '.join(VERSIONS)}")
    algorithm = read("ssl.endpoint.identification.algorithm")
    if algorithm not in (None, "", "https", "HTTPS"):
        raise ConfigError(f"ssl.endpoint.identification.algorithm={algorithm}: write https, or nothing to turn it off")
    return TlsSettings(
        keystore_location=_text(read, "ssl.keystore.location"),
        keystore_key=key,
        keystore_chain=chain,
        key_password=_secret(read, "ssl.key.password"),
        truststore_location=_text(read, "ssl.truststore.location"),
        truststore_certificates=_secret(read, "ssl.truststore.certificates"),
        protocols=protocols,
        cipher_suites=_list(read, "ssl.cipher.suites"),
        client_auth=_text(read, "ssl.client.auth") or "none",
        checks_host=algorithm != "",
    )


def check_has_key(settings: TlsSettings) -> TlsSettings:
    """Return the settings of a listener; ConfigError without a certificate."""
    if not settings.has_key:
        raise ConfigError(
            "a listener with TLS needs a certificate; write ssl.keystore.type=PEM and ssl.keystore.location=FILE,"
            " a PEM file with private key and certificate chain"
        )
    return settings


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Make the context of a listener."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_up(context, settings)
    context.verify_mode = CLIENT_AUTH[settings.client_auth]
    if context.verify_mode is not ssl.CERT_NONE and not _trust(context, settings):
        raise ConfigError(
            f"ssl.client.auth={settings.client_auth} needs the authorities of the clients' certificates;"
            " write ssl.truststore.type=PEM and ssl.truststore.location=FILE"
        )
    # A renegotiation would let a client make the broker compute handshakes without end.
    context.options |= ssl.OP_NO_RENEGOTIATION | _ENABLE_KTLS
    # OpenSSL's default is two, for browsers that connect in parallel; a ticket costs a fifteenth of the handshake. Java
    # clients, which do resume, use up one per connection and get the next one with it; librdkafka uses none.
    context.num_tickets = 1
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Make the context of a client, or of a node as the client of another."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_up(context, settings)
    if not _trust(context, settings):
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    context.check_hostname = settings.checks_host
    return context


def leaf_certificate(settings: TlsSettings) -> bytes:
    """Return the first certificate of the key store in DER form; ConfigError if there is none."""
    if settings.keystore_location is not None:
        try:
            with open(settings.keystore_location, encoding="ascii", errors="replace") as file:
                text = file.read()
        except OSError as error:
            raise ConfigError(f"{settings.keystore_location} cannot be read: {error.strerror}") from None
    else:
        text = (settings.keystore_chain or Secret("")).reveal()
    match = _CERTIFICATE.search(text)
    if match is None:
        raise ConfigError("the key store has no certificate")
    return ssl.PEM_cert_to_DER_cert(match[0])


def check_identity(before: bytes, after: bytes, *, may_change_subject: bool, may_change_names: bool) -> None:
    """Raise ConfigError for a certificate that is not of the same node, as Kafka does when it reloads one."""
    if not may_change_subject and subject_name(before) != subject_name(after):
        raise ConfigError(
            f"the subject would change from {subject_name(before)} to {subject_name(after)};"
            " write ssl.allow.dn.changes=true to allow it"
        )
    if not may_change_names and not alternative_names(after) >= alternative_names(before):
        raise ConfigError("an alternative name would be lost; write ssl.allow.san.changes=true to allow it")


def check_trusted(settings: TlsSettings, host: str | None = None) -> None:
    """Raise ConfigError unless a node with these stores can connect to another one that has the same, at `host`."""
    client = client_context(settings)
    client.check_hostname = settings.checks_host and host is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        server_context(settings).wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname=host if client.check_hostname else None),
    ]
    waiting = [1, 0]
    # Each side needs three flights at most.
    for _ in range(8):
        for side in list(waiting):
            try:
                sides[side].do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                reason = getattr(error, "verify_message", "") or error.reason
                raise ConfigError(
                    f"the trust store of the listener between nodes does not verify its certificate ({reason})"
                ) from None
    if waiting:
        raise ConfigError("the certificate of the listener between nodes cannot be verified: no handshake")


def _set_up(context: ssl.SSLContext, settings: TlsSettings) -> None:
    suites = settings.cipher_suites
    versions = sorted(VERSIONS[protocol] for protocol in settings.protocols)
    if suites:
        newer = _TLS_1_3_SUITES.intersection(suites)
        if newer and newer != _TLS_1_3_SUITES and VERSIONS["TLSv1.3"] in versions:
            missing = ", ".join(sorted(_TLS_1_3_SUITES - newer))
            raise ConfigError(
                f"ssl.cipher.suites lists some of TLS 1.3's suites, which cannot be chosen singly; add {missing},"
                " or leave all three out, which disables TLS 1.3"
            )
        # As in Java: without one of its suites TLS 1.3 is never negotiated, and without one of its own neither is 1.2.
        older = [suite for suite in suites if suite not in _TLS_1_3_SUITES]
        versions = [version for version in versions if (newer if version is ssl.TLSVersion.TLSv1_3 else older)]
        if not versions:
            raise ConfigError("ssl.cipher.suites has no suite for any of ssl.enabled.protocols")
        if older:
            _set_ciphers(context, older)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    _load_key(context, settings)


def _set_ciphers(context: ssl.SSLContext, suites: Sequence[str]) -> None:
    for suite in suites:
        try:
            context.set_ciphers(openssl_name(suite))
        except ssl.SSLError:
            raise ConfigError(f"ssl.cipher.suites has {suite}, which OpenSSL does not have") from None
    context.set_ciphers(":".join(map(openssl_name, suites)))


def openssl_name(suite: str) -> str:
    """Translate the name of a TLS 1.2 suite: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256."""
    name = suite.removeprefix("TLS_").removeprefix("RSA_WITH_").replace("_WITH_", "_")
    name = re.sub(r"(AES|CAMELLIA|ARIA)_(128|256)", r"\1\2", name)
    # OpenSSL leaves out CBC, and the hash of ChaCha20.
    name = name.replace("_CBC_", "_").replace("POLY1305_SHA256", "POLY1305")
    return name.replace("_", "-")


def _load_key(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if not settings.has_key:
        return
    password = settings.key_password
    prompts = 0

    # A function and not None: OpenSSL would otherwise prompt on the terminal for the password of an encrypted key.
    def answer() -> str:
        nonlocal prompts
        prompts += 1
        return password.reveal() if password is not None else ""

    try:
        if settings.keystore_location is not None:
            source = f"ssl.keystore.location={settings.keystore_location}"
            context.load_cert_chain(settings.keystore_location, password=answer)
            return
        source = "ssl.keystore.key"
        assert settings.keystore_key is not None
        assert settings.keystore_chain is not None
        text = f"{settings.keystore_key.reveal().strip()}\n{settings.keystore_chain.reveal().strip()}\n"
        with _private_file(text) as path:
            context.load_cert_chain(path, password=answer)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        # OpenSSL says no more than "PEM lib" when a password is wrong.
        if prompts and password is None:
            raise ConfigError(
                f"{source}: the private key is encrypted; write its password as ssl.key.password"
            ) from None
        if prompts:
            raise ConfigError(f"{source}: ssl.key.password does not decrypt the private key") from None
        raise ConfigError(f"{source} cannot be used: {_explain(error, settings.keystore_location)}") from None


def _trust(context: ssl.SSLContext, settings: TlsSettings) -> bool:
    """Load the authorities; False if there are none."""
    source = f"ssl.truststore.location={settings.truststore_location}"
    try:
        if settings.truststore_location is not None:
            context.load_verify_locations(cafile=settings.truststore_location)
        elif settings.truststore_certificates is not None:
            source = "ssl.truststore.certificates"
            context.load_verify_locations(cadata=settings.truststore_certificates.reveal())
        else:
            return False
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source} cannot be used: {_explain(error, settings.truststore_location)}") from None
    return True


def _explain(error: Exception, path: str | None) -> str:
    text = str(error)
    if isinstance(error, ssl.SSLError):
        if "KEY_VALUES_MISMATCH" in text:
            return "the private key is not that of the certificate"
        if path is not None and (content := _describe_content(path)) is not None:
            return content
        return f"it is no PEM file with what is needed ({error.reason or 'PEM lib'})"
    return (error.strerror or text).lower() if isinstance(error, OSError) else text


def _describe_content(path: str) -> str | None:
    """Say what a file that is no PEM store looks like; None if that cannot be seen."""
    start = _read_start(path)
    if not start.strip():
        return "it is empty"
    pkcs12 = path
    convert = ""
    if start.startswith(_JKS):
        pkcs12 = "store.p12"
        convert = f"`keytool -importkeystore -srckeystore {path} -destkeystore store.p12 -deststoretype PKCS12` and "
    elif not start.startswith(_DER_SEQUENCE):
        return None
    kind = "JKS" if convert else "PKCS12 (or DER)"
    return f"it looks like {kind}, not PEM; convert it with {convert}`openssl pkcs12 -in {pkcs12} -out store.pem`"


def _has_pem(path: str) -> bool:
    return b"-----BEGIN " in _read_start(path)


def _read_start(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 16)  # tools write text before the first block
    except OSError:
        return b"?"


@contextlib.contextmanager
def _private_file(text: str) -> Iterator[str]:
    """A path for `text`, which Python's ssl reads keys from; in memory where the system can, never on a disk."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # mode 600
        file.write(text)
        file.flush()
        yield file.name


def _check_store(read: ReadSetting, location: str, inline: str, *, kind: str, password: str) -> None:
    """Refuse stores in Java's formats, which Kafka's defaults are, and contradictions; names are those of settings."""
    if not read(location) and not read(inline):
        return
    store = location.split(".")[1]
    if kind.upper() != "PEM":
        path = str(read(location) or "store")
        # Kafka's default is JKS: the line for the type is easily forgotten.
        if read(inline) or _has_pem(path):
            raise ConfigError(
                f"{location if read(location) else inline} has PEM, but ssl.{store}.type is {kind}"
                f" (JKS if the line is missing); write ssl.{store}.type=PEM"
            )
        raise ConfigError(
            f"ssl.{store}.type={kind} is a format of Java's, which Klamm does not read; convert it with"
            f" `keytool -importkeystore -srckeystore {path} -destkeystore store.p12 -deststoretype PKCS12` and"
            f" `openssl pkcs12 -in store.p12 -out {store}.pem{' -nokeys' if store == 'truststore' else ''}`,"
            f" then write ssl.{store}.type=PEM and {location}={store}.pem"
        )
    if read(location) and read(inline):
        raise ConfigError(f"{location} and {inline} exclude each other; write one of them")
    if read(password):
        raise ConfigError(
            f"{password} must not be written with ssl.{store}.type=PEM"
            + ("; the password of an encrypted key is ssl.key.password" if store == "keystore" else "")
        )


def _text(read: ReadSetting, name: str) -> str | None:
    value = read(name)
    return str(value) if value else None


def _secret(read: ReadSetting, name: str) -> Secret | None:
    value = _text(read, name)
    return Secret(value) if value else None


def _list(read: ReadSetting, name: str) -> tuple[str, ...]:
    value = read(name) or ()
    return tuple(value.split(",")) if isinstance(value, str) else tuple(value)
