"""SCRAM on a listener: credentials in the metadata log, their APIs, and those that a cluster begins with."""

import dataclasses
import subprocess

import pytest

from harness.inprocess import NodeThread
from harness.process import KLAMM
from harness.wire import Wire, unique
from klamm.metadata.image import MetadataImage
from klamm.model.errors import ConfigError, ErrorCode
from klamm.protocol.messages.metadata_records import UserScramCredentialRecord
from klamm.security.core.scram import SCRAM_BY_NUMBER, SCRAM_SHA_256, SCRAM_SHA_512, ScramClient
from klamm.security.core.secret import Secret
from klamm.server.boot.first_records import parse_scram_credential
from klamm.server.login.mechanisms import ScramDecoys

OVERRIDES = (
    "listeners=PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512",
    "connection.failed.authentication.delay.ms=0",
)
SALT = b"sixteen bytes..."


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with NodeThread(tmp_path_factory.mktemp("node"), *OVERRIDES) as running:
        yield running


@pytest.fixture
def admin(node):
    with Wire(node.port) as wire:
        yield wire


@pytest.fixture
def connection(node):
    with Wire(node.node.addresses["CLIENTS"][1]) as wire:
        yield wire


def upsertion(name: str, password: str = "secret", number: int = 1, iterations: int = 4096) -> dict:
    mechanism = SCRAM_BY_NUMBER.get(number, SCRAM_SHA_256)
    salted = mechanism.salt_password(password.encode(), SALT, max(iterations, 1))
    return {
        "name": name,
        "mechanism": number,
        "iterations": iterations,
        "salt": SALT,
        "salted_password": salted,
    }


def alter(wire: Wire, *upsertions: dict, deletions: tuple = ()) -> list[tuple[str, int]]:
    answer = wire.call("alter_user_scram_credentials", 0, deletions=list(deletions), upsertions=list(upsertions))
    return [(result.user, result.error_code) for result in answer.results]


def describe(wire: Wire, *names: str) -> dict:
    users = [{"name": name} for name in names] or None
    answer = wire.call("describe_user_scram_credentials", 0, users=users)
    assert answer.error_code == 0
    return {
        result.user: [(info.mechanism, info.iterations) for info in result.credential_infos] or result.error_code
        for result in answer.results
    }


def log_in(wire: Wire, user: str, password: str, mechanism=SCRAM_SHA_256, handshake: int = 1):
    client = ScramClient(mechanism, user, Secret(password), nonce="client-nonce")
    assert wire.call("sasl_handshake", handshake, mechanism=mechanism.name).error_code == 0
    answer = wire.call("sasl_authenticate", 2, auth_bytes=client.first())
    assert answer.error_code == 0
    answer = wire.call("sasl_authenticate", 2, auth_bytes=client.step(answer.auth_bytes))
    if answer.error_code == 0:
        assert client.step(answer.auth_bytes) == b""
        assert client.complete
    return answer


@pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])
def test_a_user_logs_in(admin, connection, mechanism):
    user = unique("user")
    assert alter(admin, upsertion(user, number=mechanism.number)) == [(user, 0)]
    assert log_in(connection, user, "secret", mechanism).error_code == 0
    assert connection.call("metadata", 12, topics=[]).brokers


def test_bare_tokens_follow_handshake_v0(admin, connection):
    user = unique("user")
    alter(admin, upsertion(user))
    client = ScramClient(SCRAM_SHA_256, user, Secret("secret"), nonce="client-nonce")
    assert connection.call("sasl_handshake", 0, mechanism="SCRAM-SHA-256").error_code == 0
    connection.send_frame(client.first())
    connection.send_frame(client.step(connection.receive_frame()))
    client.step(connection.receive_frame())
    assert connection.call("api_versions", 0).error_code == 0


