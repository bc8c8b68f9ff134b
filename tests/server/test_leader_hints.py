"""A broker that does not lead says who does (KIP-951): Produce v10, Fetch v12 and, with addresses, v16."""

import pytest

from harness import NodeThread, Wire, batch
from harness.wire import produce_fields

NOT_LEADER = 6


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with NodeThread(tmp_path_factory.mktemp("hints")) as made:
        yield made


@pytest.fixture
def lost(node):
    """A topic this node's replica has just stopped leading, though the metadata still names the node."""
    with Wire(node.port) as wire:
        topic = wire.create_topic()
        for _ in range(3):
            assert wire.produce(topic, batch(b"x")).error_code == 0

        def step_down(running):
            replica = running.services.replicas.find(topic, 0)
            replica.leads = replica.can_encode_reply_before_write = replica.commits_alone = False

        node.run(step_down)
        yield wire, topic


@pytest.mark.parametrize("version", [9, 10, 12, 13])
def test_produce(node, lost, version):
    wire, topic = lost
    fields = produce_fields(topic, batch(b"x"))
    fields["topic_data"][0]["topic_id"] = wire.topic_id(topic)
    reply = wire.call("produce", version, **fields)
    part = reply.responses[0].partition_responses[0]
    assert (part.error_code, part.base_offset) == (NOT_LEADER, -1)
    if version >= 10:
        assert part.current_leader.leader_id == 1
        assert part.current_leader.leader_epoch >= 0
        assert [(e.node_id, e.host, e.port) for e in reply.node_endpoints] == [(1, "127.0.0.1", node.port)]


@pytest.mark.parametrize("version", [11, 12, 16, 18])
def test_fetch(node, lost, version):
    wire, topic = lost
    requested = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    topics = [{"topic": topic, "topic_id": wire.topic_id(topic), "partitions": [requested]}]
    reply = wire.call("fetch", version, replica_id=-1, max_wait=5000, min_bytes=1, max_bytes=1000, topics=topics)
    part = reply.responses[0].partitions[0]
    assert (part.error_code, part.records) == (NOT_LEADER, b"")
    if version >= 12:
        assert part.current_leader.leader_id == 1
        assert part.current_leader.leader_epoch >= 0
    if version >= 16:
        assert [(e.node_id, e.host, e.port) for e in reply.node_endpoints] == [(1, "127.0.0.1", node.port)]


def test_the_others(lost):
    wire, topic = lost
    assert wire.list_offset(topic, -1).error_code == NOT_LEADER
    requested = [{"topic": topic, "partitions": [{"partition": 0, "leader_epoch": 0}]}]
    assert wire.call("offset_for_leader_epoch", 4, topics=requested).topics[0].partitions[0].error_code == NOT_LEADER
    gone = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]}]
    assert wire.call("delete_records", 2, topics=gone).topics[0].partitions[0].error_code == NOT_LEADER
