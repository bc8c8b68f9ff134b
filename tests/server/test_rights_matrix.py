"""Every API x {no right, all rights but one, exactly the rights it needs}, by raw requests.

The APIs are those of the routes, the rights those of `server/requests/access/rights`: an API without a row in either
fails.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from harness.access import (
    DENIALS,
    SASL_LISTENER,
    Grant,
    allow,
    collect_codes,
    connect_as,
    log_in,
    secured_node,
    set_entries,
)
from harness.inprocess import NodeThread
from harness.rights_requests import BROKER_ROWS, CONTROLLER_ROWS, GROUP, TOPIC, TRANSACTIONAL_ID, Row
from harness.wire import Wire
from klamm.model.acls import AclResourceType as Type
from klamm.server.requests.access.rights import CONTROLLER_RIGHTS, RIGHTS, Right, find_requirements
from klamm.server.requests.routes import routes

ALICE = "User:alice"
LISTENERS = ("broker", "controller")
SERVED = [(kind, route.api.name) for kind in LISTENERS for _, route in sorted(routes(kind, authorized=True).items())]


def find_row(kind: str, api: str) -> Row:
    rows = {**BROKER_ROWS, **CONTROLLER_ROWS} if kind == "controller" else BROKER_ROWS
    assert api in rows, f"{api} is served on the {kind} listener: give it a row in tests/harness/rights_requests.py"
    return rows[api]


def snake_case(api: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api).lower()


def grant_of(right: Right, row: Row) -> Grant:
    names = {Type.TOPIC: "*", Type.GROUP: "*", Type.TRANSACTIONAL_ID: "*", Type.CLUSTER: "kafka-cluster"}
    return right.resource_type, names[right.resource_type], right.operation


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    with secured_node(tmp_path_factory.mktemp("matrix"), "auto.create.topics.enable=false", *SASL_LISTENER) as thread:
        with Wire(thread.port) as wire:
            _prepare(wire)
        yield thread


def _prepare(wire: Wire) -> None:
    """Make the resources that the rows name, so that a denial is not that of a missing one."""
    wire.create_topic(TOPIC)
    for group in (GROUP, "offsets-only"):
        while wire.call("find_coordinator", 4, key_type=0, coordinator_keys=[group]).coordinators[0].error_code:
            pass
        commit = {"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 0}]}
        while True:
            reply = wire.call("offset_commit", 8, group_id=group, generation_id_or_member_epoch=-1, topics=[commit])
            if not reply.topics[0].partitions[0].error_code:
                break
    while wire.call("find_coordinator", 4, key_type=1, coordinator_keys=[TRANSACTIONAL_ID]).coordinators[0].error_code:
        pass
    init = {"transactional_id": TRANSACTIONAL_ID, "transaction_timeout": 60_000, "producer_id": -1}
    while wire.call("init_producer_id", 4, **init, producer_epoch=-1).error_code:
        pass
    member = {
        "member_id": "m",
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": [TOPIC],
        "topic_partitions": [],
    }
    reply = wire.call("consumer_group_heartbeat", 0, group_id="described", member_epoch=0, **member)
    assert reply.error_code == 0, reply


@pytest.fixture
def port_of(node: NodeThread) -> dict[str, int]:
    return {"broker": node.port, "controller": node.node.addresses["CONTROLLER"][1]}


def call(node: NodeThread, port: int, api: str, row: Row) -> Any:
    with connect_as(node, ALICE, port=port) as wire:
        return wire.call(snake_case(api), row.version, **row.fields)


def check_denied(api: str, row: Row, reply: Any, code: int) -> None:
    if row.on_denial == "hidden":
        assert collect_codes(reply) == [0], reply
        assert not getattr(reply, "groups", ()), reply
        assert not getattr(reply, "transaction_states", ()), reply
        return
    codes = collect_codes(reply)
    assert code in codes, (api, code, reply)


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
    reply = call(node, port_of[kind], api, row)
    if row.denials:
        check_denied(api, row, reply, row.denials[0])
    else:
        assert not DENIALS & set(collect_codes(reply)), reply


@pytest.mark.parametrize(("kind", "api"), SERVED)
def test_all_rights_but_one_are_not_enough(node: NodeThread, port_of: dict[str, int], kind: str, api: str) -> None:
    row = find_row(kind, api)
    requirements = find_requirements(api, kind)
    for missing, code in enumerate(row.denials):
        others = [grant_of(requirement[0], row) for index, requirement in enumerate(requirements) if index != missing]
        # Rights that imply the missing one would grant it.
        set_entries(node, allow(ALICE, others))
        check_denied(api, row, call(node, port_of[kind], api, row), code)


@pytest.mark.parametrize(("kind", "api"), SERVED)
def test_exactly_the_declared_rights_are_enough(node: NodeThread, port_of: dict[str, int], kind: str, api: str) -> None:
    row = find_row(kind, api)
    grants = [grant_of(requirement[0], row) for requirement in find_requirements(api, kind)]
    set_entries(node, allow(ALICE, grants))
    reply = call(node, port_of[kind], api, row)
    codes = set(collect_codes(reply))
    if api == "CreateTopics":
        # Its configs need a right of their own, whose absence is no failure of the creation.
        assert [topic.error_code for topic in reply.topics] == [0], reply
        return
    assert not DENIALS & codes, reply
    if row.on_denial == "hidden":
        assert getattr(reply, "groups", ()) or getattr(reply, "transaction_states", ()), reply


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
            grants = [grant_of(other[0], row) for other in (*requirements[:index], *requirements[index + 1 :])]
            set_entries(node, allow(ALICE, [*grants, grant_of(right, row)]))
            reply = call(node, port_of[kind], api, row)
            if api == "CreateTopics":
                assert [topic.error_code for topic in reply.topics] == [0], reply
            else:
                assert not DENIALS & set(collect_codes(reply)), reply


@pytest.mark.parametrize("api", [api for kind, api in SERVED if kind == "broker"])
def test_the_same_holds_for_users_that_log_in(node: NodeThread, api: str) -> None:
    row = find_row("broker", api)
    grants = [grant_of(requirement[0], row) for requirement in find_requirements(api, "broker")]
    with log_in(node, "alice", "one") as alice, log_in(node, "bob", "two") as bob:
        set_entries(node, allow(ALICE, grants))
        denied = bob.call(snake_case(api), row.version, **row.fields)
        if row.denials:
            check_denied(api, row, denied, row.denials[0])
        allowed = alice.call(snake_case(api), row.version, **row.fields)
        if api == "CreateTopics":
            assert [topic.error_code for topic in allowed.topics] == [0], allowed
        else:
            assert not DENIALS & set(collect_codes(allowed)), allowed