def test_a_wrong_password_and_an_unknown_user_are_refused_alike(node, admin):
    user = unique("user")
    alter(admin, upsertion(user))
    for name in (user, unique("unknown")):
        with Wire(node.node.addresses["CLIENTS"][1]) as wire:
            answer = log_in(wire, name, "wrong")
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert answer.error_message == (
                "Authentication failed during authentication due to invalid credentials with SASL mechanism"
                " SCRAM-SHA-256"
            )
            assert wire.is_closed_by_peer()


def test_challenges_of_unknown_users_look_like_those_of_users():
    def image(*users: tuple[str, int, int]) -> MetadataImage:
        scram = {
            (1, name): UserScramCredentialRecord(
                name=name, mechanism=1, salt=bytes(length), stored_key=name.encode(), iterations=iterations
            )
            for name, length, iterations in users
        }
        return dataclasses.replace(MetadataImage(), scram=scram)

    def challenge(decoys, users, name):
        keys = decoys.make(users, SCRAM_SHA_256, name, False)
        return keys.salt, keys.iterations

    users = image(("alice", 24, 4096), ("bob", 26, 8192), ("carol", 40, 4096), ("zoe", 24, 4096))
    names = [unique() for _ in range(200)]
    one_node, another = ScramDecoys(), ScramDecoys()
    shapes = {(len(salt), count) for salt, count in (challenge(one_node, users, name) for name in names)}
    assert shapes == {(24, 4096), (26, 8192), (40, 4096)}
    # The same on every node and after a restart, and when other users come and go.
    fewer = image(("alice", 24, 4096), ("bob", 26, 8192), ("carol", 40, 4096))
    assert [challenge(one_node, users, name) for name in names] == [challenge(another, users, name) for name in names]
    salts = [challenge(another, fewer, name)[0][:24] for name in names]
    assert salts == [challenge(one_node, users, name)[0][:24] for name in names]
    # Without users there is nothing to hide.
    assert challenge(one_node, image(), "x")[1] == 4096


def test_a_deleted_credential_is_of_no_use(node, admin, connection):
    user = unique("user")
    alter(admin, upsertion(user))
    assert log_in(connection, user, "secret").error_code == 0
    assert alter(admin, deletions=({"name": user, "mechanism": 1},)) == [(user, 0)]
    with Wire(node.node.addresses["CLIENTS"][1]) as wire:
        assert log_in(wire, user, "secret").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    # A login that was complete stays so.
    assert connection.call("api_versions", 0).error_code == 0


def test_credentials_are_described_without_their_keys(admin):
    first, second = unique("user"), unique("user")
    alter(admin, upsertion(first, iterations=8192), upsertion(second, number=2))
    assert describe(admin, first, second) == {first: [(1, 8192)], second: [(2, 4096)]}
    assert describe(admin).keys() >= {first, second}
    missing = unique("user")
    assert describe(admin, first, missing) == {first: [(1, 8192)], missing: ErrorCode.RESOURCE_NOT_FOUND}
    assert describe(admin, first, first) == {first: ErrorCode.DUPLICATE_RESOURCE}


def test_refused_changes(admin):
    user = unique("user")
    too_few, too_many = upsertion(user, iterations=4095), upsertion(user, iterations=16_385)
    assert alter(admin, too_few) == [(user, ErrorCode.UNACCEPTABLE_CREDENTIAL)]
    assert alter(admin, too_many) == [(user, ErrorCode.UNACCEPTABLE_CREDENTIAL)]
    assert alter(admin, upsertion("")) == [("", ErrorCode.UNACCEPTABLE_CREDENTIAL)]
    assert alter(admin, upsertion(user, number=3)) == [(user, ErrorCode.UNSUPPORTED_SASL_MECHANISM)]
    assert alter(admin, deletions=({"name": user, "mechanism": 1},)) == [(user, ErrorCode.RESOURCE_NOT_FOUND)]
    assert alter(admin, upsertion(user), upsertion(user, number=2)) == [(user, ErrorCode.DUPLICATE_RESOURCE)]
    # What is refused for one user is done for another.
    other = unique("user")
    assert dict(alter(admin, too_few, upsertion(other))) == {user: ErrorCode.UNACCEPTABLE_CREDENTIAL, other: 0}
    assert describe(admin, user, other) == {user: ErrorCode.RESOURCE_NOT_FOUND, other: [(1, 4096)]}


