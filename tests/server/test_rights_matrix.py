"""Every API x {no right, all rights but one, exactly the rights it needs}, by raw requests of its lowest and highest
version; a denial has Kafka's code in Kafka's place, and nothing else.

The APIs are those of the routes, the rights those of `server/requests/access/rights`: an API without a row in either
fails.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from harness.access import (
    CLUSTER_DENIED,
    DENIALS,
    GROUP_DENIED,
    allow,
    collect_codes,
    connect_as,
    secured_node,
    set_entries,
)
from harness.inprocess import NodeThread
from harness.rights_matrix import (
    ALICE,
    SERVED,
    UNKNOWN_TOPIC_ID,
    check_allowed,
    check_denied,
    fields_of,
    find_row,
    grant_of,
    grants_of,
    prepare_resources,
    produce_by_id,
    snake_case,
    versions_of,
)
from harness.rights_places import walk_codes
from harness.rights_requests import BROKER_ROWS, CONTROLLER_ROWS, TOPIC, Row
from harness.wire import Wire
from klamm.model.acls import AclOperation as Op
from klamm.model.acls import AclResourceType as Type
from klamm.server.requests.access.rights import CONTROLLER_RIGHTS, RIGHTS, find_requirements
from klamm.server.requests.routes import routes

ALL_OF_GROUPS = 3400
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS, as Kafka's bit set of a group."""
NOT_REQUESTED = -(2**31)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    with secured_node(tmp_path_factory.mktemp("matrix"), "auto.create.topics.enable=false") as thread:
        with Wire(thread.port) as wire:
            prepare_resources(wire)
        yield thread


@pytest.fixture
def port_of(node: NodeThread) -> dict[str, int]:
    return {"broker": node.port, "controller": node.node.addresses["CONTROLLER"][1]}


def call(node: NodeThread, port: int, api: str, row: Row, version: int | None = None) -> Any:
    version = row.version if version is None else version
    with Wire(node.port) as wire:
        topic_id = wire.topic_id(TOPIC)
    with connect_as(node, ALICE, port=port) as wire:
        return wire.call(snake_case(api), version, **fields_of(row, version, topic_id))


def test_every_served_api_has_a_row_and_every_row_an_api() -> None:
    served = {api for _, api in SERVED}
    assert served == {*BROKER_ROWS, *CONTROLLER_ROWS}
    for kind, api in SERVED:
        row = find_row(kind, api)
        requirements = find_requirements(api, kind)
        # DescribeTransactions hides topics instead of refusing them.
        assert len(row.denials) == len(requirements) or api == "DescribeTransactions", api


def test_an_api_without_a_declared_right_cannot_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RIGHTS, "Produce")
    with pytest.raises(LookupError, match="Produce has no row"):
        routes("broker")
    assert set(CONTROLLER_RIGHTS) <= set(RIGHTS)


@pytest.mark.parametrize(("kind", "api"), SERVED)
def test_without_a_right_every_api_is_denied(node: NodeThread, port_of: dict[str, int], kind: str, api: str) -> None:
    row = find_row(kind, api)
    set_entries(node, [])
    for version in versions_of(api, row):
        reply = call(node, port_of[kind], api, row, version)
        if row.denials:
            check_denied(kind, api, version, row, reply)
        else:
            assert not DENIALS & set(collect_codes(reply)), reply


@pytest.mark.parametrize(("kind", "api"), SERVED)
def test_all_rights_but_one_are_not_enough(node: NodeThread, port_of: dict[str, int], kind: str, api: str) -> None:
    row = find_row(kind, api)
    for missing in range(len(row.denials)):
        set_entries(node, allow(ALICE, grants_of(api, kind, without=missing)))
        for version in versions_of(api, row):
            check_denied(kind, api, version, row, call(node, port_of[kind], api, row, version), missing)


