"""Denials of every API beside Apache Kafka: the same code in the same place of the response.

The table of places in `tests/harness/rights_places.py` is what `make test` holds Klamm to; here Kafka is held to it.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from compat.brokers import KINDS, Broker, free_port
from harness.access import PLAIN_MODULE, Grant
from harness.rights_matrix import (
    ALICE,
    SERVED,
    UNKNOWN_TOPIC_ID,
    check_denied,
    fields_of,
    find_row,
    grants_of,
    prepare_resources,
    produce_by_id,
    snake_case,
    versions_of,
)
from harness.rights_requests import TOPIC
from harness.wire import Wire
from klamm.server.boot.config_checks import STANDARD_AUTHORIZER

IN_FORCE_S = 15.0
ANY_CODE, LITERAL, ALLOW, DELETE_ALL_PATTERNS = 1, 3, 3, 1
LISTENERS = {"broker": "LOGIN", "controller": "CLOGIN"}
"""Where alice logs in."""
DIFFERENT = {("kafka", "controller", "DescribeUserScramCredentials")}
"""Kafka's controller refuses it with UNKNOWN_SERVER_ERROR: its error response fails."""


@dataclass(frozen=True, slots=True)
class GuardedNode:
    """A broker with an authorizer, and where users log in to it, by the kind of the listener."""

    broker: Broker
    login_ports: dict[str, int]

    @property
    def port(self) -> int:
        """The listener of the super user."""
        return self.broker.port


@pytest.fixture(scope="module", params=sorted(KINDS))
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedNode]:
    running = KINDS[request.param](tmp_path_factory.mktemp(request.param))
    login_ports = {kind: free_port() for kind in LISTENERS}
    extra = [f"{LISTENERS[kind]}://127.0.0.1:{port}" for kind, port in login_ports.items()]
    running.overrides = {
        "listeners": f"PLAINTEXT://127.0.0.1:{running.port},CONTROLLER://127.0.0.1:{running.controller_port},"
        + ",".join(extra),
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{running.port},{extra[0]}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT,"
        "CLOGIN:SASL_PLAINTEXT",
        "controller.listener.names": "CONTROLLER,CLOGIN",
        "sasl.enabled.mechanisms": "PLAIN",
        **{
            f"listener.name.{name.lower()}.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="one";'
            for name in LISTENERS.values()
        },
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:ANONYMOUS",
        "auto.create.topics.enable": "false",
    }
    try:
        running.start()
        with Wire(running.port, timeout=60) as wire:
            prepare_resources(wire)
        yield GuardedNode(running, login_ports)
    finally:
        running.close()


def log_in(node: GuardedNode, kind: str) -> Wire:
    wire = Wire(node.login_ports[kind], timeout=60)
    assert wire.call("sasl_handshake", 1, mechanism="PLAIN").error_code == 0
    assert wire.call("sasl_authenticate", 1, auth_bytes=b"\0alice\0one").error_code == 0
    return wire


def set_rights(node: GuardedNode, grants: list[Grant]) -> None:
    """Make these the only ACLs; they are in force a little later."""
    everything = {
        "resource_type_filter": ANY_CODE,
        "resource_name_filter": None,
        "pattern_type_filter": DELETE_ALL_PATTERNS,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY_CODE,
        "permission_type": ANY_CODE,
    }
    creations = [
        {
            "resource_type": int(resource_type),
            "resource_name": name,
            "resource_pattern_type": LITERAL,
            "principal": ALICE,
            "host": "*",
            "operation": int(operation),
            "permission_type": ALLOW,
        }
        for resource_type, name, operation in grants
    ]
    with Wire(node.port, timeout=60) as wire:
        wire.call("delete_acls", 3, filters=[everything])
        reply = wire.call("create_acls", 3, creations=creations)
        assert not any(result.error_code for result in reply.results), reply


def wait_until_holds(check: Callable[[], None]) -> None:
    """Repeat a check until it holds: an ACL that was just set is not in force at once."""
    deadline = time.monotonic() + IN_FORCE_S
    while True:
        try:
            return check()
        except (AssertionError, ConnectionError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def test_denials_have_their_code_in_their_place(node: GuardedNode) -> None:
    with Wire(node.port, timeout=60) as wire:
        topic_id = wire.topic_id(TOPIC)
    failures = []
    for kind, api in SERVED:
        if (node.broker.kind, kind, api) in DIFFERENT:
            continue
        row = find_row(kind, api)
        for missing in range(len(row.denials)):
            set_rights(node, grants_of(api, kind, without=missing) if missing else [])
            for version in versions_of(api, row):

                def check() -> None:
                    with log_in(node, kind) as wire:  # noqa: B023 - called before the next one
                        reply = wire.call(snake_case(api), version, **fields_of(row, version, topic_id))  # noqa: B023
                    check_denied(kind, api, version, row, reply, missing)  # noqa: B023

                try:
                    wait_until_holds(check)
                except (AssertionError, OSError) as error:
                    failures.append(f"{kind} {api} v{version}, right {missing}: {error!s:.300}")
    assert not failures, "\n".join(failures)


def test_a_topic_id_that_does_not_exist_is_unknown_and_not_denied(node: GuardedNode) -> None:
    set_rights(node, [])
    for topic_id in (bytes(16), b"no topic has it!"):
        with log_in(node, "broker") as wire:
            assert produce_by_id(wire, topic_id) == UNKNOWN_TOPIC_ID