def test_credentials_of_the_format_are_there_from_the_start(tmp_path):
    properties = tmp_path / "node.properties"
    lines = [
        "process.roles=broker,controller",
        "node.id=1",
        "controller.quorum.voters=1@127.0.0.1:0",
        "controller.listener.names=CONTROLLER",
        "inter.broker.listener.name=PLAINTEXT",
        f"log.dirs={tmp_path / 'data'}",
        *OVERRIDES,
    ]
    properties.write_text("\n".join(lines))
    credential = 'SCRAM-SHA-512=[name=broker,iterations=8192,password="with, comma"]'
    done = subprocess.run(
        [*KLAMM, "storage", "format", "-c", str(properties), "-t", "4L6g3nShT-eMCtK--X86sw", "--add-scram", credential],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data" / "bootstrap.checkpoint").stat().st_mode & 0o777 == 0o600
    for _ in range(2):  # the second time the log has the credential, and the file changes nothing
        with NodeThread(tmp_path, *OVERRIDES) as running:
            with Wire(running.port) as wire:
                assert describe(wire) == {"broker": [(2, 8192)]}
            with Wire(running.node.addresses["CLIENTS"][1]) as wire:
                assert log_in(wire, "broker", "with, comma", SCRAM_SHA_512).error_code == 0


def test_a_mechanism_without_users_is_told_at_the_start(tmp_path, capfd):
    def missing():
        lines = [line for line in capfd.readouterr().err.splitlines() if "SCRAM listener has no users" in line]
        assert all("WARNING" in line and "listener=CLIENTS" in line and "klamm user add NAME" in line for line in lines)
        return [line.partition("mechanism=")[2].split()[0] for line in lines]

    user = unique("user")
    with NodeThread(tmp_path, *OVERRIDES) as running:
        assert missing() == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
        with Wire(running.port) as wire:
            assert alter(wire, upsertion(user, number=1)) == [(user, 0)]
    with NodeThread(tmp_path, *OVERRIDES) as running:
        assert missing() == ["SCRAM-SHA-512"]
        with Wire(running.port) as wire:
            assert alter(wire, upsertion(user, number=2)) == [(user, 0)]
    with NodeThread(tmp_path, *OVERRIDES):
        assert missing() == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("PLAIN=[name=a,password=hunter2]", "write one of SCRAM-SHA-256"),
        ("SCRAM-SHA-256=[password=hunter2]", "has no name"),
        ("SCRAM-SHA-256=[name=a,iterations=7,password=hunter2]", "iterations from 4096 to 16384"),
        ("SCRAM-SHA-256=[name=a]", "one of password and saltedpassword"),
        ("SCRAM-SHA-256=[name=a,pasword=hunter2]", "the options of a credential are"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=aHVudGVyMg==]", "needs the salt"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=?,salt=?]", "base64"),
    ],
)
def test_credentials_that_cannot_be_stored(text, words):
    with pytest.raises(ConfigError, match=words) as caught:
        parse_scram_credential(text)
    assert "hunter2" not in str(caught.value)


def test_a_salted_password_is_stored_as_it_is():
    salted = parse_scram_credential(
        "SCRAM-SHA-256=[name=a,saltedpassword=JQlDNQtpSi/eQkMWZ1v5Yi/Gv0JPmPoLyU2xEHDyTjA=,salt=c2FsdA==]"
    )
    assert (salted.name, salted.mechanism, salted.salt, salted.iterations) == ("a", 1, b"salt", 4096)
    twice = [parse_scram_credential("SCRAM-SHA-256=[name=a,password=x,salt=c2FsdA==]") for _ in range(2)]
    assert twice[0].stored_key == twice[1].stored_key != salted.stored_key
