"""Hostile peers that are not logged in: SASL in any order and form, TLS records before and within the handshake.

Every connection must end soon after its peer has stopped sending, and none may cost another one its answer.
"""

import base64
import random
import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fuzz.campaign import LOOK_EVERY, PROBE_S, Campaign, Outcome
from fuzz.requests import SERVED_APIS, changed, made_up
from fuzz.target import changed_text, join_parts, keep_input, kept_inputs, split_parts
from harness import KlammProcess, Wire
from harness.identity_provider import SigningKey, claims_of, key_set
from harness.wire import request_bytes
from klamm.cli.certs import issue, make_authority
from klamm.net.free_ports import free_ports
from klamm.security.core.bearer_claims import format_unsecured
from klamm.security.core.oauthbearer import OAUTHBEARER, BearerMessage, format_bearer
from klamm.security.core.refusal import InvalidCredentials
from klamm.security.core.scram import SCRAM_MECHANISMS, ScramClient
from klamm.security.core.secret import Secret

USER, PASSWORD = "alice", "alice-secret"
LISTENERS = {"SASL": "SASL_PLAINTEXT", "RENEWED": "SASL_PLAINTEXT", "TLS": "SSL", "BOTH": "SASL_SSL"}
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_MECHANISMS = ("PLAIN", *SCRAM_MECHANISMS, OAUTHBEARER)
STEP_S = 0.2
"""How long an attack waits for an answer before it goes on without one."""


class SecuredProcess(KlammProcess):
    """A node with a PLAINTEXT listener for the probe, and one of every other protocol."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port, *others = free_ports("127.0.0.1", 1 + len(LISTENERS))
        self.ports = dict(zip(LISTENERS, others, strict=True))
        certs = str(folder / "certs")
        make_authority(certs)
        issue(certs, "node", ("127.0.0.1",))
        issue(certs, "client", ())
        self.signing_key = SigningKey("fuzz")
        keys = folder / "keys.json"
        keys.write_bytes(key_set(self.signing_key))
        self.authority = f"{certs}/ca.pem"
        self.client_store = f"{certs}/client.pem"
        jaas = f'{_MODULE} required user_{USER}="{PASSWORD}";'
        protocols = ",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items())
        self.overrides = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:0,"
            + ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()),
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{protocols}",
            "sasl.enabled.mechanisms": ",".join(_MECHANISMS),
            "sasl.oauthbearer.jwks.endpoint.url": f"file://{keys}",
            "listener.name.renewed.connections.max.reauth.ms": "1500",
            "connection.failed.authentication.delay.ms": "1",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": f"{certs}/node.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority,
            "listener.name.tls.ssl.client.auth": "requested",
            **{
                f"listener.name.{name.lower()}.plain.sasl.jaas.config": jaas
                for name, protocol in LISTENERS.items()
                if protocol.startswith("SASL")
            },
        }


def add_user(wire: Wire) -> None:
    """Give the user credentials of both SCRAM mechanisms."""
    for mechanism in SCRAM_MECHANISMS.values():
        salt = b"salt" * 4
        upsertion = {
            "name": USER,
            "mechanism": mechanism.number,
            "iterations": 4096,
            "salt": salt,
            "salted_password": mechanism.salt_password(PASSWORD.encode(), salt, 4096),
        }
        reply = wire.call("alter_user_scram_credentials", 0, deletions=[], upsertions=[upsertion])
        assert reply.results[0].error_code == 0, reply


class Peer:
    """One hostile connection; `sent` is what it has sent."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=STEP_S)
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.sent.append(data)
        self.sock.sendall(data)

    def send_frame(self, body: bytes) -> None:
        """Send a frame with the right length."""
        self.send(struct.pack(">i", len(body)) + body)

    def receive_frame(self) -> bytes:
        """Return the next answer; OSError without one."""
        size = struct.unpack(">i", self._exactly(4))[0]
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise ConnectionResetError("closed")
            data += more
        return data


Attack = Callable[["LoginCampaign", Peer, random.Random], None]


def _handshake(mechanism: str, version: int) -> bytes:
    return request_bytes("sasl_handshake", version, 1, "fuzz", mechanism=mechanism)


