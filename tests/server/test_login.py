"""Logins on a SASL listener, byte by byte: handshakes v0 and v1, refusals, frames that have no place there."""

import contextlib
import struct
import time

import pytest

from harness.inprocess import NodeThread
from harness.wire import Wire, request_bytes
from klamm.model.errors import ErrorCode
from klamm.server.boot.config import embedded_properties, parse_config
from klamm.server.login.budget import BYTES_MAX, SILENT_BYTES
from klamm.server.login.settings import FRAME_BYTES_MAX

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
JAAS = f'{PLAIN_MODULE} required username="admin" password="own" user_admin="own" user_alice="secret";'
DELAY_S = 0.05
OVERRIDES = (
    "listeners=PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "listener.name.clients.sasl.enabled.mechanisms=PLAIN",
    f"listener.name.clients.plain.sasl.jaas.config={JAAS}",
    f"connection.failed.authentication.delay.ms={DELAY_S * 1000:.0f}",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with NodeThread(tmp_path_factory.mktemp("node"), *OVERRIDES) as running:
        yield running


@pytest.fixture
def connection(node):
    with Wire(node.node.addresses["CLIENTS"][1]) as wire:
        yield wire


def plain(user: str, password: str, authorization_id: str = "") -> bytes:
    return f"{authorization_id}\0{user}\0{password}".encode()


def log_in(wire: Wire, user: str = "alice", password: str = "secret", version: int = 2):
    assert wire.call("sasl_handshake", 1, mechanism="PLAIN").error_code == 0
    return wire.call("sasl_authenticate", version, auth_bytes=plain(user, password))


def principals(node: NodeThread) -> set[str]:
    return node.run(lambda running: {str(channel.principal) for channel in running.net._channels})


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_client_logs_in(node, connection, version):
    assert connection.call("api_versions", 3, client_software_name="a", client_software_version="1").error_code == 0
    answer = log_in(connection, version=version)
    assert (answer.error_code, answer.error_message, answer.auth_bytes) == (0, "", b"")
    assert connection.call("metadata", 12, topics=[]).brokers
    assert "User:alice" in principals(node)


def test_bare_tokens_follow_handshake_v0(node, connection):
    answer = connection.call("sasl_handshake", 0, mechanism="PLAIN")
    assert (answer.error_code, answer.mechanisms) == (0, ("PLAIN",))
    connection.send_frame(plain("alice", "secret"))
    assert connection.receive_frame() == b""
    assert connection.call("api_versions", 0).error_code == 0
    assert "User:alice" in principals(node)


def test_requests_may_follow_the_login_in_one_segment(connection):
    frames = [
        request_bytes("sasl_handshake", 1, 1, "c", mechanism="PLAIN"),
        request_bytes("sasl_authenticate", 2, 2, "c", auth_bytes=plain("alice", "secret")),
        request_bytes("metadata", 12, 3, "c", topics=[]),
    ]
    connection.sock.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
    assert connection.receive("sasl_handshake", 1, 1).error_code == 0
    assert connection.receive("sasl_authenticate", 2, 2).error_code == 0
    assert connection.receive("metadata", 12, 3).brokers


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (plain("alice", "wrong"), "Authentication failed: Invalid username or password"),
        (plain("unknown", "secret"), "Authentication failed: Invalid username or password"),
        (
            plain("alice", "secret", "admin"),
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (
            b"no token",
            "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN",
        ),
    ],
)
def test_a_refusal_says_why_and_comes_late(connection, token, text):
    connection.call("sasl_handshake", 1, mechanism="PLAIN")
    began = time.monotonic()
    answer = connection.call("sasl_authenticate", 2, auth_bytes=token)
    assert time.monotonic() - began >= DELAY_S
    assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, text)
    assert connection.is_closed_by_peer()


def test_a_refused_bare_token_closes_without_an_answer(connection):
    connection.call("sasl_handshake", 0, mechanism="PLAIN")
    connection.send_frame(plain("alice", "wrong"))
    assert connection.is_closed_by_peer()


