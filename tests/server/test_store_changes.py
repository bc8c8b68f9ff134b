"""Key and trust stores that change by IncrementalAlterConfigs: checked before; the last good one stays."""

import ssl
from pathlib import Path

import pytest

from client.certificates import Authority
from harness.inprocess import NodeThread
from harness.wire import Wire
from klamm.model.errors import ErrorCode

SET, DELETE = 0, 1
KEYSTORE = "listener.name.one.ssl.keystore."


class Files:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        (folder / "other").mkdir()
        self.stranger = Authority(folder / "other", "other authority")
        self.first = self.keystore("first")

    def pair(self, *names: str, subject: str = "broker", authority: Authority | None = None) -> tuple[str, str]:
        files = (authority or self.authority).issue(subject, *(names or ("127.0.0.1", "localhost")))
        return Path(files.key).read_text(), Path(files.certificate).read_text()

    def keystore(self, name: str, *names: str, **options) -> Path:
        path = self.folder / f"{name}.pem"
        path.write_text("".join(self.pair(*names, **options)))
        return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def node(tmp_path_factory, files):
    names = ("PLAINTEXT", "ONE", "INNER", "CONTROLLER")
    overrides = (
        "listeners=" + ",".join(f"{name}://127.0.0.1:0" for name in names),
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,ONE:SSL,INNER:SSL",
        "inter.broker.listener.name=INNER",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={files.first}",
        "listener.name.inner.ssl.truststore.type=PEM",
        f"listener.name.inner.ssl.truststore.location={files.authority.path}",
    )
    with NodeThread(tmp_path_factory.mktemp("node"), *overrides) as running:
        yield running


@pytest.fixture
def wire(node):
    with Wire(node.port) as connection:
        yield connection
        names = [entry.name for entry in describe(connection) if entry.config_source == 2]
        if names:
            assert alter(connection, dict.fromkeys(names), operation=DELETE)[0] == 0


def alter(wire, changes, broker="1", operation=SET):
    configs = [{"name": name, "config_operation": operation, "value": value} for name, value in changes.items()]
    resource = {"resource_type": 4, "resource_name": broker, "configs": configs}
    [result] = wire.call("incremental_alter_configs", 1, resources=[resource], validate_only=False).responses
    return result.error_code, result.error_message or ""


def describe(wire):
    requested = [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}]
    [result] = wire.call("describe_configs", 4, resources=requested, include_synonyms=True).results
    return result.configs


def serial(node, files, listener="ONE") -> str:
    context = ssl.create_default_context(cafile=files.authority.path)
    with Wire(node.node.addresses[listener][1]) as raw:
        sock = context.wrap_socket(raw.sock, server_hostname="127.0.0.1")
        raw.sock = sock
        assert raw.call("api_versions", 0).error_code == 0
        return sock.getpeercert()["serialNumber"]


def test_another_file_is_used_by_new_connections(node, files, wire):
    before = serial(node, files)
    inner = serial(node, files, "INNER")
    assert alter(wire, {KEYSTORE + "location": str(files.keystore("second"))}) == (0, "")
    after = serial(node, files)
    assert after != before
    assert serial(node, files, "INNER") == inner
    # Without it the file's own value counts again.
    assert alter(wire, {KEYSTORE + "location": None}, operation=DELETE)[0] == 0
    assert serial(node, files) == before


def test_text_in_the_request_itself_is_used_and_never_shown(node, files, wire):
    before = serial(node, files)
    key, chain = files.pair()
    # A listener has one kind of store: the path of the file is set to nothing.
    changes = {KEYSTORE + "key": key, KEYSTORE + "certificate.chain": chain, KEYSTORE + "location": ""}
    assert alter(wire, changes) == (0, "")
    assert serial(node, files) != before
    shown = describe(wire)
    entries = {entry.name: entry for entry in shown}
    assert entries[KEYSTORE + "key"].is_sensitive
    assert entries[KEYSTORE + "key"].value is None
    assert "PRIVATE KEY" not in repr(shown)
    assert "BEGIN" not in repr(shown)


