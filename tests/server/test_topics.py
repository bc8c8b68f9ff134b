"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords."""

import pytest

from harness.wire import batch, unique
from klamm.model.errors import ErrorCode


def create(wire, *topics, version=7, **fields):
    reply = wire.call("create_topics", version, topics=list(topics), timeout=10_000, **fields)
    return {topic.name: topic for topic in reply.topics}


def plan(name=None, partitions=1, replicas=1, **fields):
    return {"name": name or unique(), "num_partitions": partitions, "replication_factor": replicas, **fields}


@pytest.mark.parametrize("version", range(2, 8))
def test_a_created_topic_can_be_used_at_once(wire, version):
    wanted = plan(partitions=3, configs=[{"name": "retention.ms", "value": "1234"}])
    topic = create(wire, wanted, version=version)[wanted["name"]]
    assert topic.error_code == 0
    if version >= 5:
        assert (topic.num_partitions, topic.replication_factor) == (3, 1)
        configs = {config.name: config for config in topic.configs}
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1234", 1)
        assert configs["segment.bytes"].config_source == 5
    if version >= 7:
        assert topic.topic_id.bytes == wire.topic_id(wanted["name"])
    for partition in range(3):
        assert wire.produce(wanted["name"], batch(b"x"), partition=partition).error_code == 0


def test_defaults_are_the_brokers(wire):
    wanted = plan(partitions=-1, replicas=-1)
    topic = create(wire, wanted)[wanted["name"]]
    assert (topic.error_code, topic.num_partitions, topic.replication_factor) == (0, 1, 1)