def test_an_unknown_mechanism_is_answered_with_the_known_ones(connection):
    answer = connection.call("sasl_handshake", 1, mechanism="GSSAPI")
    assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ("PLAIN",))
    assert connection.is_closed_by_peer()


def test_a_refusal_holds_no_other_connection_up(node):
    with Wire(node.node.addresses["CLIENTS"][1]) as slow, Wire(node.node.addresses["CLIENTS"][1]) as other:
        slow.call("sasl_handshake", 1, mechanism="PLAIN")
        slow.send("sasl_authenticate", 2, auth_bytes=plain("alice", "wrong"))
        assert log_in(other).error_code == 0
        slow.sock.settimeout(0.0001)


@pytest.mark.parametrize("api", ["metadata", "produce", "sasl_authenticate"])
def test_anything_else_first_closes_without_an_answer(connection, api):
    fields = {"metadata": {"topics": []}, "sasl_authenticate": {"auth_bytes": plain("alice", "secret")}}.get(
        api, {"acks": 1, "timeout": 1000, "topic_data": []}
    )
    connection.send(api, {"metadata": 12, "produce": 9, "sasl_authenticate": 2}[api], **fields)
    assert connection.is_closed_by_peer()


def test_api_versions_is_answered_once(connection):
    # A version of the future is answered in version 0, and does not count.
    connection.send_frame(struct.pack(">hhih", 18, 99, 7, -1) + bytes(2))
    assert connection.receive("api_versions", 0, 7).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert connection.call("api_versions", 0).error_code == 0
    connection.send("api_versions", 0)
    assert connection.is_closed_by_peer()


def test_another_api_among_tokens_is_an_illegal_state(connection):
    connection.call("sasl_handshake", 1, mechanism="PLAIN")
    answer = connection.call("find_coordinator", 3, key="g", key_type=0)
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert connection.is_closed_by_peer()


def test_another_api_without_a_place_for_errors_is_closed(connection):
    connection.call("sasl_handshake", 1, mechanism="PLAIN")
    connection.send("produce", 9, acks=1, timeout=1000, topic_data=[])
    assert connection.is_closed_by_peer()


@pytest.mark.parametrize("stage", ["first", "tokens", "bare tokens"])
def test_frames_before_the_login_are_small(connection, stage):
    if stage != "first":
        connection.call("sasl_handshake", int(stage == "tokens"), mechanism="PLAIN")
    connection.sock.sendall(struct.pack(">i", FRAME_BYTES_MAX + 1))
    assert connection.is_closed_by_peer()


def test_frames_after_the_login_may_be_large(connection):
    log_in(connection)
    names = [{"name": f"{number:050d}"} for number in range(2000)]
    assert len(connection.call("metadata", 12, topics=names, allow_auto_topic_creation=False).topics) == 2000