def _authenticate(token: bytes, version: int) -> bytes:
    return request_bytes("sasl_authenticate", version, 2, "fuzz", auth_bytes=token)


def _attack_handshake(_: "LoginCampaign", peer: Peer, source: random.Random) -> None:
    frame = _handshake(source.choice((*_MECHANISMS, "GSSAPI", "", "x" * 300)), source.randint(0, 1))
    peer.send_frame(changed(source, frame) if source.random() < 0.7 else frame)


def _attack_order(_: "LoginCampaign", peer: Peer, source: random.Random) -> None:
    """Requests of a login, and others, in any order, without waiting for answers."""
    for _number in range(source.randint(1, 6)):
        frames = (
            _handshake(source.choice(_MECHANISMS), source.randint(0, 1)),
            _authenticate(b"\0alice\0wrong", source.randint(0, 2)),
            _authenticate(b"n,,n=alice,r=abc", source.randint(0, 2)),
            _authenticate(b"c=biws,r=abc,p=AAAA", source.randint(0, 2)),
            request_bytes("api_versions", 3, 3, "fuzz", client_software_name="f", client_software_version="1"),
            request_bytes("metadata", 12, 4, "fuzz", topics=[]),
            made_up(source, source.choice(SERVED_APIS)),
        )
        peer.send_frame(source.choice(frames))


def _attack_tokens(_: "LoginCampaign", peer: Peer, source: random.Random) -> None:
    """A login step by step, with one or both of its tokens harmed."""
    mechanism = source.choice(("PLAIN", *SCRAM_MECHANISMS))
    bare = source.random() < 0.3
    peer.send_frame(_handshake(mechanism, 0 if bare else 1))
    peer.receive_frame()
    if mechanism == "PLAIN":
        tokens = iter((f"\0{USER}\0{PASSWORD}".encode(),))
        harmed = changed(source, next(tokens))
        peer.send_frame(harmed if bare else _authenticate(harmed, source.randint(0, 2)))
        return
    client = ScramClient(SCRAM_MECHANISMS[mechanism], USER, Secret(PASSWORD), nonce="fuzz-nonce")
    token = client.first()
    harm_at = source.randrange(3)
    for step in range(2):
        if step == harm_at:
            token = changed_text(source, token) if source.random() < 0.7 else changed(source, token.ljust(8))
        version = source.randint(0, 1)
        peer.send_frame(token if bare else _authenticate(token, version))
        answer = peer.receive_frame()
        # Behind the correlation id: error code, message, and the token behind its length.
        if not bare:
            answer = _auth_bytes(answer)
        with suppress(InvalidCredentials):
            token = client.step(answer)
            if client.complete:
                break
    _send_after_login(peer, source)


def _attack_bearer(campaign: "LoginCampaign", peer: Peer, source: random.Random) -> None:
    """A bearer token that is harmed, badly signed, of wrong claims, or good, and what may follow each."""
    bare = source.random() < 0.3
    peer.send_frame(_handshake(OAUTHBEARER, 0 if bare else 1))
    peer.receive_frame()
    message = format_bearer(BearerMessage(Secret(_make_token(campaign.node.signing_key, source))))
    if source.random() < 0.5:
        message = changed_text(source, message) if source.random() < 0.7 else changed(source, message)
    # A refused token is answered with the reason, and then refused again: or answered with another token.
    for token in (message, source.choice((b"\x01", message, b"", source.randbytes(20)))):
        peer.send_frame(token if bare else _authenticate(token, source.randint(0, 2)))
        peer.receive_frame()
    _send_after_login(peer, source)


def _make_token(key: SigningKey, source: random.Random) -> str:
    odd = source.choice((None, -1, 1e308, 2**70, "", [], {"a": 1}, True, "x" * 3000))
    claims = claims_of(USER) | {source.choice(("sub", "exp", "iat", "nbf", "aud", "scope")): odd}
    match source.randrange(5):
        case 0:
            return key.sign(claims_of(USER))
        case 1:
            return key.sign(claims)
        case 2:
            # Signed by another key under the same id, or by none.
            return SigningKey(source.choice((key.key_id, "unknown"))).sign(claims_of(USER))
        case 3:
            return format_unsecured(claims)
        case _:
            header, body, signature = key.sign(claims).split(".")
            parts = [header, body, signature, _encode_part(source)]
            source.shuffle(parts)
            return ".".join(parts[: source.randint(1, 4)])