@pytest.mark.parametrize(("kind", "api"), SERVED)
def test_exactly_the_declared_rights_are_enough(node: NodeThread, port_of: dict[str, int], kind: str, api: str) -> None:
    row = find_row(kind, api)
    set_entries(node, allow(ALICE, grants_of(api, kind)))
    check_allowed(api, row, call(node, port_of[kind], api, row))


@pytest.mark.parametrize(("kind", "api"), SERVED)
def test_each_alternative_right_is_enough(node: NodeThread, port_of: dict[str, int], kind: str, api: str) -> None:
    """For requirements that one of several rights meets, where the same request can be made with each of them."""
    row = find_row(kind, api)
    requirements = find_requirements(api, kind)
    # The key, the transactional id or the type of the resource selects the right: the row's request has one of them.
    if api in ("FindCoordinator", "InitProducerId", "DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs"):
        requirements = ()
    for index, requirement in enumerate(requirements):
        for right in requirement[1:]:
            grants = [grant_of(other[0]) for other in (*requirements[:index], *requirements[index + 1 :])]
            set_entries(node, allow(ALICE, [*grants, grant_of(right)]))
            reply = call(node, port_of[kind], api, row)
            if api == "CreateTopics":
                assert [topic.error_code for topic in reply.topics] == [0], reply
            else:
                assert not DENIALS & set(collect_codes(reply)), reply


def test_a_topic_id_that_does_not_exist_is_unknown_and_not_denied(node: NodeThread) -> None:
    """There is no name whose right could be checked; what Kafka answers is asked in compat/test_denials_beside.py."""
    set_entries(node, [])
    for topic_id in (bytes(16), b"no topic has it!"):
        with connect_as(node, ALICE) as wire:
            assert produce_by_id(wire, topic_id) == UNKNOWN_TOPIC_ID


def test_brokers_add_partitions_with_a_right_of_their_own(node: NodeThread) -> None:
    """From v4 on AddPartitionsToTxn is a request of brokers; rights of producers are not enough for it."""
    set_entries(node, allow(ALICE, grants_of("AddPartitionsToTxn", "broker")))
    row = find_row("broker", "AddPartitionsToTxn")
    for version in (4, 5):
        reply = call(node, node.port, "AddPartitionsToTxn", row, version)
        assert list(walk_codes(reply)) == [("error_code", CLUSTER_DENIED)]


def test_authorized_operations_of_groups_are_those_of_the_client(node: NodeThread) -> None:
    """The bit set of a group has the operations that the client may do, and none for a group that it may not see."""
    delete_and_describe = 1 << Op.DELETE | 1 << Op.DESCRIBE
    grants = {
        Op.DESCRIBE: 1 << Op.DESCRIBE,
        Op.DELETE: delete_and_describe,
        Op.READ: 1 << Op.READ | 1 << Op.DESCRIBE,
        Op.ALL: ALL_OF_GROUPS,
    }
    for api, version, names, group in (
        # Rows of the matrix delete their group.
        ("describe_groups", 6, "groups", "classic-described"),
        ("consumer_group_describe", 1, "group_ids", "described"),
    ):
        fields = {names: [group]}
        for operation, bits in grants.items():
            topics = (Type.TOPIC, "*", Op.DESCRIBE)
            set_entries(node, allow(ALICE, [(Type.GROUP, group, operation), topics]))
            with connect_as(node, ALICE) as wire:
                [described] = wire.call(api, version, include_authorized_operations=True, **fields).groups
                assert (described.error_code, described.authorized_operations) == (0, bits), (api, operation)
                [described] = wire.call(api, version, **fields).groups
                assert described.authorized_operations == NOT_REQUESTED
        set_entries(node, [])
        with connect_as(node, ALICE) as wire:
            [denied] = wire.call(api, version, include_authorized_operations=True, **fields).groups
            assert (denied.error_code, denied.authorized_operations) == (GROUP_DENIED, NOT_REQUESTED)
        with Wire(node.port) as wire:
            [described] = wire.call(api, version, include_authorized_operations=True, **fields).groups
            assert described.authorized_operations == ALL_OF_GROUPS
