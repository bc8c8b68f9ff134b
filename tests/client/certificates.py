"""Certificates made on the spot, with the standard library alone: elliptic-curve keys (P-256) and X.509 in DER.

Enough for a test's authority, a broker and a client; nothing here guards anything.
"""

import base64
import datetime as dt
import hashlib
import ipaddress
import secrets
from pathlib import Path
from typing import NamedTuple

P = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
Point = tuple[int, int] | None

EC_KEY, P256, ECDSA_SHA256 = "1.2.840.10045.2.1", "1.2.840.10045.3.1.7", "1.2.840.10045.4.3.2"
COMMON_NAME = "2.5.4.3"
KEY_IDENTIFIER, KEY_USAGE, ALTERNATIVE_NAME, CONSTRAINTS, AUTHORITY = (f"2.5.29.{arc}" for arc in (14, 15, 17, 19, 35))


def added(a: Point, b: Point) -> Point:
    if a is None or b is None:
        return a or b
    if a[0] == b[0] and (a[1] + b[1]) % P == 0:
        return None
    rise, run = (3 * a[0] * a[0] - 3, 2 * a[1]) if a == b else (b[1] - a[1], b[0] - a[0])
    slope = rise * pow(run, -1, P) % P
    x = (slope * slope - a[0] - b[0]) % P
    return x, (slope * (a[0] - x) - a[1]) % P


def times(k: int, point: Point) -> Point:
    total: Point = None
    while k:
        if k & 1:
            total = added(total, point)
        point = added(point, point)
        k >>= 1
    return total


def der(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    if len(body) < 128:
        return bytes([tag, len(body)]) + body
    size = len(body).to_bytes((len(body).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(size)]) + size + body


def sequence(*parts: bytes) -> bytes:
    return der(0x30, *parts)


def integer(value: int) -> bytes:
    return der(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def bits(data: bytes, unused: int = 0) -> bytes:
    return der(0x03, bytes([unused]), data)


def oid(text: str) -> bytes:
    first, second, *rest = map(int, text.split("."))
    body = bytes([40 * first + second])
    for number in rest:
        septets = [number & 127]
        while number := number >> 7:
            septets.insert(0, number & 127 | 128)
        body += bytes(septets)
    return der(0x06, body)


def extension(name: str, value: bytes, *, critical: bool = False) -> bytes:
    return sequence(oid(name), der(0x01, b"\xff") if critical else b"", der(0x04, value))


class Key:
    """A private key and what others see of it."""

    def __init__(self) -> None:
        self.secret = secrets.randbelow(N - 1) + 1
        point = times(self.secret, G)
        assert point is not None
        self.point = b"\x04" + point[0].to_bytes(32, "big") + point[1].to_bytes(32, "big")
        self.identifier = hashlib.sha1(self.point, usedforsecurity=False).digest()

    def public(self) -> bytes:
        return sequence(sequence(oid(EC_KEY), oid(P256)), bits(self.point))

    def private(self) -> bytes:
        """As PKCS #8, which OpenSSL and Java read."""
        secret = sequence(integer(1), der(0x04, self.secret.to_bytes(32, "big")), der(0xA1, bits(self.point)))
        return sequence(integer(0), sequence(oid(EC_KEY), oid(P256)), der(0x04, secret))

    def signed(self, data: bytes) -> bytes:
        digest = int.from_bytes(hashlib.sha256(data).digest(), "big")
        k = secrets.randbelow(N - 1) + 1
        point = times(k, G)
        assert point is not None
        r = point[0] % N
        return sequence(integer(r), integer(pow(k, -1, N) * (digest + r * self.secret) % N))


def pem(kind: str, data: bytes) -> str:
    text = base64.encodebytes(data).decode().replace("\n", "")
    lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----\n"


def name(common: str) -> bytes:
    return sequence(der(0x31, sequence(oid(COMMON_NAME), der(0x0C, common.encode()))))


class Files(NamedTuple):
    """Paths of a certificate and its key."""

    certificate: str
    key: str


class Authority:
    """Signs certificates; `path` is its own, for those who shall believe it."""

    def __init__(self, folder: Path, common: str = "test authority") -> None:
        self._folder = folder
        self._name = name(common)
        self._key = Key()
        extensions = [
            extension(CONSTRAINTS, sequence(der(0x01, b"\xff")), critical=True),
            extension(KEY_USAGE, bits(b"\x06", 1), critical=True),
            extension(KEY_IDENTIFIER, der(0x04, self._key.identifier)),
        ]
        self.path = self._store(
            common, "certificate", "CERTIFICATE", self._certificate(self._name, self._key, extensions)
        )

    def issue(self, common: str, *hosts: str, days: tuple[int, int] = (-1, 30)) -> Files:
        """A certificate for a subject, which may be a server at these hosts (names or addresses), for these days."""
        key = Key()
        extensions = [
            extension(CONSTRAINTS, sequence(), critical=True),
            extension(KEY_USAGE, bits(b"\x80", 7), critical=True),
            extension(KEY_IDENTIFIER, der(0x04, key.identifier)),
            extension(AUTHORITY, sequence(der(0x80, self._key.identifier))),
        ]
        if hosts:
            extensions.append(extension(ALTERNATIVE_NAME, sequence(*map(alternative, hosts))))
        certificate = self._certificate(name(common), key, extensions, days)
        return Files(
            self._store(common, "certificate", "CERTIFICATE", certificate),
            self._store(common, "key", "PRIVATE KEY", key.private()),
        )

    def _certificate(
        self, subject: bytes, key: Key, extensions: list[bytes], days: tuple[int, int] = (-1, 30)
    ) -> bytes:
        now = dt.datetime.now(dt.UTC)
        span = [f"{now + dt.timedelta(days=day):%y%m%d%H%M%SZ}".encode() for day in days]
        algorithm = sequence(oid(ECDSA_SHA256))
        body = sequence(
            der(0xA0, integer(2)),
            integer(secrets.randbits(63) + 1),
            algorithm,
            self._name,
            sequence(*(der(0x17, time) for time in span)),
            subject,
            key.public(),
            der(0xA3, sequence(*extensions)),
        )
        return sequence(body, algorithm, bits(self._key.signed(body)))

    def _store(self, common: str, what: str, kind: str, data: bytes) -> str:
        path = self._folder / f"{common.replace(' ', '-')}.{what}.pem"
        path.write_text(pem(kind, data))
        return str(path)


def alternative(host: str) -> bytes:
    try:
        return der(0x87, ipaddress.ip_address(host).packed)
    except ValueError:
        return der(0x82, host.encode())
