"""Creating, growing and deleting topics, with the refusals Kafka's clients know."""

import pytest

from klamm.metadata import ResourceType
from klamm.metadata.image import UNASSIGNED_DIR
from klamm.model.errors import ErrorCode
from klamm.model.ids import ZERO_UUID
from klamm.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from klamm.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState


def test_a_topic_is_made_with_its_configs_and_says_so(cluster):
    one = cluster(1)
    result = one.create("orders", 3, 1, configs={"retention.ms": "1000"})
    assert result.error_code == 0
    assert result.error_message is None
    assert (result.num_partitions, result.replication_factor) == (3, 1)
    topic = one.image.topics.by_name["orders"]
    assert topic.id == result.topic_id != ZERO_UUID
    assert [type(record).__name__ for record in one.log[-5:]] == [
        "TopicRecord",
        "ConfigRecord",
        "PartitionRecord",
        "PartitionRecord",
        "PartitionRecord",
    ]
    partition = one.partition("orders", 2)
    assert (partition.leader, partition.isr, partition.leader_epoch, partition.partition_epoch) == (1, (1,), 0, 0)
    assert partition.directories == (b"\1" * 16,)
    configs = {config.name: config for config in result.configs}
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1000", 1)
    assert (configs["max.message.bytes"].value, configs["max.message.bytes"].config_source) == ("1048588", 5)
    assert [config.name for config in result.configs] == sorted(configs)