def _encode_part(source: random.Random) -> str:
    """Part of a token: any JSON or bytes, nested deeply now and then."""
    data = source.choice(
        (b"[" * 5000, b'{"alg":"ES256","kid":["x"]}', b'{"alg":"none"}', b"\xff\xfe", b'{"exp":1e999}')
    )
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _auth_bytes(answer: bytes) -> bytes:
    """The token inside a SaslAuthenticate response of v0 or v1."""
    (message_size,) = struct.unpack_from(">h", answer, 6)
    at = 8 + max(message_size, 0)
    (size,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + size]


def _send_after_login(peer: Peer, source: random.Random) -> None:
    for _ in range(source.randint(1, 3)):
        frame = source.choice(
            (
                _handshake(source.choice(_MECHANISMS), 1),
                _authenticate(b"n,,n=alice,r=abc", 1),
                request_bytes("metadata", 12, 4, "fuzz", topics=[]),
            )
        )
        peer.send_frame(changed(source, frame) if source.random() < 0.5 else frame)


def _attack_sizes(_: "LoginCampaign", peer: Peer, source: random.Random) -> None:
    """Frames that are too large, of negative size, or shorter than they say."""
    size = source.choice((-1, -(2**31), 0, 3, 65_537, 524_289, 100 << 20, 2**31 - 1))
    peer.send(struct.pack(">i", size) + source.randbytes(source.choice((0, 10, 70_000))))


def _attack_truncated(_: "LoginCampaign", peer: Peer, source: random.Random) -> None:
    frame = _handshake("SCRAM-SHA-256", 1)
    data = struct.pack(">i", len(frame)) + frame
    peer.send(data[: source.randrange(len(data))])


# --- TLS -------------------------------------------------------------------------------------------------------------


class _Tls:
    """The client's side of a handshake through memory, so that every record can be harmed."""

    def __init__(self, campaign: "LoginCampaign", source: random.Random) -> None:
        context = ssl.create_default_context(cafile=campaign.node.authority)
        if source.random() < 0.5:
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        if source.random() < 0.3:
            context.load_cert_chain(campaign.node.client_store)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")

    def step(self, peer: Peer, harm: Callable[[bytes], bytes]) -> bool:
        """Go on with the handshake until it waits; False when it is complete."""
        try:
            self.object.do_handshake()
            complete = True
        except ssl.SSLWantReadError:
            complete = False
        data = self.outgoing.read()
        if data:
            peer.send(harm(data))
        if complete:
            return False
        self.incoming.write(_read_some(peer))
        return True


def _read_some(peer: Peer) -> bytes:
    data = peer.sock.recv(65536)
    if not data:
        raise ConnectionResetError("closed")
    return data


def _attack_tls_start(campaign: "LoginCampaign", peer: Peer, source: random.Random) -> None:
    """A harmed ClientHello, garbage, or a request without TLS."""
    way = source.randrange(4)
    if way == 0:
        peer.send(source.randbytes(source.randint(1, 600)))
    elif way == 1:
        peer.send_frame(request_bytes("api_versions", 0, 1, "fuzz"))
    else:
        _Tls(campaign, source).step(peer, lambda data: changed(source, data))


