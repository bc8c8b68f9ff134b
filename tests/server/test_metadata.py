"""Metadata: the map every client steers by."""

import pytest

from harness.wire import unique
from klamm.model.errors import ErrorCode

VERSIONS = range(14)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_is_described(klamm, wire, version):
    name = wire.create_topic(partitions=3)
    reply = wire.call("metadata", version, topics=[{"name": name}])
    assert [(b.node_id, b.host, b.port) for b in reply.brokers] == [(1, "127.0.0.1", klamm.port)]
    [topic] = reply.topics
    assert (topic.error_code, topic.name) == (0, name)
    partitions = {
        p.partition_index: (p.error_code, p.leader_id, p.replica_nodes, p.isr_nodes) for p in topic.partitions
    }
    assert partitions == dict.fromkeys(range(3), (0, 1, (1,), (1,)))
    if version >= 1:
        assert reply.controller_id == 1
        assert topic.is_internal is False
    if version >= 2:
        assert len(reply.cluster_id) == 22
    if version >= 7:
        assert all(p.leader_epoch >= 0 for p in topic.partitions)
    if version >= 10:
        assert topic.topic_id is not None
    if version >= 13:
        assert reply.error_code == 0


def test_all_topics_or_none(wire):
    name = wire.create_topic()
    assert name in {t.name for t in wire.call("metadata", 0, topics=[]).topics}
    for version in (1, 9, 13):
        assert wire.call("metadata", version, topics=[]).topics == ()
        assert name in {t.name for t in wire.call("metadata", version, topics=None).topics}


@pytest.mark.parametrize("version", [0, 1, 3, 4, 9, 13])
def test_a_missing_topic_is_created_on_demand(wire, version):
    name = unique("auto")
    for _ in range(50):
        [topic] = wire.call("metadata", version, topics=[{"name": name}], allow_auto_topic_creation=True).topics
        if topic.error_code == 0:
            break
        assert topic.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)
    assert topic.error_code == 0
    assert len(topic.partitions) == 1
    assert topic.partitions[0].leader_id == 1


@pytest.mark.parametrize("version", [4, 9, 13])
def test_a_missing_topic_is_not_created_when_the_client_forbids_it(wire, version):
    name = unique("absent")
    for _ in range(2):
        [topic] = wire.call("metadata", version, topics=[{"name": name}], allow_auto_topic_creation=False).topics
        assert (topic.error_code, topic.name, topic.partitions) == (3, name, ())


@pytest.mark.parametrize("name", ["", "a b", ".", "..", "x" * 250, "ä", "a/b"])
def test_an_impossible_name_is_refused_and_never_created(wire, name):
    [topic] = wire.call("metadata", 9, topics=[{"name": name}], allow_auto_topic_creation=True).topics
    assert (topic.error_code, topic.name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, name)


@pytest.mark.parametrize("version", [12, 13])
def test_topics_are_found_by_id(wire, version):
    name = wire.create_topic()
    topic_id = wire.topic_id(name)
    [topic] = wire.call("metadata", version, topics=[{"topic_id": topic_id, "name": None}]).topics
    assert (topic.error_code, topic.name, topic.topic_id.bytes) == (0, name, topic_id)
    [topic] = wire.call("metadata", version, topics=[{"topic_id": topic_id, "name": ""}]).topics  # as Java writes it
    assert (topic.error_code, topic.name) == (0, name)
    [unknown] = wire.call("metadata", version, topics=[{"topic_id": b"\x07" * 16, "name": None}]).topics
    assert (unknown.error_code, unknown.topic_id.bytes) == (100, b"\x07" * 16)
    assert not unknown.partitions


@pytest.mark.parametrize("version", [10, 11])
def test_ids_in_requests_before_v12_are_refused(wire, version):
    name = wire.create_topic()
    [topic] = wire.call("metadata", version, topics=[{"topic_id": b"\x07" * 16, "name": name}]).topics
    assert (topic.error_code, topic.name) == (42, name)
    [refused] = wire.call("metadata", version, topics=[{"topic_id": wire.topic_id(name), "name": None}]).topics
    assert refused.error_code == ErrorCode.INVALID_REQUEST


def test_several_topics_are_answered_each_by_itself(wire):
    here, gone = wire.create_topic(), unique("gone")
    requested = [{"name": here}, {"name": gone}, {"name": "a b"}]
    reply = wire.call("metadata", 12, topics=requested, allow_auto_topic_creation=False)
    assert {t.name: int(t.error_code) for t in reply.topics} == {
        here: 0,
        gone: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "a b": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


@pytest.mark.parametrize("version", [8, 9, 10])
def test_authorized_operations_come_only_when_asked_for(wire, version):
    name = wire.create_topic()
    requested = {"topics": [{"name": name}]}
    plain = wire.call("metadata", version, **requested)
    assert plain.topics[0].topic_authorized_operations == -(2**31)
    full = wire.call("metadata", version, include_topic_authorized_operations=True, **requested)
    assert full.topics[0].topic_authorized_operations > 0
