"""Every API x {no right, all rights but one, exactly the rights it needs}, by raw requests.

The APIs are those of the routes, the rights those of `server/requests/access/rights`: an API without a row in either
fails.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from harness.access import DENIALS, allow, collect_codes, connect_as, secured_node, set_entries
from harness.inprocess import NodeThread
from harness.rights_matrix import (
    ALICE,
    SERVED,
    check_allowed,
    check_denied,
    find_row,
    grant_of,
    grants_of,
    prepare_resources,
    snake_case,
)
from harness.rights_requests import BROKER_ROWS, CONTROLLER_ROWS, Row
from harness.wire import Wire
from klamm.server.requests.access.rights import CONTROLLER_RIGHTS, RIGHTS, find_requirements
from klamm.server.requests.routes import routes


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    with secured_node(tmp_path_factory.mktemp("matrix"), "auto.create.topics.enable=false") as thread:
        with Wire(thread.port) as wire:
            prepare_resources(wire)
        yield thread


@pytest.fixture
def port_of(node: NodeThread) -> dict[str, int]:
    return {"broker": node.port, "controller": node.node.addresses["CONTROLLER"][1]}


def call(node: NodeThread, port: int, api: str, row: Row) -> Any:
    with connect_as(node, ALICE, port=port) as wire:
        return wire.call(snake_case(api), row.version, **row.fields)


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
    for missing, code in enumerate(row.denials):
        set_entries(node, allow(ALICE, grants_of(api, kind, without=missing)))
        check_denied(api, row, call(node, port_of[kind], api, row), code)


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