@pytest.mark.parametrize("version", [2, 7])
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"name": "a b"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": ""}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": ".."}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "x" * 250}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"num_partitions": -2}, ErrorCode.INVALID_PARTITIONS),
        ({"replication_factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"configs": [{"name": "no.such.setting", "value": "1"}]}, ErrorCode.INVALID_CONFIG),
        ({"configs": [{"name": "retention.ms", "value": "soon"}]}, ErrorCode.INVALID_CONFIG),
        ({"configs": [{"name": "retention.ms", "value": None}]}, ErrorCode.INVALID_CONFIG),
        ({"assignments": [{"partition_index": 0, "broker_ids": [1]}]}, ErrorCode.INVALID_REQUEST),
        (
            {
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": 0, "broker_ids": [99]}],
            },
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            {
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": 1, "broker_ids": [1]}],
            },
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_topic_that_cannot_be_is_refused(wire, fields, error, version):
    wanted = {**plan(), **fields}
    topic = create(wire, wanted, version=version)[wanted["name"]]
    assert topic.error_code == error
    assert topic.error_message
    listed = wire.call("metadata", 9, topics=None, allow_auto_topic_creation=False).topics
    assert wanted["name"] not in {t.name for t in listed}


def test_replicas_may_be_placed_by_hand(wire):
    assigned = [{"partition_index": p, "broker_ids": [1]} for p in range(2)]
    wanted = plan(partitions=-1, replicas=-1, assignments=assigned)
    assert create(wire, wanted)[wanted["name"]].error_code == 0
    assert len(wire.call("metadata", 9, topics=[{"name": wanted["name"]}]).topics[0].partitions) == 2


def test_a_name_can_be_taken_once(wire):
    name = wire.create_topic()
    assert create(wire, plan(name))[name].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    twice = plan()
    assert create(wire, twice, dict(twice))[twice["name"]].error_code == ErrorCode.INVALID_REQUEST
    fresh = plan()
    answers = create(wire, plan(name), fresh)
    assert (answers[name].error_code, answers[fresh["name"]].error_code) == (ErrorCode.TOPIC_ALREADY_EXISTS, 0)


def test_names_that_differ_only_in_dots_and_underscores_collide(wire):
    stem = unique("c").replace("-", "_")
    assert create(wire, plan(f"{stem}.x"))[f"{stem}.x"].error_code == 0
    assert create(wire, plan(f"{stem}_x"))[f"{stem}_x"].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("version", [2, 7])
def test_validate_only_changes_nothing(wire, version):
    wanted = plan(partitions=2)
    assert create(wire, wanted, version=version, validate_only=True)[wanted["name"]].error_code == 0
    [topic] = wire.call("metadata", 9, topics=[{"name": wanted["name"]}], allow_auto_topic_creation=False).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# Deleting


@pytest.mark.parametrize("version", range(1, 7))
def test_a_deleted_topic_is_gone_and_a_new_one_is_empty(wire, version):
    name = wire.create_topic()
    first_id = wire.topic_id(name)
    wire.produce(name, batch(b"old"))
    reply = wire.call("delete_topics", version, topic_names=[name], topics=[{"name": name}], timeout=10_000)
    [answer] = reply.responses
    assert (answer.error_code, answer.name) == (0, name)
    assert wire.produce(name, batch(b"x")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.fetch(name, 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    wire.create_topic(name)
    assert wire.topic_id(name) != first_id
    assert wire.end_offset(name) == 0
    assert wire.produce(name, batch(b"new")).base_offset == 0
    assert wire.values(name) == [b"new"]


def test_topics_are_deleted_by_id(wire):
    name = wire.create_topic()
    topic_id = wire.topic_id(name)
    for error in (0, 100):
        reply = wire.call("delete_topics", 6, topics=[{"topic_id": topic_id, "name": None}], timeout=10_000)
        assert (reply.responses[0].error_code, reply.responses[0].topic_id.bytes) == (error, topic_id)


def test_deletions_that_make_no_sense(wire):
    name = wire.create_topic()
    both = [{"topic_id": wire.topic_id(name), "name": name}]
    assert wire.call("delete_topics", 6, topics=both, timeout=1000).responses[0].error_code == ErrorCode.INVALID_REQUEST
    assert (
        wire.call("delete_topics", 6, topics=[{"name": None}], timeout=1000).responses[0].error_code
        == ErrorCode.INVALID_REQUEST
    )
    assert (
        wire.call("delete_topics", 1, topic_names=["no-such-topic"], timeout=1000).responses[0].error_code
        == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert wire.end_offset(name) == 0


# More partitions


@pytest.mark.parametrize("version", range(4))
def test_partitions_can_be_added(wire, version):
    name = wire.create_topic()
    wire.produce(name, batch(b"a"))
    reply = wire.call("create_partitions", version, topics=[{"name": name, "count": 3}], timeout=10_000)
    assert reply.results[0].error_code == 0
    assert [wire.produce(name, batch(b"b"), partition=p).base_offset for p in range(3)] == [1, 0, 0]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"count": 2}, ErrorCode.INVALID_PARTITIONS),
        ({"count": 1}, ErrorCode.INVALID_PARTITIONS),
        ({"count": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"count": -1}, ErrorCode.INVALID_PARTITIONS),
        ({"name": "no-such-topic"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"count": 3, "assignments": [{"broker_ids": [9]}]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"count": 3, "assignments": [{"broker_ids": [1]}, {"broker_ids": [1]}]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
    ids=str,
)
def test_partitions_are_never_taken_away(wire, fields, error):
    name = wire.create_topic(partitions=2)
    wanted = {"name": name, "count": 3, **fields}
    reply = wire.call("create_partitions", 3, topics=[wanted], timeout=10_000)
    assert reply.results[0].error_code == error
    assert reply.results[0].error_message
    assert len(wire.call("metadata", 9, topics=[{"name": name}]).topics[0].partitions) == 2


def test_adding_partitions_can_be_rehearsed(wire):
    name = wire.create_topic()
    fields = {"topics": [{"name": name, "count": 3}], "timeout": 10_000, "validate_only": True}
    assert wire.call("create_partitions", 3, **fields).results[0].error_code == 0
    assert len(wire.call("metadata", 9, topics=[{"name": name}]).topics[0].partitions) == 1


# Deleting records


def delete_records(wire, name, offset, *, version=2, partition=0):
    requested = [{"name": name, "partitions": [{"partition_index": partition, "offset": offset}]}]
    part = wire.call("delete_records", version, topics=requested, timeout=10_000).topics[0].partitions[0]
    return int(part.error_code), part.low_watermark


@pytest.mark.parametrize("version", range(3))
def test_records_before_an_offset_are_given_up(wire, version):
    name = wire.create_topic()
    for number in range(5):
        wire.produce(name, batch(b"%d" % number))
    assert delete_records(wire, name, 2, version=version) == (0, 2)
    assert delete_records(wire, name, 1, version=version) == (0, 2)
    assert wire.list_offset(name, -2).offset == 2
    assert wire.fetch(name, 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert wire.values(name, 2) == [b"2", b"3", b"4"]
    assert delete_records(wire, name, -1, version=version) == (0, 5)
    assert wire.produce(name, batch(b"5")).base_offset == 5
    assert wire.values(name, 5) == [b"5"]


def test_an_offset_inside_a_batch_moves_the_start_there(wire):
    name = wire.create_topic()
    wire.produce(name, batch(*[b"%d" % n for n in range(10)]))
    assert delete_records(wire, name, 4) == (0, 4)
    assert wire.fetch(name, 3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert wire.fetch(name, 4).error_code == 0


def test_records_that_cannot_be_deleted(wire):
    name = wire.create_topic()
    compacted = wire.create_topic(cleanup_policy="compact")
    assert delete_records(wire, name, 1)[0] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert delete_records(wire, name, -2)[0] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert delete_records(wire, name, 0, partition=4)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete_records(wire, "no-such-topic", 0)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete_records(wire, compacted, 0)[0] == ErrorCode.POLICY_VIOLATION
