"""A hostile TLS client: records that are valid and have no data, made with the keys of its own handshake."""

import hmac
import socket
import ssl
import struct
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HANDSHAKE, APPLICATION_DATA = 22, 23
KEY_BYTES, IV_BYTES, HASH_BYTES = 32, 12, 48
HASH = "sha384"
KEY_UPDATE = b"\x18\x00\x00\x01\x00"


class HostileClient:
    """Connects as an honest client, and goes on with records of its own."""

    def __init__(self, sock: socket.socket, authority: str, folder: Path, version: ssl.TLSVersion) -> None:
        self._log = folder / "tls-keys.log"
        context = ssl.create_default_context(cafile=authority)
        context.minimum_version = context.maximum_version = version
        # Both have keys of 32 bytes and SHA-384.
        context.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
        context.keylog_filename = str(self._log)
        self._version = version
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")
        self._sock = sock
        self._hello = self._server_random = b""

    def connect(self) -> None:
        """Complete the handshake; it blocks."""
        is_complete = False
        while not is_complete:
            try:
                self._tls.do_handshake()
                is_complete = True
            except ssl.SSLWantReadError:
                self._send_pending()
                self._take(self._sock.recv(1 << 16))
        self._send_pending()

    def _take(self, data: bytes) -> None:
        # Header of the record and of the message, version, random.
        self._server_random = self._server_random or data[11:43]
        self._incoming.write(data)

    def _send_pending(self) -> None:
        data = self._outgoing.read()
        self._hello = self._hello or data
        self._sock.sendall(data)

    def make_flood(self, count: int) -> bytes:
        """Return key updates of TLS 1.3, or renegotiations of TLS 1.2."""
        if self._version is ssl.TLSVersion.TLSv1_3:
            return self._make_key_updates(count)
        return self._make_renegotiations(count)

    def _make_key_updates(self, count: int) -> bytes:
        secret = self._logged("CLIENT_TRAFFIC_SECRET_0")
        records = []
        for _ in range(count):
            key, iv = _expand_label(secret, b"key", KEY_BYTES), _expand_label(secret, b"iv", IV_BYTES)
            text = KEY_UPDATE + bytes([HANDSHAKE])
            header = struct.pack(">BHH", APPLICATION_DATA, 0x0303, len(text) + 16)
            records.append(header + AESGCM(key).encrypt(iv, text, header))
            secret = _expand_label(secret, b"traffic upd", HASH_BYTES)
        return b"".join(records)

    def _make_renegotiations(self, count: int) -> bytes:
        """Records of a ClientHello each; sequence number 0 was the end of the handshake."""
        secret = self._logged("CLIENT_RANDOM")
        seed = b"key expansion" + self._server_random + self._hello[11:43]
        block = _expand_master(secret, seed, 2 * KEY_BYTES + 8)
        key, salt = AESGCM(block[:KEY_BYTES]), block[2 * KEY_BYTES : 2 * KEY_BYTES + 4]
        hello = self._hello[5:]
        records = []
        for number in range(1, count + 1):
            nonce = struct.pack(">Q", number)
            associated = nonce + struct.pack(">BHH", HANDSHAKE, 0x0303, len(hello))
            body = nonce + key.encrypt(salt + nonce, hello, associated)
            records.append(struct.pack(">BHH", HANDSHAKE, 0x0303, len(body)) + body)
        return b"".join(records)

    def _logged(self, label: str) -> bytes:
        lines = self._log.read_text().splitlines()
        return bytes.fromhex(next(line.split()[2] for line in lines if line.startswith(f"{label} ")))


def _expand_label(secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label of RFC 8446, with an empty context."""
    info = struct.pack(">HB", size, 6 + len(label)) + b"tls13 " + label + b"\0"
    return hmac.digest(secret, info + b"\x01", HASH)[:size]


def _expand_master(secret: bytes, seed: bytes, size: int) -> bytes:
    """P_hash of RFC 5246."""
    data, chained = b"", seed
    while len(data) < size:
        chained = hmac.digest(secret, chained, HASH)
        data += hmac.digest(secret, chained + seed, HASH)
    return data[:size]
