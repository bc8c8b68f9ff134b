"""TLS in a simulation: certificates, and both sides of a connection as real nodes and clients have them.

Handshakes and records are those of OpenSSL, whose keys and nonces cannot come from a seed. All that a run depends on is
how many bytes travel and when: so keys are RSA, whose certificates and signatures always have the same size (those of
ECDSA do not), and the digest of a run counts encrypted bytes instead of reading them.
"""

import asyncio
import datetime as dt
import ipaddress
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from klamm.net import tls_channel
from klamm.net.tls_transport import BufferedTls

MACHINES_MAX = 20
"""Addresses that the certificate of all nodes names: those of nodes and of their twins."""


class Certificates(NamedTuple):
    """PEM texts of one cluster: the certificate of its authority, and key and certificate of every node."""

    authority: str
    key: str
    chain: str


@cache
def make_certificates() -> Certificates:
    """Made once per process: every run of it may use the same."""
    own, key = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "simulated authority")])
    addresses = [x509.IPAddress(ipaddress.ip_address(f"10.0.0.{number}")) for number in range(1, MACHINES_MAX)]
    authority = (
        _begin(issuer, issuer, own)
        .serial_number(1)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(own, hashes.SHA256())
    )
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "node")])
    node = (
        _begin(subject, issuer, key)
        .serial_number(2)
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .sign(own, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return Certificates(authority.public_bytes(Encoding.PEM).decode(), pem, node.public_bytes(Encoding.PEM).decode())


def _begin(subject: x509.Name, issuer: x509.Name, key: rsa.RSAPrivateKey) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    # Of the machine's clock, not the simulated one: OpenSSL looks at that.
    first, last = (dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (2020, 2049))
    return builder.not_valid_before(first).not_valid_after(last)


def tls_settings() -> dict[str, str]:
    """What a node with TLS on all listeners has in its file."""
    certificates = make_certificates()
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": _in_one_line(certificates.key),
        "ssl.keystore.certificate.chain": _in_one_line(certificates.chain),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": _in_one_line(certificates.authority),
    }


def _in_one_line(pem: str) -> str:
    return pem.strip().replace("\n", "\\n")


@cache
def client_context() -> ssl.SSLContext:
    """What clients trust."""
    return ssl.create_default_context(cadata=make_certificates().authority)


@contextmanager
def encryption_in_memory() -> Iterator[None]:
    """Let nodes encrypt in memory also where the kernel could: it has no simulated sockets."""
    module: Any = tls_channel
    before = module.open_transport
    module.open_transport = BufferedTls
    try:
        yield
    finally:
        module.open_transport = before


async def begin_tls(
    loop: asyncio.AbstractEventLoop,
    connect: Callable[[Callable[[], Any]], Any],
    factory: Callable[[], Any],
    context: ssl.SSLContext,
    server_hostname: str,
) -> tuple[Any, Any]:
    """Connect, and return once the handshake is complete; as `loop.create_connection` does it with `ssl`."""
    waiter = loop.create_future()
    protocol = factory()

    def make_protocol() -> SSLProtocol:
        return SSLProtocol(loop, protocol, context, waiter, server_hostname=server_hostname)

    transport, encrypted = await connect(make_protocol)
    try:
        await waiter
    except BaseException:
        transport.abort()
        raise
    return encrypted._get_app_transport(), protocol
