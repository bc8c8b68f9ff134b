"""Denials in a topic: written beside the log, never in the way of a request."""

import json
import time

import pytest

from harness.access import connect_as, secured_node, set_entries
from harness.wire import Wire, rows
from klamm.model.errors import ConfigError, ErrorCode
from klamm.server.boot.config import embedded_properties, parse_config
from klamm.server.requests.access.audit_topic import BATCH_RECORDS_MAX, AuditQueue, encode_records

TOPIC = "audit-of-denials"


def test_records_over_the_limit_are_dropped_and_counted():
    queue = AuditQueue(queued_max=3)
    for number in range(5):
        queue.add(number, {"number": number})
    assert (len(queue), queue.dropped, queue.dropped_total) == (3, 2, 2)
    taken = queue.take(9)
    assert taken[0] == (9, {"event": "dropped", "count": 2})
    assert [fields["number"] for _, fields in taken[1:]] == [0, 1, 2]
    assert (len(queue), queue.dropped, queue.dropped_total) == (0, 0, 2)
    assert queue.take(10) == []


def test_a_batch_has_a_limit():
    queue = AuditQueue()
    for number in range(BATCH_RECORDS_MAX + 1):
        queue.add(number, {})
    assert len(queue.take(0)) == BATCH_RECORDS_MAX
    assert len(queue.take(0)) == 1


def test_records_are_json_with_the_principal_for_a_key():
    [named, unnamed] = rows(encode_records([(5, {"principal": "User:ö\n"}), (6, {"event": "dropped"})], 3))
    assert named.key == "User:ö\n".encode()
    assert json.loads(named.value) == {"timestamp": 5, "node": 3, "principal": "User:ö\n"}
    assert unnamed.key is None
    assert b"\n" not in named.value


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with secured_node(tmp_path_factory.mktemp("audit"), f"klamm.audit.topic={TOPIC}") as thread:
        yield thread


def await_records(wire: Wire, count: int) -> list[dict]:
    deadline = time.monotonic() + 60
    while len(values := wire.values(TOPIC)) < count:
        assert time.monotonic() < deadline, values
        time.sleep(0.05)
    return [json.loads(value) for value in values]


def test_denials_are_written_once_the_topic_exists(node):
    set_entries(node, [])
    with Wire(node.port) as admin, connect_as(node, "User:eve") as eve:
        orders = admin.create_topic()
        # Before the topic exists: they wait, and requests are answered meanwhile.
        for _ in range(3):
            assert eve.fetch(orders, 0).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        admin.create_topic(TOPIC)
        records = await_records(admin, 3)
        assert (
            eve.fetch(TOPIC, 0).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )  # of the audit topic itself: in the log only
        assert eve.fetch("unknown", 0).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        records = await_records(admin, 4)
    assert [record["resource_name"] for record in records] == [orders] * 3 + ["unknown"]
    assert records[0] | {"timestamp": 0} == {
        "timestamp": 0,
        "node": 1,
        "event": "denied",
        "principal": "User:eve",
        "host": "127.0.0.1",
        "operation": "READ",
        "resource_type": "Topic",
        "resource_name": orders,
        "request": "Fetch",
        "count": 1,
        "rule": "DefaultDeny",
    }


def test_a_name_that_no_topic_can_have_stops_the_start():
    with pytest.raises(ConfigError, match=r"klamm\.audit\.topic=a/b"):
        parse_config(embedded_properties("/nowhere", 0), ["klamm.audit.topic=a/b"])


def test_an_audit_topic_without_an_authorizer_is_warned_of():
    config = parse_config(embedded_properties("/nowhere", 0), [f"klamm.audit.topic={TOPIC}"])
    assert any("klamm.audit.topic has no effect without authorizer" in warning for warning in config.warnings)
