"""DescribeCluster, DescribeLogDirs, DescribeTopicPartitions, DescribeQuorum and UpdateFeatures."""

import pytest

from harness.wire import batch, unique
from klamm.model.errors import ErrorCode


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described(klamm, wire, version):
    reply = wire.call("describe_cluster", version, endpoint_type=1)
    assert (reply.error_code, reply.controller_id) == (0, 1)
    assert reply.cluster_id == wire.call("metadata", 9, topics=[]).cluster_id
    assert [(b.broker_id, b.host, b.port) for b in reply.brokers] == [(1, "127.0.0.1", klamm.port)]
    assert reply.cluster_authorized_operations == -(2**31)
    described = wire.call("describe_cluster", version, endpoint_type=1, include_cluster_authorized_operations=True)
    assert described.cluster_authorized_operations > 0


def test_a_broker_listener_does_not_tell_of_controllers(wire):
    assert wire.call("describe_cluster", 1, endpoint_type=2).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    assert wire.call("describe_cluster", 1, endpoint_type=7).error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


@pytest.mark.parametrize("version", range(1, 6))
def test_log_dirs(klamm, wire, version):
    name = wire.create_topic(partitions=2)
    records = batch(b"x" * 1000)
    wire.produce(name, records)
    for requested in (None, [{"topic": name, "partitions": [0, 1]}]):
        reply = wire.call("describe_log_dirs", version, topics=requested)
        [folder] = reply.results
        assert (folder.error_code, folder.log_dir) == (0, str(klamm.data))
        topics = {t.name: t for t in folder.topics}
        sizes = {p.partition_index: (p.partition_size, p.offset_lag) for p in topics[name].partitions}
        assert sizes == {0: (len(records), 0), 1: (0, 0)}
        if requested is not None:
            assert set(topics) == {name}
        if version >= 4:
            assert folder.total_bytes > folder.usable_bytes > 0
    [folder] = wire.call("describe_log_dirs", version, topics=[{"topic": "no-such-topic", "partitions": [0]}]).results
    assert folder.topics == ()


def describe(wire, *names, limit=2000, cursor=None):
    topics = [{"name": name} for name in names]
    return wire.call("describe_topic_partitions", 0, topics=topics, response_partition_limit=limit, cursor=cursor)


def test_partitions_come_page_by_page(wire):
    stem = unique("page")
    names = [wire.create_topic(f"{stem}-{letter}", partitions=3) for letter in "abc"]
    partitions, cursor, pages = [], None, 0
    while True:
        reply = describe(wire, *reversed(names), limit=2, cursor=cursor)
        pages += 1
        got = [(t.name, p.partition_index) for t in reply.topics for p in t.partitions]
        assert len(got) <= 2
        partitions += got
        if reply.next_cursor is None:
            break
        cursor = {"topic_name": reply.next_cursor.topic_name, "partition_index": reply.next_cursor.partition_index}
    assert partitions == [(name, p) for name in names for p in range(3)]
    assert pages == 5


def test_a_described_partition(wire):
    name = wire.create_topic()
    [topic] = describe(wire, name).topics
    assert (topic.error_code, topic.topic_id.bytes, topic.is_internal) == (0, wire.topic_id(name), False)
    [partition] = topic.partitions
    assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, (1,), (1,))
    assert partition.offline_replicas == ()


def test_topics_that_are_not_there(wire):
    reply = describe(wire, "no-such-topic", "a b")
    assert {t.name: int(t.error_code) for t in reply.topics} == {
        "no-such-topic": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "a b": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert wire.create_topic() in {t.name for t in describe(wire).topics}


@pytest.mark.parametrize("version", range(3))
def test_the_quorum(wire, version):
    requested = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    reply = wire.call("describe_quorum", version, topics=requested)
    assert reply.error_code == 0
    [partition] = reply.topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (0, 1)
    assert partition.leader_epoch > 0
    assert partition.high_watermark > 0
    [voter] = partition.current_voters
    assert voter.replica_id == 1
    assert voter.log_end_offset >= partition.high_watermark
    assert partition.observers == ()
    if version >= 2:
        [node] = reply.nodes
        assert node.node_id == 1
        assert node.listeners[0].name == "CONTROLLER"
        assert node.listeners[0].port > 0


def test_only_the_metadata_has_a_quorum(wire):
    requested = [{"topic_name": wire.create_topic(), "partitions": [{"partition_index": 0}]}]
    reply = wire.call("describe_quorum", 2, topics=requested)
    assert reply.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def update(wire, name, level, *, version=1, upgrade_type=1, **fields):
    requested = {"feature": name, "max_version_level": level, "upgrade_type": upgrade_type}
    return wire.call("update_features", version, timeout=10_000, feature_updates=[requested], **fields)


@pytest.mark.parametrize("version", range(3))
def test_a_feature_level_that_is_already_there(wire, version):
    finalized = {f.name: f.max_version_level for f in wire.call("api_versions", 4, **SOFTWARE).finalized_features}
    reply = update(wire, "metadata.version", finalized["metadata.version"], version=version)
    assert reply.error_code == 0


def test_unsupported_feature_levels(wire):
    for name, level in (("metadata.version", 30_000), ("no.such.feature", 1)):
        reply = update(wire, name, level)
        codes = {int(reply.error_code), *(int(r.error_code) for r in reply.results)}
        assert codes & {42, 95, 96}, reply
        assert update(wire, name, level, version=2).error_code in (
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_UPDATE_VERSION,
            ErrorCode.FEATURE_UPDATE_FAILED,
        )


SOFTWARE = {"client_software_name": "wire-tests", "client_software_version": "1.0"}
