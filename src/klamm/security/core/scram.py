"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677) without channel binding: both sides of a login, and credentials.

The password never travels, and the broker stores only what verifies a proof. Nonces and salts are arguments.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from klamm.security.core.refusal import InvalidCredentials, LoginRefused
from klamm.security.core.secret import Secret

ITERATIONS_MIN: Final = 4096
SALT_BYTES: Final = 24
"""Of the salts that this project makes; other programs may choose others."""
ITERATIONS_MAX: Final = 16_384
"""Kafka's bounds of stored credentials."""

ANSWER_ITERATIONS_MAX: Final = 1_000_000
"""What a client computes for a server at most: a hostile one could keep it busy for hours (CVE-2026-10143)."""

_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_BASE64: Final = r"[A-Za-z0-9+/]+={0,2}"
_PRINTABLE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<gs2>n,(?:a=(?P<authorization>{_NAME}))?,)(?P<bare>n=(?P<user>{_NAME}),r=(?P<nonce>{_PRINTABLE})"
    rf"(?P<extensions>(?:,[A-Za-z0-9]+={_PRINTABLE})*))"
)
_SERVER_FIRST: Final = re.compile(
    rf"r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,9}})(?:,[A-Za-z]={_PRINTABLE})*"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<unproven>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_PRINTABLE})(?:,[A-Za-z]={_PRINTABLE})*),p=(?P<proof>{_BASE64})"
)
_SERVER_FINAL: Final = re.compile(rf"(?:v=(?P<signature>{_BASE64})|e=(?P<error>[^,]+))(?:,[A-Za-z]={_PRINTABLE})*")


@dataclass(frozen=True, slots=True)
class ScramHash:
    """One of the two: its name, Kafka's number for it, and its hash."""

    name: str
    number: int
    hash_name: str

    def hash(self, data: bytes) -> bytes:
        """H of RFC 5802."""
        return hashlib.new(self.hash_name, data).digest()

    def sign(self, key: bytes, data: bytes) -> bytes:
        """HMAC of RFC 5802."""
        return hmac.digest(key, data, self.hash_name)

    def salt_password(self, password: bytes, salt: bytes, iterations: int) -> bytes:
        """Hi of RFC 5802; takes milliseconds, so call it in a thread."""
        return hashlib.pbkdf2_hmac(self.hash_name, password, salt, iterations)