def test_minus_one_means_the_brokers_defaults(cluster):
    three = cluster(3, num_partitions=4, default_replication_factor=2, static={"log.retention.ms": "3600000"})
    result = three.create("defaults")
    assert (result.num_partitions, result.replication_factor) == (4, 2)
    configs = {config.name: config for config in result.configs}
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("3600000", 4)


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        ({"name": ""}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": ".."}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "x" * 250}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "two words"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "kitchen_orders"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "kitchen.orders"}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ({"name": "__cluster_metadata"}, ErrorCode.INVALID_REQUEST),
        ({"name": "new", "partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"name": "new", "partitions": -2}, ErrorCode.INVALID_PARTITIONS),
        ({"name": "new", "partitions": 10_001}, ErrorCode.POLICY_VIOLATION),
        ({"name": "new", "replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"name": "new", "replication_factor": 4}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"name": "new", "configs": {"retention.sm": "1"}}, ErrorCode.INVALID_CONFIG),
        ({"name": "new", "configs": {"retention.ms": "soon"}}, ErrorCode.INVALID_CONFIG),
        ({"name": "new", "configs": {"retention.ms": None}}, ErrorCode.INVALID_CONFIG),
        ({"name": "new", "assignments": [[1, 2]], "partitions": 1}, ErrorCode.INVALID_REQUEST),
        ({"name": "new", "assignments": [[1, 2]], "replication_factor": 2}, ErrorCode.INVALID_REQUEST),
        ({"name": "new", "assignments": [[1, 1]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"name": "new", "assignments": [[]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"name": "new", "assignments": [[1, 9]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"name": "new", "assignments": [[1, 2], [3]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_refusals(cluster, wish, code):
    three = cluster(3)
    three.create("kitchen.orders", 1, 1)
    before = three.image
    result = three.create(**wish)
    assert result.error_code == code
    assert result.error_message
    assert three.image.topics is before.topics or three.image.topics == before.topics


def test_a_manual_assignment_is_followed(cluster):
    three = cluster(3)
    result = three.create("manual", assignments=[[3, 1], [2, 3]])
    assert (result.num_partitions, result.replication_factor) == (2, 2)
    assert three.partition("manual", 0).replicas == (3, 1)
    assert three.partition("manual", 1).leader == 2


def test_a_manual_assignment_has_no_gaps_and_no_repetition(cluster):
    one = cluster(1)
    for indexes in ([0, 2], [0, 0]):
        assignments = [CreatableReplicaAssignment(partition_index=index, broker_ids=[1]) for index in indexes]
        topic = CreatableTopic(name="odd", num_partitions=-1, replication_factor=-1, assignments=assignments)
        answer = one.commit(one.controller.create_topics(CreateTopicsRequest(topics=[topic])))
        assert answer.topics[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_fenced_replica_starts_outside_the_isr(cluster):
    three = cluster(3)
    three.silence(2)
    three.create("manual", assignments=[[2, 1, 3]])
    partition = three.partition("manual")
    assert (partition.replicas, partition.isr, partition.leader) == ((2, 1, 3), (1, 3), 1)
    three.silence(1, 3)
    assert three.create("dark", assignments=[[1]]).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert three.create("dark", 1, 1).error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_validate_only_answers_the_same_and_writes_nothing(cluster):
    one = cluster(1)
    before = one.next_offset
    result = one.create("dry", 2, 1, validate_only=True)
    assert (result.error_code, result.num_partitions) == (0, 2)
    assert one.next_offset == before
    assert one.image.topics.get("dry") is None


def test_one_bad_topic_does_not_hold_up_the_others(cluster):
    one = cluster(1)
    names = ["a", "twice", "twice", "b b", "c.d", "c_d"]
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    answer = one.commit(one.controller.create_topics(CreateTopicsRequest(topics=topics)))
    assert {topic.name: topic.error_code for topic in answer.topics} == {
        "a": ErrorCode.NONE,
        "twice": ErrorCode.INVALID_REQUEST,
        "b b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "c.d": ErrorCode.NONE,
        "c_d": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert len(answer.topics) == 5
    assert sorted(one.image.topics.by_name) == ["a", "c.d"]


def test_a_broker_with_two_disks_says_later_where_it_put_a_replica(cluster):
    one = cluster()
    one.start(1, log_dirs=[b"a" * 16, b"b" * 16])
    one.create("orders", 1, 1)
    assert one.partition("orders").directories == (UNASSIGNED_DIR,)


def test_topic_ids_differ_and_never_look_like_a_flag(cluster):
    one = cluster(1)
    for i in range(100):
        one.create(f"t{i}", 1, 1)
    assert len(one.image.topics.by_id) == 100
    assert all(topic_id[0] >> 2 != 62 for topic_id in one.image.topics.by_id)


# CreatePartitions


def grow(one, name, count, assignments=None, *, validate_only=False):
    wanted = None if assignments is None else [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    topic = CreatePartitionsTopic(name=name, count=count, assignments=wanted)
    request = CreatePartitionsRequest(topics=[topic], validate_only=validate_only)
    return one.commit(one.controller.create_partitions(request)).results[0]


def test_partitions_are_added_at_the_end(cluster):
    three = cluster(3)
    three.create("orders", 2, 2)
    before = three.image.topics.by_name["orders"].partitions
    result = grow(three, "orders", 4, [[1, 2], [3, 1]])
    assert (result.error_code, result.error_message) == (0, None)
    assert three.partition("orders", 0) is before[0]
    assert three.partition("orders", 3).replicas == (3, 1)
    assert grow(three, "orders", 6).error_code == 0
    assert len(three.partition("orders", 5).replicas) == 2


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code"),
    [
        ("orders", 2, None, ErrorCode.INVALID_PARTITIONS),
        ("orders", 1, None, ErrorCode.INVALID_PARTITIONS),
        ("orders", -1, None, ErrorCode.INVALID_PARTITIONS),
        ("orders", 10_001, None, ErrorCode.POLICY_VIOLATION),
        ("unknown", 3, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("orders", 4, [[1, 2]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 3, [[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 3, [[1, 1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 3, [[1, 7]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_growth_refused(cluster, name, count, assignments, code):
    three = cluster(3)
    three.create("orders", 2, 2)
    result = grow(three, name, count, assignments)
    assert result.error_code == code
    assert result.error_message
    assert len(three.image.topics.by_name["orders"].partitions) == 2


@pytest.mark.timeout(60)
def test_a_negative_count_makes_no_room_for_a_huge_one(cluster):
    """The two counts of this request add up to nearly nothing."""
    one = cluster(1)
    one.create("orders", 1, 1)
    topics = [
        CreatePartitionsTopic(name="unknown", count=-(2**31) + 2),
        CreatePartitionsTopic(name="orders", count=200_000),
    ]
    request = CreatePartitionsRequest(topics=topics, validate_only=True)
    results = one.commit(one.controller.create_partitions(request)).results
    assert [result.error_code for result in results] == [ErrorCode.POLICY_VIOLATION] * 2


def test_growth_can_be_tried_out(cluster):
    one = cluster(1)
    one.create("orders", 1, 1)
    assert grow(one, "orders", 5, validate_only=True).error_code == 0
    assert len(one.image.topics.by_name["orders"].partitions) == 1


# DeleteTopics


def delete(one, *states, version=6):
    request = DeleteTopicsRequest(topics=list(states))
    return one.commit(one.controller.delete_topics(request, version)).responses


def test_topics_are_deleted_by_name_and_by_id_with_their_configs(cluster):
    one = cluster(1)
    one.create("a", 1, 1, configs={"retention.ms": "5"})
    topic_id = one.create("b", 1, 1).topic_id
    answers = delete(one, DeleteTopicState(name="a"), DeleteTopicState(topic_id=topic_id))
    assert [(answer.name, answer.error_code) for answer in answers] == [("a", 0), ("b", 0)]
    assert not one.image.topics.by_name
    assert not any(resource.type == ResourceType.TOPIC for resource in one.image.configs)


def test_old_versions_delete_by_name(cluster):
    one = cluster(1)
    one.create("a", 1, 1)
    request = DeleteTopicsRequest(topic_names=["a", "unknown"])
    answers = one.commit(one.controller.delete_topics(request, 5)).responses
    assert [answer.error_code for answer in answers] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_what_cannot_be_deleted(cluster):
    one = cluster(1)
    topic_id = one.create("a", 1, 1).topic_id
    one.create("b", 1, 1)
    answers = delete(
        one,
        DeleteTopicState(name="unknown"),
        DeleteTopicState(topic_id=b"x" * 16),
        DeleteTopicState(),
        DeleteTopicState(name="b", topic_id=topic_id),
    )
    assert [answer.error_code for answer in answers] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert len(one.image.topics) == 2


def test_a_topic_named_twice_is_not_deleted_and_answered_once(cluster):
    one = cluster(1)
    one.create("a", 1, 1)
    answers = delete(one, DeleteTopicState(name="a"), DeleteTopicState(name="a"))
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_REQUEST]
    assert len(one.image.topics) == 1


def test_deletion_can_be_turned_off(cluster):
    one = cluster(1, delete_topic_enable=False)
    one.create("a", 1, 1)
    assert delete(one, DeleteTopicState(name="a"))[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED
    request = DeleteTopicsRequest(topic_names=["a"])
    answers = one.commit(one.controller.delete_topics(request, 2)).responses
    assert answers[0].error_code == ErrorCode.INVALID_REQUEST
    assert len(one.image.topics) == 1
