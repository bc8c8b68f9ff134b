"""Logins with bearer tokens: validation by a key set, unsecured tokens, sessions that end with the token."""

import asyncio
import threading
import time

import pytest

from harness.identity_provider import IdentityProvider, SigningKey, claims_of, key_set
from harness.inprocess import NodeThread
from harness.wire import Wire
from klamm.model.clock import SystemClock
from klamm.model.errors import ConfigError, ErrorCode
from klamm.security.core.bearer_claims import format_unsecured
from klamm.security.core.oauthbearer import BearerClient, BearerMessage, format_bearer
from klamm.security.core.secret import Secret
from klamm.server.boot.config import embedded_properties, parse_config
from klamm.server.login.bearer_settings import ALLOWED_URLS
from klamm.server.login.security import NodeSecurity
from klamm.server.node import KlammNode, _BootStage

PATIENCE_S = 30
KEYS_URL = "sasl.oauthbearer.jwks.endpoint.url"
HANDLER = "sasl.server.callback.handler.class"
UNSECURED = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
)
TOKEN_LISTENER = (
    "listeners=PLAINTEXT://127.0.0.1:0,TOKENS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,TOKENS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms=OAUTHBEARER",
)
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
INVALID_TOKEN = '{"status":"invalid_token"}'


@pytest.fixture(scope="module")
def provider():
    with IdentityProvider() as running:
        yield running


@pytest.fixture(scope="module")
def node(provider, tmp_path_factory):
    overrides = (
        "listeners=PLAINTEXT://127.0.0.1:0,TOKENS://127.0.0.1:0,ANY://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,TOKENS:SASL_PLAINTEXT,ANY:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms=OAUTHBEARER",
        f"{ALLOWED_URLS}={provider.token_url}, {provider.keys_url}",
        f"listener.name.tokens.sasl.oauthbearer.jwks.endpoint.url={provider.keys_url}",
        "listener.name.tokens.oauthbearer.sasl.oauthbearer.expected.audience=klamm",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms=100",
        f"listener.name.any.oauthbearer.{HANDLER}={UNSECURED}",
        f"listener.name.any.oauthbearer.sasl.jaas.config={MODULE} unsecuredValidatorRequiredScope=orders;",
        "connection.failed.authentication.delay.ms=10",
    )
    with NodeThread(tmp_path_factory.mktemp("node"), *overrides) as running:
        yield running


@pytest.fixture
def connect(node):
    wires = []

    def open_wire(listener: str = "TOKENS") -> Wire:
        wires.append(Wire(node.node.addresses[listener][1]))
        return wires[-1]

    yield open_wire
    for wire in wires:
        wire.close()


def log_in(wire: Wire, token: str):
    """Log in; returns the last answer."""
    assert wire.call("sasl_handshake", 1, mechanism="OAUTHBEARER").error_code == 0
    answer = wire.call("sasl_authenticate", 2, auth_bytes=BearerClient(Secret(token)).first())
    if answer.error_code == 0 and answer.auth_bytes:
        assert bytes(answer.auth_bytes).startswith(b'{"status":')
        answer = wire.call("sasl_authenticate", 2, auth_bytes=b"\x01")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    return answer


def lifetime_ms(answer) -> float:
    return answer.session_lifetime.total_seconds() * 1000


def log_in_until(connect, token: str):
    """Log in with a token whose key is on its way."""
    deadline = time.monotonic() + PATIENCE_S
    while (answer := log_in(connect(), token)).error_code and time.monotonic() < deadline:
        pass
    return answer


def test_a_node_serves_once_it_has_the_first_keys(tmp_path):
    """aiokafka does not notice that a token is refused, and did not connect to a node that had just started."""
    with IdentityProvider() as provider:
        provider.keys_released.clear()
        keys = (
            f"{ALLOWED_URLS}={provider.keys_url}",
            f"{KEYS_URL}={provider.keys_url}",
        )
        running = NodeThread(tmp_path, *TOKEN_LISTENER, *keys)
        releasing = threading.Timer(1, provider.keys_released.set)
        releasing.start()
        with running, Wire(running.node.addresses["TOKENS"][1]) as wire:
            assert log_in(wire, provider.issue("alice")).error_code == 0


