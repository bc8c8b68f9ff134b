"""Settings of the node that clients feel: what is written in its properties is what they meet."""

import pytest

from harness import KlammProcess, Wire, batch, rows, unique
from klamm.model.errors import ErrorCode

SETTINGS = {
    "auto.create.topics.enable": "false",
    "delete.topic.enable": "false",
    "num.partitions": "3",
    "message.max.bytes": "2000",
    "log.message.timestamp.type": "LogAppendTime",
    "socket.request.max.bytes": "10000",
    "max.connections": "6",
    "connections.max.idle.ms": "3000",
    "fetch.max.bytes": "1024",
    "max.incremental.fetch.session.cache.slots": "1",
    "broker.rack": "cellar",
    "advertised.listeners": "PLAINTEXT://klamm.example:12345",
}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    with KlammProcess(tmp_path_factory.mktemp("settings"), overrides=SETTINGS) as node:
        yield node
        node.stop()


@pytest.fixture
def wire(own):
    with Wire(own.port) as connection:
        yield connection


def test_topics_are_not_created_on_demand(wire):
    name = unique()
    for _ in range(2):
        [topic] = wire.call("metadata", 9, topics=[{"name": name}], allow_auto_topic_creation=True).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topics_are_not_deleted(wire):
    name = wire.create_topic()
    assert (
        wire.call("delete_topics", 5, topic_names=[name], timeout=1000).responses[0].error_code
        == ErrorCode.TOPIC_DELETION_DISABLED
    )
    assert wire.end_offset(name) == 0


def test_a_new_topic_has_the_nodes_defaults(wire):
    name = wire.create_topic(partitions=-1)
    assert len(wire.call("metadata", 9, topics=[{"name": name}]).topics[0].partitions) == 3
    answer = wire.produce(name, batch(b"x", timestamp=1))
    assert answer.log_append_time is not None
    assert wire.produce(name, batch(b"x" * 3000)).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_topics_own_setting_wins(wire):
    name = wire.create_topic(max_message_bytes="5000", message_timestamp_type="CreateTime")
    answer = wire.produce(name, batch(b"x" * 3000))
    assert (answer.error_code, answer.log_append_time) == (0, None)


def test_requests_have_a_limit(own, wire):
    name = wire.create_topic()
    with Wire(own.port) as other:
        other.send_frame(bytes(10_001))
        assert other.is_closed_by_peer()
    assert wire.produce(name, batch(b"x")).error_code == 0


def test_a_fetch_has_a_limit(wire):
    name = wire.create_topic()
    for _ in range(5):
        wire.produce(name, batch(b"x" * 400))
    assert len(rows(wire.fetch(name, 0, max_bytes=1 << 25).records)) == 2


def test_sessions_have_a_limit(wire):
    name = wire.create_topic()
    requested = [{"topic": name, "partitions": [{"partition": 0, "partition_max_bytes": 100}]}]
    replies = [wire.call("fetch", 12, replica_id=-1, session_epoch=0, topics=requested) for _ in range(2)]
    assert [reply.session_id > 0 for reply in replies].count(True) <= 1


def test_connections_have_a_limit_and_a_life(own):
    held = [Wire(own.port) for _ in range(6)]
    try:
        # One too many: it is served when the others have been closed.
        with Wire(own.port, timeout=60) as late:
            assert late.call("api_versions", 0).error_code == 0
        assert all(connection.is_closed_by_peer(20) for connection in held)  # having been idle
    finally:
        for connection in held:
            connection.close()
    with Wire(own.port) as again:
        assert again.call("api_versions", 0).error_code == 0


def test_clients_are_told_the_advertised_address(wire):
    [broker] = wire.call("metadata", 9, topics=[]).brokers
    assert (broker.host, broker.port, broker.rack) == ("klamm.example", 12345, "cellar")
    [broker] = wire.call("describe_cluster", 1, endpoint_type=1).brokers
    assert (broker.host, broker.port, broker.rack) == ("klamm.example", 12345, "cellar")
