"""The matrix of rights: which API is tried with which request, and how a denial looks."""

import re
from typing import Any

from harness.access import DENIALS, Grant, collect_codes
from harness.rights_places import find_places, walk_codes
from harness.rights_requests import BROKER_ROWS, CONTROLLER_ROWS, GROUP, TOPIC, TOPIC_ID, TRANSACTIONAL_ID, Row
from harness.wire import Wire, batch
from klamm.model.acls import AclResourceType as Type
from klamm.protocol.apis import BY_NAME
from klamm.server.requests.access.rights import Right, find_requirements
from klamm.server.requests.routes import routes

ALICE = "User:alice"
UNKNOWN_TOPIC_ID = 100
LISTENERS = ("broker", "controller")
SERVED = [(kind, route.api.name) for kind in LISTENERS for _, route in sorted(routes(kind, authorized=True).items())]
"""Every API with the kinds of listeners that serve it."""


def find_row(kind: str, api: str) -> Row:
    rows = {**BROKER_ROWS, **CONTROLLER_ROWS} if kind == "controller" else BROKER_ROWS
    assert api in rows, f"{api} is served on the {kind} listener: give it a row in tests/harness/rights_requests.py"
    return rows[api]


def versions_of(api: str, row: Row) -> list[int]:
    """The lowest and the highest version of an API, and the one of its row."""
    lowest, highest = BY_NAME[api].versions
    highest = highest if row.last_version is None else row.last_version
    return sorted({max(lowest, row.lowest_version), row.version, highest})


def fields_of(row: Row, version: int, topic_id: bytes) -> dict[str, Any]:
    """The fields of the request in a version."""
    fields = dict(row.fields)
    if version < row.version:
        fields |= row.lowest
    elif version > row.version:
        fields |= row.highest
    return {name: _with_topic_id(value, topic_id) for name, value in fields.items()}


def _with_topic_id(value: Any, topic_id: bytes) -> Any:
    match value:
        case dict():
            return {name: _with_topic_id(part, topic_id) for name, part in value.items()}
        case list():
            return [_with_topic_id(part, topic_id) for part in value]
        case _:
            return topic_id if value == TOPIC_ID else value


def snake_case(api: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api).lower()


def grant_of(right: Right) -> Grant:
    names = {Type.TOPIC: "*", Type.GROUP: "*", Type.TRANSACTIONAL_ID: "*", Type.CLUSTER: "kafka-cluster"}
    return right.resource_type, names[right.resource_type], right.operation


def prepare_resources(wire: Wire) -> None:
    """Make the resources that the rows name, so that a denial is not that of a missing one."""
    wire.create_topic(TOPIC)
    for group in (GROUP, "offsets-only", "classic-described"):
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


def produce_by_id(wire: Wire, topic_id: bytes) -> int:
    """The code of a Produce request that names its topic by id."""
    data = {"topic_id": topic_id, "partition_data": [{"index": 0, "records": batch(b"v")}]}
    reply = wire.call("produce", 13, acks=1, timeout=1000, topic_data=[data])
    return int(reply.responses[0].partition_responses[0].error_code)


def check_denied(kind: str, api: str, version: int, row: Row, reply: Any, missing: int = 0) -> None:
    """Check that the reply has the code of the missing right in its place, and no other code anywhere."""
    if row.on_denial == "hidden":
        assert collect_codes(reply) == [0], reply
        assert not getattr(reply, "groups", ()), reply
        assert not getattr(reply, "transaction_states", ()), reply
        return
    code, places = row.denials[missing], find_places(kind, api, version, missing)
    codes = list(walk_codes(reply))
    assert {place for place, value in codes if value} == places, (api, version, reply)
    for place, value in codes:
        assert value == (code if place in places else 0), (api, version, place, reply)


def check_allowed(api: str, row: Row, reply: Any) -> None:
    """The reply to a request with exactly the rights that its API needs."""
    if api == "CreateTopics":
        # Its configs need a right of their own, whose absence is no failure of the creation.
        assert [topic.error_code for topic in reply.topics] == [0], reply
        return
    assert not DENIALS & set(collect_codes(reply)), reply
    if row.on_denial == "hidden":
        assert getattr(reply, "groups", ()) or getattr(reply, "transaction_states", ()), reply


def grants_of(api: str, kind: str, *, without: int = -1) -> list[Grant]:
    """The rights that an API needs, but for one."""
    requirements = find_requirements(api, kind)
    # Rights that imply the missing one would grant it.
    return [grant_of(requirement[0]) for index, requirement in enumerate(requirements) if index != without]