def test_a_voter_joins_its_quorum_while_it_waits_for_keys(tmp_path):
    """In a rolling restart each would else join late, and the quorum be short of a voter for longer."""

    async def start(provider):
        keys = (f"{ALLOWED_URLS}={provider.keys_url}", f"{KEYS_URL}={provider.keys_url}")
        # The node waits for the keys longer than the test for the quorum.
        timeout = f"sasl.login.read.timeout.ms={PATIENCE_S * 2000}"
        config = parse_config(embedded_properties(str(tmp_path / "data"), 0), (*TOKEN_LISTENER, *keys, timeout))
        node = KlammNode(config)
        starting = asyncio.create_task(node.start())
        try:
            async with asyncio.timeout(PATIENCE_S):
                while node._stage is not _BootStage.JOINING or node._quorum.raft.leader[0] is None:  # noqa: ASYNC110 - a state
                    await asyncio.sleep(0.01)
            assert not starting.done()
        finally:
            provider.keys_released.set()
            await starting
            await node.stop()

    with IdentityProvider() as provider:
        provider.keys_released.clear()
        asyncio.run(start(provider))


def test_a_token_logs_its_subject_in_until_it_expires(node, provider, connect):
    wire = connect()
    answer = log_in(wire, provider.issue("alice", 600, aud=["klamm", "other"]))
    assert (answer.error_code, answer.auth_bytes) == (0, b"")
    assert 0 < lifetime_ms(answer) <= 600_000
    assert wire.call("metadata", 12, topics=[]).brokers
    principals = node.run(lambda running: {str(channel.principal) for channel in running.net._channels})
    assert "User:alice" in principals


@pytest.mark.parametrize(
    "make",
    [
        lambda provider: provider.issue("alice"),
        lambda provider: provider.issue("alice", -60, aud="klamm"),
        lambda provider: provider.issue("", aud="klamm"),
        lambda provider: SigningKey(provider.key.key_id).sign(claims_of("alice", aud="klamm")),
        lambda provider: format_unsecured(claims_of("alice", aud="klamm")),
        lambda provider: "opaque",
    ],
    ids=["no audience", "expired", "no subject", "other key", "unsecured", "opaque"],
)
def test_other_tokens_are_refused_in_two_steps(provider, connect, make):
    wire = connect()
    assert log_in(wire, make(provider)).error_message == INVALID_TOKEN
    assert wire.is_closed_by_peer()


def test_bare_tokens_are_refused_in_two_steps_too(provider, connect):
    wire = connect()
    wire.call("sasl_handshake", 0, mechanism="OAUTHBEARER")
    wire.send_frame(BearerClient(Secret(provider.issue("alice"))).first())
    assert wire.receive_frame() == INVALID_TOKEN.encode()
    wire.send_frame(b"\x01")
    assert wire.is_closed_by_peer()


def test_no_message_of_the_mechanism_is_refused_at_once(connect):
    wire = connect()
    wire.call("sasl_handshake", 1, mechanism="OAUTHBEARER")
    answer = wire.call("sasl_authenticate", 2, auth_bytes=b"\0alice\0secret")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message.endswith("invalid credentials with SASL mechanism OAUTHBEARER")


def test_another_authorization_id_is_refused(provider, connect):
    wire = connect()
    wire.call("sasl_handshake", 1, mechanism="OAUTHBEARER")
    message = BearerMessage(Secret(provider.issue("alice", aud="klamm")), "admin")
    answer = wire.call("sasl_authenticate", 2, auth_bytes=format_bearer(message))
    assert "authorization id (admin)" in answer.error_message


def test_a_new_key_is_fetched_when_a_token_names_it(provider, connect):
    log_in_until(connect, provider.issue("alice", aud="klamm"))
    provider.rotate()
    assert log_in_until(connect, provider.issue("alice", aud="klamm")).error_code == 0


