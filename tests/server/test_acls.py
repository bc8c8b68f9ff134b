"""CreateAcls, DescribeAcls and DeleteAcls against a node, and what follows from them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.access import CLUSTER_DENIED, TOPIC_DENIED, connect_as, secured_node
from harness.inprocess import NodeThread
from harness.wire import Wire, batch, unique
from klamm.model.acls import AclOperation as Op
from klamm.model.acls import AclPermission as Permission
from klamm.model.acls import AclResourceType as Type
from klamm.model.acls import PatternType as Pattern

INVALID_REQUEST, POLICY_VIOLATION = 42, 44


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    with secured_node(tmp_path_factory.mktemp("acls")) as thread:
        yield thread


def creation(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "resource_type": Type.TOPIC,
        "resource_name": name,
        "resource_pattern_type": Pattern.LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": Op.READ,
        "permission_type": Permission.ALLOW,
        **changes,
    }


def any_filter(**changes: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": Type.ANY,
        "resource_name_filter": None,
        "pattern_type_filter": Pattern.ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": Op.ANY,
        "permission_type": Permission.ANY,
        **changes,
    }


def list_acls(wire: Wire, **changes: Any) -> set[tuple[Any, ...]]:
    reply = wire.call("describe_acls", 3, **any_filter(**changes))
    assert reply.error_code == 0, reply
    return {
        (resource.resource_name, resource.pattern_type, acl.principal, acl.operation, acl.permission_type)
        for resource in reply.resources
        for acl in resource.acls
    }


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_created_described_and_deleted(node: NodeThread, version: int) -> None:
    topic = unique()
    with Wire(node.port) as wire:
        creations = [creation(topic), creation(topic, operation=Op.WRITE), creation(topic)]
        reply = wire.call("create_acls", version, creations=creations)
        assert [result.error_code for result in reply.results] == [0, 0, 0]
        assert list_acls(wire, resource_name_filter=topic) == {
            (topic, Pattern.LITERAL, "User:alice", Op.READ, Permission.ALLOW),
            (topic, Pattern.LITERAL, "User:alice", Op.WRITE, Permission.ALLOW),
        }
        # The same entry again changes nothing.
        assert wire.call("create_acls", version, creations=creations[:1]).results[0].error_code == 0
        assert len(list_acls(wire, resource_name_filter=topic)) == 2
        reply = wire.call(
            "delete_acls",
            version,
            filters=[
                any_filter(resource_name_filter=topic, operation=Op.READ),
                any_filter(resource_name_filter="no such topic"),
            ],
        )
        assert [result.error_code for result in reply.filter_results] == [0, 0]
        assert [[acl.operation for acl in result.matching_acls] for result in reply.filter_results] == [[Op.READ], []]
        assert {row[3] for row in list_acls(wire, resource_name_filter=topic)} == {Op.WRITE}


@pytest.mark.parametrize(
    "changes",
    [
        {"resource_name": ""},
        {"resource_type": Type.CLUSTER, "resource_name": "other"},
        {"resource_type": Type.ANY},
        {"resource_type": 99},
        {"operation": Op.ANY},
        {"operation": 99},
        {"permission_type": Permission.ANY},
        {"resource_pattern_type": Pattern.MATCH},
        {"principal": "alice"},
    ],
)
def test_an_invalid_acl_is_refused_and_the_others_are_created(node: NodeThread, changes: dict[str, Any]) -> None:
    topic = unique()
    with Wire(node.port) as wire:
        reply = wire.call("create_acls", 3, creations=[creation(topic), {**creation(topic), **changes}])
        assert [result.error_code for result in reply.results] == [0, INVALID_REQUEST]
        assert len(list_acls(wire, resource_name_filter=topic)) == 1


def test_filters_with_unknown_codes_are_refused(node: NodeThread) -> None:
    with Wire(node.port) as wire:
        assert wire.call("describe_acls", 3, **any_filter(operation=99)).error_code == INVALID_REQUEST
        reply = wire.call("delete_acls", 3, filters=[any_filter(resource_type_filter=99)])
        assert reply.filter_results[0].error_code == INVALID_REQUEST


def test_a_request_may_create_ten_thousand_acls_at_most(node: NodeThread) -> None:
    with Wire(node.port) as wire:
        creations = [creation(f"many-{index}") for index in range(10_001)]
        reply = wire.call("create_acls", 3, creations=creations)
        assert {result.error_code for result in reply.results} == {POLICY_VIOLATION}
        assert list_acls(wire, resource_name_filter="many-0") == set()


def test_acls_survive_a_restart(tmp_path: Path) -> None:
    topic = unique()
    with secured_node(tmp_path) as thread, Wire(thread.port) as wire:
        wire.call("create_acls", 3, creations=[creation(topic)])
        wire.create_topic(topic)
    with secured_node(tmp_path) as thread:
        with Wire(thread.port) as wire:
            assert len(list_acls(wire)) == 1
        with connect_as(thread, "User:alice") as alice:
            assert alice.fetch(topic, 0).error_code == 0
        with connect_as(thread, "User:bob") as bob:
            assert bob.fetch(topic, 0).error_code == TOPIC_DENIED


def test_a_produce_that_was_allowed_is_denied_when_its_acl_is_removed(node: NodeThread) -> None:
    """The quick path recognises a request by its bytes, and must forget what it has learned."""
    topic = unique()
    with Wire(node.port) as admin, connect_as(node, "User:alice") as alice:
        admin.create_topic(topic)
        assert alice.produce(topic, batch(b"a")).error_code == TOPIC_DENIED
        admin.call("create_acls", 3, creations=[creation(topic, operation=Op.WRITE)])
        for _ in range(3):
            assert alice.produce(topic, batch(b"a")).error_code == 0
        assert node.run(_count_known_prefixes, alice.sock.getsockname()[1]) == 1
        admin.call("delete_acls", 3, filters=[any_filter(resource_name_filter=topic)])
        assert alice.produce(topic, batch(b"a")).error_code == TOPIC_DENIED
        assert admin.end_offset(topic) == 3


def _count_known_prefixes(node: Any, peer_port: int) -> int:
    channel = next(channel for channel in node.net._channels if channel.peer_address[1] == peer_port)
    return len(channel.state.known_prefixes)


def test_acks_0_without_the_right_closes_the_connection(node: NodeThread) -> None:
    topic = unique()
    with Wire(node.port) as admin, connect_as(node, "User:alice") as alice:
        admin.create_topic(topic)
        alice.produce(topic, batch(b"a"), acks=0)
        assert alice.is_closed_by_peer()
        assert admin.end_offset(topic) == 0


def test_acls_may_be_changed_by_those_that_may_alter_the_cluster_only(node: NodeThread) -> None:
    with connect_as(node, "User:alice") as alice:
        assert alice.call("describe_acls", 3, **any_filter()).error_code == CLUSTER_DENIED
        created = alice.call("create_acls", 3, creations=[creation("a"), creation("b")])
        assert [result.error_code for result in created.results] == [CLUSTER_DENIED] * 2
        deleted = alice.call("delete_acls", 3, filters=[any_filter()])
        assert [result.error_code for result in deleted.filter_results] == [CLUSTER_DENIED]


@pytest.mark.parametrize(("users", "count"), [([{"name": "a"}, {"name": "b"}], 2), ([], 0), (None, 1)])
def test_denied_descriptions_of_credentials_have_results_without_names(
    node: NodeThread, users: list[dict[str, str]] | None, count: int
) -> None:
    with connect_as(node, "User:eve") as eve:
        reply = eve.call("describe_user_scram_credentials", 0, users=users)
    assert (reply.error_code, reply.error_message) == (CLUSTER_DENIED, None)
    assert [(r.user, r.error_code, r.error_message) for r in reply.results] == [("", CLUSTER_DENIED, None)] * count