def _attack_tls_handshake(campaign: "LoginCampaign", peer: Peer, source: random.Random) -> None:
    """A handshake one of whose later flights is harmed, repeated or cut."""
    tls = _Tls(campaign, source)
    flight = 0

    def harm(data: bytes) -> bytes:
        nonlocal flight
        flight += 1
        if flight == 1 and source.random() < 0.8:
            return data
        return source.choice((changed(source, data), data * 2, data[: len(data) // 2], data + source.randbytes(40)))

    while tls.step(peer, harm):
        pass
    peer.send(_record(source))


def _attack_tls_records(campaign: "LoginCampaign", peer: Peer, source: random.Random) -> None:
    """A whole handshake, then records that are harmed, out of place, or hold harmed requests."""
    tls = _Tls(campaign, source)
    while tls.step(peer, bytes):
        pass
    for _ in range(source.randint(1, 3)):
        frame = changed(source, _handshake("PLAIN", 1))
        tls.object.write(struct.pack(">i", len(frame)) + frame)
        data = tls.outgoing.read()
        peer.send(source.choice((data, changed(source, data), data + _record(source), _record(source))))


def _record(source: random.Random) -> bytes:
    """A TLS record of any type."""
    body = source.randbytes(source.choice((0, 2, 40, 17_000)))
    kind = source.choice((20, 21, 22, 23, 24, 255))
    return struct.pack(">BHH", kind, source.choice((0x0301, 0x0303)), min(len(body), 0xFFFF)) + body


ATTACKS: dict[str, tuple[tuple[str, ...], Attack]] = {
    "handshakes": (("SASL", "RENEWED"), _attack_handshake),
    "order": (("SASL", "RENEWED"), _attack_order),
    "tokens": (("SASL", "RENEWED"), _attack_tokens),
    "bearer tokens": (("SASL", "RENEWED"), _attack_bearer),
    "sizes": (("SASL", "TLS", "BOTH"), _attack_sizes),
    "truncated": (("SASL", "TLS", "BOTH"), _attack_truncated),
    "start of TLS": (("TLS", "BOTH"), _attack_tls_start),
    "TLS handshakes": (("TLS", "BOTH"), _attack_tls_handshake),
    "TLS records": (("TLS", "BOTH"), _attack_tls_records),
}


class LoginCampaign(Campaign):
    """A node whose listeners all require something, and peers that do not have it."""

    def __init__(self, node: SecuredProcess, seed: int) -> None:
        super().__init__(node, seed)
        self.node = node
        self._listener: str | None = None
        """That of the last connection."""

    def run(self, seconds: float) -> Outcome:
        """Attack for so long; Violation as soon as something is wrong."""
        deadline = time.monotonic() + seconds
        with Wire(self._node.port, timeout=PROBE_S) as probe:
            topic = probe.create_topic()
            add_user(probe)
            # Once each, so that later growth is growth.
            for kind in ATTACKS:
                self._attack(kind)
            before = self._usage()
            for listener in LISTENERS:
                for data in kept_inputs(f"logins {listener}"):
                    self._replay(listener, split_parts(data))
                    self._probe(probe)
            while time.monotonic() < deadline:
                self._attack(self._source.choice(sorted(ATTACKS)))
                self._probe(probe)
                if self.outcome.connections % LOOK_EVERY == 0:
                    self._check_node(probe, topic, before)
            self._check_node(probe, topic, before)
        return self.outcome

    def _attack(self, kind: str) -> None:
        listeners, attack = ATTACKS[kind]
        self._connect_and(kind, self._source.choice(listeners), attack)

    def _replay(self, listener: str, sent: list[bytes]) -> None:
        """Send what was kept; within TLS it is another session, so only the first records mean the same."""

        def send_again(_campaign: "LoginCampaign", peer: Peer, _source: random.Random) -> None:
            for data in sent:
                peer.send(data)

        self._connect_and("kept", listener, send_again)

    def _connect_and(self, kind: str, listener: str, attack: Attack) -> None:
        outcome = self.outcome
        self._listener = listener
        try:
            peer = Peer(self.node.ports[listener])
        except OSError as error:
            raise self._violation(f"no connection is accepted: {error!r}") from None
        outcome.connections += 1
        outcome.by_kind[kind] += 1
        # Only what this connection sends: bytes of another one would belong to another state of the login.
        self._recent.clear()
        with peer.sock:
            # Refused, closed, or without an answer to wait for: the attack is over then.
            with suppress(OSError, ssl.SSLError, struct.error):
                attack(self, peer, self._source)
            outcome.frames += len(peer.sent)
            self._recent.extend((kind, data) for data in peer.sent)
            self._wait_for_end(peer)

    def _keep_recent(self) -> Path | None:
        if not self._recent or self._listener is None:
            return None
        return keep_input(f"logins {self._listener}", join_parts([data for _, data in self._recent]))

    def _wait_for_end(self, peer: Peer) -> None:
        try:
            peer.sock.settimeout(PROBE_S)
            peer.sock.shutdown(socket.SHUT_WR)
            while peer.sock.recv(65536):
                self.outcome.answers += 1
        except TimeoutError:
            raise self._violation("a connection that its peer has ended stays open") from None
        except OSError:
            return