def test_stores_that_cannot_be_used_are_refused_and_the_last_good_one_stays(node, files, wire):
    before = serial(node, files)
    folder = files.folder
    (folder / "empty.pem").write_text("")
    key, _ = files.pair()
    _, chain = files.pair()
    (folder / "mismatch.pem").write_text(key + chain)
    refused = {
        str(folder / "missing.pem"): "no such file",
        str(folder / "empty.pem"): "it is empty",
        str(folder / "mismatch.pem"): "not that of the certificate",
        str(files.keystore("renamed", subject="someone")): "subject would change",
        str(files.keystore("fewer", "127.0.0.1")): "alternative name would be lost",
    }
    for path, reason in refused.items():
        code, message = alter(wire, {KEYSTORE + "location": path})
        assert code == ErrorCode.INVALID_REQUEST
        assert reason in message
    for changes in (
        {KEYSTORE + "type": "JKS"},
        {KEYSTORE + "key": key},
        {KEYSTORE + "password": "x"},
        {KEYSTORE + "location": ""},
        {"listener.name.one.ssl.truststore.location": str(files.authority.path)},
    ):
        code, message = alter(wire, changes)
        assert code == ErrorCode.INVALID_REQUEST, changes
        assert "PRIVATE" not in message
    assert serial(node, files) == before
    assert [entry.name for entry in describe(wire) if entry.config_source == 2] == []


def test_only_stores_of_listeners_of_one_broker_can_change(node, files, wire):
    path = str(files.keystore("third"))
    for changes, broker in (
        ({"ssl.keystore.location": path}, "1"),
        ({KEYSTORE + "location": path}, ""),
        ({"listener.name.plaintext.ssl.keystore.location": path}, "1"),
        ({"listener.name.nowhere.ssl.keystore.location": path}, "1"),
        ({"listener.name.one.ssl.client.auth": "required"}, "1"),
        ({"listener.name.one.ssl.cipher.suites": ""}, "1"),
    ):
        assert alter(wire, changes, broker)[0] == ErrorCode.INVALID_REQUEST, changes
    configs = [{"name": KEYSTORE + "location", "value": path}]
    resource = {"resource_type": 4, "resource_name": "1", "configs": configs}
    [result] = wire.call("alter_configs", 2, resources=[resource], validate_only=False).responses
    assert result.error_code == ErrorCode.INVALID_REQUEST


def test_nodes_must_trust_the_certificate_of_their_own_listener(node, files, wire):
    before = serial(node, files, "INNER")
    foreign = files.keystore("foreign", authority=files.stranger)
    code, message = alter(wire, {"listener.name.inner.ssl.keystore.location": str(foreign)})
    assert code == ErrorCode.INVALID_REQUEST
    assert "does not verify" in message
    assert alter(wire, {"listener.name.inner.ssl.keystore.location": str(files.keystore("fine"))})[0] == 0
    assert serial(node, files, "INNER") != before


def test_the_same_path_again_reads_the_file_again(node, files, wire):
    path = files.keystore("again")
    assert alter(wire, {KEYSTORE + "location": str(path)})[0] == 0
    first = serial(node, files)
    files.keystore("again")
    assert alter(wire, {KEYSTORE + "location": str(path)})[0] == 0
    second = serial(node, files)
    assert second != first
    # As in Kafka: broken behind an unchanged path, the answer is 0 and the last good one stays.
    path.write_text("broken")
    assert alter(wire, {KEYSTORE + "location": str(path)})[0] == 0
    assert serial(node, files) == second


def test_validate_only_changes_nothing(node, files, wire):
    before = serial(node, files)
    configs = [{"name": KEYSTORE + "location", "config_operation": SET, "value": str(files.keystore("tried"))}]
    resource = {"resource_type": 4, "resource_name": "1", "configs": configs}
    [result] = wire.call("incremental_alter_configs", 1, resources=[resource], validate_only=True).responses
    assert result.error_code == 0
    assert serial(node, files) == before


def test_a_restarted_node_uses_the_changed_store(tmp_path, files):
    overrides = (
        "listeners=PLAINTEXT://127.0.0.1:0,ONE://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,ONE:SSL",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={files.first}",
    )
    with NodeThread(tmp_path, *overrides) as running, Wire(running.port) as wire:
        assert alter(wire, {KEYSTORE + "location": str(files.keystore("kept"))})[0] == 0
        changed = serial(running, files)
    with NodeThread(tmp_path, *overrides) as running:
        assert serial(running, files) == changed
