"""Denials in a topic: written beside the log, never in the way of a request."""

import json
import time

import pytest

from harness.access import connect_as, secured_node, set_entries
from harness.wire import Wire, rows
from klamm.model.errors import ConfigError, ErrorCode
from klamm.server.boot.config import embedded_properties, parse_config
from klamm.server.requests.access.audit_topic import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    QUEUED_BYTES_MAX,
    QUEUED_MAX,
    AuditQueue,
    build_records,
)
from klamm.server.requests.access.control import NAME_CHARS_MAX

TOPIC = "audit-of-denials"


def take_fields(queue: AuditQueue) -> list[dict]:
    return [json.loads(record.value) for record in queue.take(9)]


def test_records_over_the_limit_are_dropped_and_counted():
    queue = AuditQueue(node_id=1, queued_max=3)
    for number in range(5):
        queue.add(number, {"number": number})
    assert (len(queue), queue.dropped, queue.dropped_total) == (3, 2, 2)
    taken = take_fields(queue)
    assert taken[0] == {"timestamp": 9, "node": 1, "event": "dropped", "count": 2}
    assert [fields["number"] for fields in taken[1:]] == [0, 1, 2]
    assert (len(queue), queue.dropped, queue.dropped_total) == (0, 0, 2)
    assert queue.take(10) == []


def test_the_bytes_of_a_queue_have_a_limit():
    queue = AuditQueue(node_id=1)
    for _ in range(QUEUED_MAX):
        queue.add(0, {"text": "x" * 8_000})
    assert QUEUED_BYTES_MAX - 10_000 < queue.size <= QUEUED_BYTES_MAX
    assert queue.dropped == QUEUED_MAX - len(queue)
    while queue.take(0):
        pass
    assert queue.size == 0


def test_a_batch_has_a_limit():
    queue = AuditQueue(node_id=1)
    for number in range(BATCH_RECORDS_MAX + 1):
        queue.add(number, {})
    assert len(queue.take(0)) == BATCH_RECORDS_MAX
    assert len(queue.take(0)) == 1


def test_the_bytes_of_a_batch_have_a_limit():
    queue = AuditQueue(node_id=1)
    for _ in range(100):
        queue.add(0, {"text": "x" * 10_000})
    taken = queue.take(0)
    assert 1 < len(taken) < 100
    assert len(build_records(taken)) <= BATCH_BYTES_MAX + 1_000


def test_a_record_that_cannot_be_written_is_counted_and_a_report_keeps_its_count():
    queue = AuditQueue(node_id=1, queued_max=1)
    for number in range(3):
        queue.add(number, {"number": number})
    report, record = queue.take(0)
    queue.drop(report)
    queue.drop(record)
    assert (queue.dropped, queue.dropped_total) == (3, 3)


def test_records_are_json_with_the_principal_for_a_key():
    queue = AuditQueue(node_id=3)
    queue.add(5, {"principal": "User:ö\n"})
    queue.add(6, {"event": "dropped"})
    [named, unnamed] = rows(build_records(queue.take(7)))
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


def await_last(wire: Wire, name: str) -> list[dict]:
    """The records of the topic, up to the denial of a resource."""
    deadline = time.monotonic() + 60
    while True:
        records = [json.loads(value) for value in wire.values(TOPIC)]
        if any(record.get("resource_name") == name for record in records):
            return records
        assert time.monotonic() < deadline, records[-3:]
        time.sleep(0.05)


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


def test_long_names_are_cut_and_do_not_stop_the_topic(tmp_path):
    names = [f"{number:03d}" + "x" * 6_000 for number in range(400)]
    with secured_node(tmp_path, f"klamm.audit.topic={TOPIC}") as node, Wire(node.port) as admin:
        admin.create_topic(TOPIC)
        with connect_as(node, "User:eve") as eve:
            eve.call("describe_groups", 5, groups=names)
            eve.fetch("after-the-long-names", 0)
        records = await_last(admin, "after-the-long-names")
    cut = [record for record in records if record["resource_type"] == "Group"]
    assert [record["resource_name"] for record in cut] == [name[:NAME_CHARS_MAX] for name in names]
    assert {record["resource_name_length"] for record in cut} == {6_003}
    assert "resource_name_length" not in records[-1]


def test_records_that_the_topic_refuses_are_dropped_and_counted(tmp_path):
    """What no batch of this topic can hold is left out; the records around it are written."""
    with secured_node(tmp_path, f"klamm.audit.topic={TOPIC}") as small, Wire(small.port) as admin:
        admin.create_topic(TOPIC, **{"max.message.bytes": "700"})
        with connect_as(small, "User:eve") as eve:
            eve.call("describe_groups", 5, groups=["a", "流" * 200, "b", "c"])
            eve.fetch("after", 0)
            records = await_last(admin, "after")
            eve.fetch("and-later", 0)
            records = await_last(admin, "and-later")
        audit = small.node.services.access.audit_topic
        assert audit.queue.dropped_total == 1
    assert [record.get("resource_name") for record in records if record["event"] == "denied"] == [
        "a",
        "b",
        "c",
        "after",
        "and-later",
    ]
    assert [record["count"] for record in records if record["event"] == "dropped"] == [1]


def test_a_name_that_no_topic_can_have_stops_the_start():
    with pytest.raises(ConfigError, match=r"klamm\.audit\.topic=a/b"):
        parse_config(embedded_properties("/nowhere", 0), ["klamm.audit.topic=a/b"])


def test_an_audit_topic_without_an_authorizer_is_warned_of():
    config = parse_config(embedded_properties("/nowhere", 0), [f"klamm.audit.topic={TOPIC}"])
    assert any("klamm.audit.topic has no effect without authorizer" in warning for warning in config.warnings)