SCRAM_SHA_256: Final = ScramHash("SCRAM-SHA-256", 1, "sha256")
SCRAM_SHA_512: Final = ScramHash("SCRAM-SHA-512", 2, "sha512")
SCRAM_MECHANISMS: Final = {mechanism.name: mechanism for mechanism in (SCRAM_SHA_256, SCRAM_SHA_512)}
SCRAM_BY_NUMBER: Final = {mechanism.number: mechanism for mechanism in SCRAM_MECHANISMS.values()}


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """What a broker stores of a user: enough to verify a proof, not enough to make one."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def keys_from_salted(mechanism: ScramHash, salted_password: bytes, salt: bytes, iterations: int) -> ScramKeys:
    """Return the credential of a password that was salted elsewhere, as AlterUserScramCredentials sends it."""
    client_key = mechanism.sign(salted_password, b"Client Key")
    server_key = mechanism.sign(salted_password, b"Server Key")
    return ScramKeys(salt, mechanism.hash(client_key), server_key, iterations)


def make_keys(mechanism: ScramHash, password: Secret, salt: bytes, iterations: int) -> ScramKeys:
    """Return the credential of a password."""
    salted = mechanism.salt_password(password.reveal().encode(), salt, iterations)
    return keys_from_salted(mechanism, salted, salt, iterations)


class DecoyShape(NamedTuple):
    """What a challenge shows of a credential."""

    salt_bytes: int
    iterations: int


def decoy_keys(mechanism: ScramHash, user: str, secret: bytes, shapes: Sequence[DecoyShape]) -> ScramKeys:
    """Return a credential that no password fits, the same for a user every time.

    An unknown user gets a challenge like any other, so that names cannot be tried out: `shapes` are those of the users
    that exist.
    """
    salt = mechanism.sign(secret, b"salt" + user.encode())
    key = mechanism.sign(secret, b"key" + user.encode())
    shape = shapes[int.from_bytes(key[:4], "big") % len(shapes)]
    while len(salt) < shape.salt_bytes:
        salt += mechanism.sign(secret, salt)
    return ScramKeys(salt[: shape.salt_bytes], key, key, shape.iterations)


MakeDecoy = Callable[[str, bool], ScramKeys]
"""A credential for a user that does not exist; with True the name is the id of a delegation token."""

LookUp = Callable[[str, bool], ScramKeys | None]
"""The credential of a user; with True the name is the id of a delegation token."""


class ScramServer:
    """The broker's side of one login: two tokens, each with an answer."""

    def __init__(self, mechanism: ScramHash, look_up: LookUp, *, nonce: str, make_decoy: MakeDecoy) -> None:
        self.mechanism = mechanism.name
        self._mechanism = mechanism
        self._look_up = look_up
        self._nonce = nonce
        self._make_decoy = make_decoy
        self._gs2 = b""
        self._first_messages = ""
        self._credential: ScramKeys | None = None
        self._is_known = False
        self._name = ""
        self.user = ""
        """The user, or the id of the token, once `complete`."""
        self.token_authentication = False
        """Whether the client logs in with a delegation token: `user` is then the id of the token."""
        self.complete = False

    def step(self, token: bytes) -> bytes:
        """Return the answer to a token; LoginRefused or InvalidCredentials ends the login."""
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise InvalidCredentials("the SCRAM message is not UTF-8") from None
        return self._challenge(text) if self._credential is None else self._verify(text)

    def _challenge(self, text: str) -> bytes:
        match = _CLIENT_FIRST.fullmatch(text)
        if match is None:
            raise InvalidCredentials("invalid SCRAM client first message")
        user = unescape_name(match["user"])
        authorization_id = unescape_name(match["authorization"] or "")
        # CVE-2017-12610: a client could name any other user here and become it.
        if authorization_id not in ("", user):
            raise LoginRefused(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        extensions = dict(part.split("=", 1) for part in match["extensions"].split(",") if part)
        self.token_authentication = extensions.get("tokenauth", "").lower() == "true"
        # Made for known users, too: the time must not tell them apart.
        decoy = self._make_decoy(user, self.token_authentication)
        credential = self._look_up(user, self.token_authentication)
        self._is_known = credential is not None
        self._credential = credential or decoy
        self._name = user
        self._nonce = match["nonce"] + self._nonce
        self._gs2 = match["gs2"].encode()
        salt = base64.b64encode(self._credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._first_messages = f"{match['bare']},{answer}"
        return answer.encode()

    def _verify(self, text: str) -> bytes:
        assert self._credential is not None
        match = _CLIENT_FINAL.fullmatch(text)
        if match is None:
            raise InvalidCredentials("invalid SCRAM client final message")
        # CVE-2024-56128: without it an intercepted proof could be used again.
        if not hmac.compare_digest(match["nonce"].encode(), self._nonce.encode()):
            raise InvalidCredentials("the nonce is not the server's")
        if _decode(match["binding"]) != self._gs2:
            raise InvalidCredentials("the channel binding is not that of the first message")
        mechanism, credential = self._mechanism, self._credential
        message = f"{self._first_messages},{match['unproven']}".encode()
        proof = _decode(match["proof"])
        signature = mechanism.sign(credential.stored_key, message)
        # Before the xor, which takes equal lengths only.
        if len(proof) != len(signature):
            raise InvalidCredentials("the proof has another length than the hash")
        stored_key = mechanism.hash(_xor(proof, signature))
        # Both are evaluated: an unknown user takes as long as a wrong password.
        is_proven = hmac.compare_digest(stored_key, credential.stored_key)
        if not is_proven or not self._is_known:
            raise InvalidCredentials("wrong password" if self._is_known else "unknown user")
        self.user, self.complete = self._name, True
        return b"v=" + base64.b64encode(mechanism.sign(credential.server_key, message))


class ScramClient:
    """The client's side of one login."""

    def __init__(
        self, mechanism: ScramHash, user: str, password: Secret, *, nonce: str, token_authentication: bool = False
    ) -> None:
        self.mechanism = mechanism.name
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        extension = ",tokenauth=true" if token_authentication else ""
        self._bare = f"n={escape_name(user)},r={nonce}{extension}"
        self._server_signature = b""
        self.complete = False

    def first(self) -> bytes:
        """Return the first token."""
        return f"n,,{self._bare}".encode()

    def step(self, answer: bytes) -> bytes:
        """Return the token that follows an answer; computes the salted password, so call it in a thread."""
        text = answer.decode(errors="replace")
        return self._finish(text) if self._server_signature else self._prove(text)

    def _prove(self, text: str) -> bytes:
        match = _SERVER_FIRST.fullmatch(text)
        if match is None:
            raise InvalidCredentials("invalid SCRAM server first message")
        # RFC 5802, 5.1: the client's part shows that this is the answer to this login; the server must add its own.
        if not match["nonce"].startswith(self._nonce) or match["nonce"] == self._nonce:
            raise InvalidCredentials("the server did not extend the nonce")
        iterations = int(match["iterations"])
        if not ITERATIONS_MIN <= iterations <= ANSWER_ITERATIONS_MAX:
            raise InvalidCredentials(
                f"the server requires {iterations} iterations, not {ITERATIONS_MIN} to {ANSWER_ITERATIONS_MAX}"
            )
        mechanism = self._mechanism
        salted = mechanism.salt_password(self._password.reveal().encode(), _decode(match["salt"]), iterations)
        client_key = mechanism.sign(salted, b"Client Key")
        unproven = f"c={base64.b64encode(b'n,,').decode()},r={match['nonce']}"
        message = f"{self._bare},{text},{unproven}".encode()
        proof = _xor(client_key, mechanism.sign(mechanism.hash(client_key), message))
        self._server_signature = mechanism.sign(mechanism.sign(salted, b"Server Key"), message)
        return f"{unproven},p={base64.b64encode(proof).decode()}".encode()

    def _finish(self, text: str) -> bytes:
        match = _SERVER_FINAL.fullmatch(text)
        if match is None or match["error"]:
            raise InvalidCredentials(f"the server refuses: {match['error'] if match else 'invalid final message'}")
        # A server that does not have the password's keys is not the one that the user has an account on.
        if not hmac.compare_digest(_decode(match["signature"]), self._server_signature):
            raise InvalidCredentials("the server's signature is wrong")
        self.complete = True
        return b""


def escape_name(name: str) -> str:
    """Write a name as SCRAM does: "," and "=" would end it."""
    # "=" first, or the escapes of "," would be escaped again; `unescape_name` goes the other way round.
    return name.replace("=", "=3D").replace(",", "=2C")


def unescape_name(name: str) -> str:
    """Read a name that `escape_name` wrote."""
    return name.replace("=2C", ",").replace("=3D", "=")


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise InvalidCredentials("invalid base64") from None


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