def test_a_session_ends_with_its_token_and_is_renewed_by_another(provider, connect):
    assert log_in_until(connect, provider.issue("alice", aud="klamm")).error_code == 0
    kept, dropped = connect(), connect()
    expires_at = time.time() + 1.5
    for wire in (kept, dropped):
        token = provider.issue("alice", aud="klamm", exp=expires_at)
        assert 0 < lifetime_ms(log_in(wire, token)) <= 1500
    # The session ends by the clock, and is renewed a second after the login at the earliest.
    time.sleep(max(expires_at - time.time(), 1.0) + 0.1)
    answer = log_in(kept, provider.issue("alice", 600, aud="klamm"))
    assert answer.error_code == 0
    assert lifetime_ms(answer) > 60_000
    assert kept.call("metadata", 12, topics=[]).brokers
    dropped.send("metadata", 12, topics=[])
    assert dropped.is_closed_by_peer()


def test_unsecured_tokens_where_the_listener_takes_them(provider, connect):
    assert log_in(connect("ANY"), format_unsecured(claims_of("bob", scope="orders payments"))).error_code == 0
    refused = log_in(connect("ANY"), format_unsecured(claims_of("bob")))
    assert refused.error_message == '{"status":"insufficient_scope", "scope":"orders"}'
    assert log_in(connect("ANY"), provider.issue("bob", scope="orders")).error_message == INVALID_TOKEN


# Settings


def read(*lines: str):
    overrides = (
        "listeners=PLAINTEXT://127.0.0.1:0,A://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,A:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms=OAUTHBEARER",
    )
    return parse_config(embedded_properties("data", 0), (*overrides, *lines))


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        # CVE-2026-33557, CVE-2026-110985
        ((), "needs a way to validate tokens"),
        ((f"{HANDLER}=org.example.Mine",), "Java code"),
        (
            (f"{HANDLER}=org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",),
            "needs a way",
        ),
        ((f"{HANDLER}={UNSECURED}", "sasl.oauthbearer.jwks.endpoint.url=file:///keys"), "no effect"),
        # CVE-2025-27817
        (("sasl.oauthbearer.jwks.endpoint.url=http://h/keys",), "is not in org.apache.kafka.sasl"),
        (("sasl.oauthbearer.jwks.endpoint.url=http://h/keys", f"{ALLOWED_URLS}=http://h"), "is not in"),
        (("sasl.oauthbearer.jwks.endpoint.url=ftp://h/keys", f"{ALLOWED_URLS}=ftp://h/keys"), "is no URL"),
        (("sasl.oauthbearer.jwks.endpoint.url=file://h/keys",), "is no URL"),
        (("sasl.oauthbearer.jwks.endpoint.url=file:///k", "sasl.oauthbearer.jwt.validator.class=a.B"), "Java code"),
        ((f"sasl.jaas.config={MODULE.replace('OAuthBearer', 'Plain')};",), "write OAuthBearerLoginModule"),
        (
            (f"{HANDLER}={UNSECURED}", f"sasl.jaas.config={MODULE} unsecuredValidatorAllowableClockSkewMs=x;"),
            "milliseconds",
        ),
    ],
)
def test_settings_that_validate_nothing_are_refused(lines, text):
    with pytest.raises(ConfigError, match=text):
        read(*lines)


def test_settings_of_a_mechanism_and_of_the_jvm_are_in_use():
    config = read(
        "listener.name.a.oauthbearer.sasl.oauthbearer.jwks.endpoint.url=https://h/keys",
        f"{ALLOWED_URLS}=https://h/keys",
        "sasl.oauthbearer.expected.issuer=me",
    )
    assert not {name for name in config.ignored if "oauth" in name}


def test_a_key_file_must_be_usable(tmp_path):
    path = tmp_path / "keys.json"
    config = read(f"sasl.oauthbearer.jwks.endpoint.url=file://{path}")
    with pytest.raises(ConfigError, match="jwks"):
        NodeSecurity(config, SystemClock())
    path.write_text('{"keys": []}')
    with pytest.raises(ConfigError, match="no RSA or EC key"):
        NodeSecurity(config, SystemClock())
    path.write_bytes(key_set(SigningKey("a")))
    NodeSecurity(config, SystemClock()).close()
