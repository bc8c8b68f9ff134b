"""Logins that expire (KIP-368): their lifetime, renewal on the open connection, and the end without one."""

import pytest

from harness.inprocess import NodeThread
from harness.wire import Wire
from klamm.model.clock import SystemClock
from klamm.model.errors import ErrorCode
from klamm.security.core.scram import SCRAM_SHA_256, ScramClient
from klamm.security.core.secret import Secret

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SESSION_MS = 60_000
OVERRIDES = (
    "listeners=PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256",
    f'sasl.jaas.config={MODULE} required user_alice="secret" user_bob="secret";',
    f"connections.max.reauth.ms={SESSION_MS}",
    "listener.name.clients.scram-sha-256.connections.max.reauth.ms=0",
    "connection.failed.authentication.delay.ms=0",
)


class AdvancedClock(SystemClock):
    """The system's clock, moved forward by a test."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    clock = AdvancedClock()
    with NodeThread(tmp_path_factory.mktemp("node"), *OVERRIDES) as node:
        settings = node.run(lambda started: started.net._acceptors["CLIENTS"]._open_channel.args[0])
        object.__setattr__(settings, "clock", clock)
        yield node, clock


@pytest.fixture
def connection(running):
    with Wire(running[0].node.addresses["CLIENTS"][1]) as wire:
        yield wire


def log_in(wire: Wire, user: str = "alice", version: int = 2):
    assert wire.call("sasl_handshake", 1, mechanism="PLAIN").error_code == 0
    return wire.call("sasl_authenticate", version, auth_bytes=f"\0{user}\0secret".encode())


def lifetime_ms(answer) -> float:
    value = answer.session_lifetime
    return value.total_seconds() * 1000 if hasattr(value, "total_seconds") else value


def works(wire: Wire) -> bool:
    return wire.call("api_versions", 0).error_code == 0


def test_the_answer_has_the_lifetime(connection):
    assert lifetime_ms(log_in(connection)) == SESSION_MS
    assert works(connection)


def test_a_mechanism_may_have_sessions_without_an_end(running, connection):
    node, clock = running
    with Wire(node.port) as admin:
        salted = SCRAM_SHA_256.salt_password(b"secret", b"salt", 4096)
        upsertion = {"name": "carol", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": salted}
        admin.call("alter_user_scram_credentials", 0, deletions=[], upsertions=[upsertion])
    client = ScramClient(SCRAM_SHA_256, "carol", Secret("secret"), nonce="nonce")
    connection.call("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
    answer = connection.call("sasl_authenticate", 2, auth_bytes=client.first())
    assert lifetime_ms(connection.call("sasl_authenticate", 2, auth_bytes=client.step(answer.auth_bytes))) == 0
    clock.ahead_ms += 10 * SESSION_MS
    assert works(connection)


def test_a_login_is_renewed_between_requests(running, connection):
    _, clock = running
    log_in(connection)
    for _ in range(3):
        clock.ahead_ms += SESSION_MS * 9 // 10
        assert works(connection)
        assert lifetime_ms(log_in(connection)) == SESSION_MS
    assert works(connection)


def test_replies_may_arrive_during_a_renewal(running, connection):
    _, clock = running
    log_in(connection)
    clock.ahead_ms += SESSION_MS // 2
    first = connection.send("metadata", 12, topics=[])
    second = connection.send("sasl_handshake", 1, mechanism="PLAIN")
    assert connection.receive("metadata", 12, first).brokers
    assert connection.receive("sasl_handshake", 1, second).error_code == 0
    assert connection.call("sasl_authenticate", 2, auth_bytes=b"\0alice\0secret").error_code == 0
    assert works(connection)


@pytest.mark.parametrize("version", [0, 2])
def test_a_request_after_the_end_closes_without_an_answer(running, connection, version):
    log_in(connection, version=version)
    running[1].ahead_ms += SESSION_MS + 1
    connection.send("api_versions", 0)
    assert connection.is_closed_by_peer()


def test_a_handshake_renews_even_after_the_end(running, connection):
    log_in(connection)
    running[1].ahead_ms += 5 * SESSION_MS
    assert log_in(connection).error_code == 0
    assert works(connection)


def test_a_renewal_cannot_change_the_principal(running, connection):
    log_in(connection)
    running[1].ahead_ms += SESSION_MS // 2
    answer = log_in(connection, "bob")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == "Cannot change principals during re-authentication from User.alice: User.bob"
    assert connection.is_closed_by_peer()


def test_a_refused_renewal_ends_the_connection(running, connection):
    log_in(connection)
    running[1].ahead_ms += SESSION_MS // 2
    connection.call("sasl_handshake", 1, mechanism="PLAIN")
    answer = connection.call("sasl_authenticate", 2, auth_bytes=b"no token")
    assert answer.error_message == (
        "Authentication failed during re-authentication due to invalid credentials with SASL mechanism PLAIN"
    )
    assert connection.is_closed_by_peer()


def test_another_mechanism_closes_with_its_first_token(running, connection):
    log_in(connection)
    running[1].ahead_ms += SESSION_MS // 2
    assert connection.call("sasl_handshake", 1, mechanism="SCRAM-SHA-256").error_code == 0
    connection.send("sasl_authenticate", 2, auth_bytes=b"n,,n=alice,r=nonce")
    assert connection.is_closed_by_peer()


def test_a_renewal_that_comes_at_once_is_an_illegal_state(connection):
    log_in(connection)
    assert connection.call("sasl_handshake", 1, mechanism="PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert works(connection)


def test_a_request_among_the_tokens_closes(running, connection):
    log_in(connection)
    running[1].ahead_ms += SESSION_MS // 2
    connection.call("sasl_handshake", 1, mechanism="PLAIN")
    connection.send("api_versions", 0)
    assert connection.is_closed_by_peer()