def test_a_login_after_the_login_is_an_illegal_state(connection):
    log_in(connection)
    assert connection.call("sasl_handshake", 1, mechanism="PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    answer = connection.call("sasl_authenticate", 2, auth_bytes=b"")
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert connection.call("api_versions", 0).error_code == 0


@pytest.mark.parametrize("stage", ["connected", "handshake", "refused"])
def test_a_client_may_leave_at_any_time(node, stage):
    with Wire(node.node.addresses["CLIENTS"][1]) as wire:
        if stage != "connected":
            wire.call("sasl_handshake", 1, mechanism="PLAIN")
        if stage == "refused":
            wire.send("sasl_authenticate", 2, auth_bytes=b"wrong")
    with Wire(node.node.addresses["CLIENTS"][1]) as wire:
        assert log_in(wire).error_code == 0


def test_a_refused_connection_that_is_closed_early_is_counted_no_more(node, connection):
    """Its deadline, or a limit, may close it while the refusal is held back."""

    def refuse_and_close(running):
        budget = running._security._budget
        (channel,) = [channel for channel in budget._waiting if channel.peer_address == address]
        channel.handler._refuse(channel, b"", "test")
        channel.close("login not completed in time")
        return channel in budget._waiting

    address = connection.sock.getsockname()
    connection.call("sasl_handshake", 1, mechanism="PLAIN")
    assert not node.run(refuse_and_close)


def test_connections_that_do_not_log_in_are_bounded(node):
    port = node.node.addresses["CLIENTS"][1]

    def budget(running):
        return running._security._budget

    node.run(lambda running: setattr(budget(running), "_bytes_max", 5 * SILENT_BYTES))
    with contextlib.ExitStack() as stack:
        logged_in = stack.enter_context(Wire(port))
        log_in(logged_in)
        idle = [stack.enter_context(Wire(port)) for _ in range(12)]
        # A client that comes last logs in, whatever is idle; the oldest idle ones are closed.
        late = stack.enter_context(Wire(port))
        assert log_in(late).error_code == 0
        assert all(wire.is_closed_by_peer() for wire in idle[:7])
        assert logged_in.call("api_versions", 0).error_code == 0
        assert node.run(lambda running: len(budget(running))) <= 5
    node.run(lambda running: setattr(budget(running), "_bytes_max", BYTES_MAX))
    with Wire(port) as wire:
        assert log_in(wire).error_code == 0


def config_of(*overrides: str):
    return parse_config(embedded_properties("/tmp/unused", 0), [*OVERRIDES, *overrides])


@pytest.mark.parametrize(
    ("override", "text"),
    [
        (
            "listener.name.clients.sasl.enabled.mechanisms=GSSAPI",
            "listener CLIENTS: sasl.enabled.mechanisms has GSSAPI",
        ),
        ("listener.name.clients.sasl.enabled.mechanisms=", "is empty"),
        ("listener.name.clients.plain.sasl.jaas.config=", "PLAIN needs its users"),
        ("listener.name.clients.plain.sasl.jaas.config=X required;", "write PlainLoginModule"),
        ("listener.name.clients.plain.sasl.jaas.config=X", "must be followed by one of required"),
        ("listener.name.clients.plain.sasl.server.callback.handler.class=a.B", "names Java code"),
        ("listener.name.client.sasl.enabled.mechanisms=PLAIN", "of listener 'client', which is in no listener map"),
        ("listener.name.CLIENTS.ssl.client.auth=required", "which is in no listener map; write 'clients'"),
        ("listener.name.clients.plian.sasl.jaas.config=x", "of SASL mechanism 'plian', which does not exist"),
        ("listener.name.clients.ssl.keystore.loaction=x", "ssl.keystore.loaction"),
        ("inter.broker.listener.name=CLIENTS", "sasl.mechanism.inter.broker.protocol=GSSAPI is not supported"),
    ],
)
def test_settings_that_cannot_work_stop_the_start(override, text):
    from klamm.model.errors import ConfigError

    with pytest.raises(ConfigError, match=text):
        config_of(override)


def test_listeners_without_authentication_are_warned_of():
    addresses = "listeners=PLAINTEXT://0.0.0.0:1,CLIENTS://0.0.0.0:2,CONTROLLER://127.0.0.1:0"
    [warning] = [text for text in config_of(addresses).warnings if "without authentication" in text]
    assert "PLAINTEXT://0.0.0.0:1" in warning


def test_settings_are_found_by_mechanism_listener_and_name():
    config = config_of("sasl.jaas.config=all", "listener.name.clients.sasl.jaas.config=listener")
    assert config.listener_value("CLIENTS", "sasl.jaas.config", "PLAIN") == JAAS
    assert config.listener_value("CLIENTS", "sasl.jaas.config", "SCRAM-SHA-256") == "listener"
    assert config.listener_value("OTHER", "sasl.jaas.config", "PLAIN") == "all"
