"""Limits of connections that change while a node runs, set as an operator sets them."""

import pytest

from harness.inprocess import NodeThread
from harness.wire import Wire
from klamm.model.errors import ConfigError, ErrorCode
from klamm.net.core.connection_quotas import UNLIMITED
from klamm.server.boot.config import embedded_properties, parse_config
from klamm.server.settings.connection_limits import read_connection_limits, resolve_overrides

SET, DELETE = 0, 1


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with NodeThread(tmp_path_factory.mktemp("limits"), "listener.name.plaintext.max.connections=40") as thread:
        yield thread


@pytest.fixture
def admin(node):
    with Wire(node.port) as connection:
        yield connection


def alter(wire, changes, broker="", operation=SET):
    configs = [{"name": name, "config_operation": operation, "value": value} for name, value in changes.items()]
    resource = {"resource_type": 4, "resource_name": broker, "configs": configs}
    [result] = wire.call("incremental_alter_configs", 1, resources=[resource], validate_only=False).responses
    return result.error_code


def limits(node):
    return node.run(lambda running: running.net._quotas.limits)


def test_limits_of_the_file_are_in_force(node):
    assert limits(node).listener_connections == {"PLAINTEXT": 40}
    assert limits(node).connections == UNLIMITED


def test_a_total_that_is_set_lets_new_connections_wait(node, admin):
    assert alter(admin, {"max.connections": "2"}) == 0
    try:
        with Wire(node.port) as second, Wire(node.port) as late:
            assert second.call("api_versions", 0).error_code == 0
            late.send("api_versions", 0)
            assert late.is_silent()
            assert alter(admin, {"max.connections": "100"}) == 0
            assert late.receive("api_versions", 0).error_code == 0
    finally:
        alter(admin, {"max.connections": None}, operation=DELETE)
    assert limits(node).connections == UNLIMITED


def test_a_limit_of_addresses_that_is_set_refuses_new_connections(node, admin):
    assert alter(admin, {"max.connections.per.ip": "1"}) == 0
    try:
        with Wire(node.port) as refused:
            assert refused.is_closed_by_peer()
        assert alter(admin, {"max.connections.per.ip.overrides": "127.0.0.1:2"}) == 0
        with Wire(node.port) as allowed:
            assert allowed.call("api_versions", 0).error_code == 0
    finally:
        alter(admin, dict.fromkeys(("max.connections.per.ip", "max.connections.per.ip.overrides")), operation=DELETE)


def test_limits_of_a_listener_and_of_one_broker(node, admin):
    names = {
        "listener.name.plaintext.max.connections": "30",
        "listener.name.plaintext.max.connection.creation.rate": "9",
    }
    assert alter(admin, {**names, "max.connection.creation.rate": "500"}, broker="1") == 0
    assert limits(node).listener_connections == {"PLAINTEXT": 30}
    assert limits(node).listener_creation_rates == {"PLAINTEXT": 9}
    assert limits(node).creation_rate == 500
    alter(admin, dict.fromkeys((*names, "max.connection.creation.rate")), broker="1", operation=DELETE)
    assert limits(node).listener_connections == {"PLAINTEXT": 40}


@pytest.mark.parametrize(
    "change",
    [
        {"max.connections": "-1"},
        {"max.connections.per.ip.overrides": "127.0.0.1"},
        {"max.connections.per.ip.overrides": "127.0.0.1:many"},
        {"connections.max.idle.ms": "1000"},
        {"queued.max.request.bytes": "100"},
    ],
)
def test_what_a_running_broker_cannot_apply_is_refused(admin, change):
    assert alter(admin, change) == ErrorCode.INVALID_REQUEST


def test_overrides_of_host_names_are_resolved():
    values = {"max.connections.per.ip.overrides": "localhost:7, 192.0.2.1:3,2001:db8::1:5"}
    overrides = resolve_overrides(read_connection_limits(values, []).per_ip_overrides)
    assert overrides["127.0.0.1"] == 7
    assert overrides["192.0.2.1"] == 3
    assert overrides["2001:db8::1"] == 5
    with pytest.raises(ConfigError, match=r"names host nowhere\.invalid"):
        resolve_overrides({"nowhere.invalid": 1})


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["max.connections.per.ip=0"], "max.connections.per.ip.overrides"),
        (["max.connections.per.ip.overrides=localhost"], "write host:number"),
        (["queued.max.request.bytes=1000"], "socket.request.max.bytes"),
        (["listener.name.plain.max.connections=5"], "in no listener map"),
    ],
)
def test_limits_that_cannot_be_meant_stop_the_start(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        parse_config(embedded_properties("/nowhere", 0), settings)


def test_settings_of_listeners_are_not_reported_as_ignored():
    config = parse_config(embedded_properties("/nowhere", 0), ["listener.name.plaintext.max.connections=5"])
    assert "listener.name.plaintext.max.connections" not in config.ignored
