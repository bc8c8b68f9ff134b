"""Offsets and administration of consumer groups: who may commit, look, delete; how groups are shown and kept."""

import pytest

from coordinator.consumer_groups_world import Consumer, ConsumerWorld
from coordinator.groups_world import Answer
from klamm.coordinator.groups.offset_requests import WantedTopic
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.codec import encode
from klamm.protocol.messages.group_records import (
    ConsumerGroupCurrentMemberAssignmentValue,
    CurrentTopicPartitions,
)
from klamm.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)


def two_members():
    """A group in which epoch 2 is settled: "one" kept partitions since epoch 1, "two" has its own since 2."""
    world = ConsumerWorld(t=4)
    one, two = Consumer(world, "one").join(), Consumer(world, "two").join()
    world.read_all(one, two)
    return world, one, two


def commit(world, member, epoch, partition, *, version=9, topic_id=None):
    topic_id = world.topic_id("t") if topic_id is None else topic_id
    return world.commit(7, member, epoch, partition=partition, version=version, topic_id=topic_id)


def test_members_commit_at_their_epoch():
    world, one, _ = two_members()
    assert commit(world, "one", 2, one.numbers[0]) is ErrorCode.NONE
    assert commit(world, "one", 3, one.numbers[0]) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(world, "unknown", 2, 0) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(world, "", -1, 0) is ErrorCode.UNKNOWN_MEMBER_ID, "the group has members"
    assert commit(world, "one", 2, one.numbers[0], version=8) is ErrorCode.UNSUPPORTED_VERSION


def test_an_older_epoch_counts_for_what_the_member_has_had_since():
    world, one, two = two_members()
    assert commit(world, "one", 1, one.numbers[0]) is ErrorCode.NONE
    assert commit(world, "one", 1, two.numbers[0]) is ErrorCode.STALE_MEMBER_EPOCH, "that one it gave away"
    assert commit(world, "two", 1, two.numbers[0]) is ErrorCode.STALE_MEMBER_EPOCH, "it got that one in epoch 2"


def test_what_a_member_is_giving_back_it_may_still_commit():
    world = ConsumerWorld(t=2)
    one = Consumer(world, "one").join()
    Consumer(world, "two").join()
    one.beat()
    assert one.numbers == [0]
    assert commit(world, "one", 1, 1) is ErrorCode.NONE
    one.beat()
    assert commit(world, "one", 1, 1) is ErrorCode.STALE_MEMBER_EPOCH


def test_anybody_commits_to_a_group_without_members():
    world = ConsumerWorld(t=1)
    Consumer(world, "one").join().leave()
    assert commit(world, "", -1, 0) is ErrorCode.NONE
    assert world.consumers().is_empty, "it stays a consumer group"


def test_producers_learn_of_a_stale_epoch_by_the_code_they_know():
    world, one, _ = two_members()
    place = one.numbers[0]
    good = world.commit_in_transaction(5, 1, partition=place, member_id="one", generation_id=2)
    assert good is ErrorCode.NONE
    stale = world.commit_in_transaction(5, 1, partition=place, member_id="one", generation_id=9)
    assert stale is ErrorCode.ILLEGAL_GENERATION
    assert world.commit_in_transaction(5, 1, partition=place) is ErrorCode.NONE, "without a member, as older ones do"


def fetch(world, member_id, epoch):
    answer = Answer()
    wanted = [WantedTopic("t", world.topic_id("t"), [0])]
    try:
        world.run(world.shard.fetch_offsets("g", member_id, epoch, wanted, answer, require_stable=False))
    except KlammError as error:
        return error.code
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def test_members_look_at_their_epoch_and_others_without_one():
    world, _, _ = two_members()
    assert fetch(world, "one", 2) is ErrorCode.NONE
    assert fetch(world, "one", 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert fetch(world, "unknown", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert fetch(world, None, -1) is ErrorCode.NONE


def test_offsets_of_topics_that_are_read_cannot_be_deleted():
    world, one, _ = two_members()
    commit(world, "one", 2, one.numbers[0])
    topics = [
        OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
        for name in ("t", "u")
    ]
    answer = Answer()
    world.run(world.shard.delete_offsets(OffsetDeleteRequest(group_id="g", topics=topics), answer))
    codes = {topic.name: ErrorCode(topic.partitions[0].error_code) for topic in answer.topics}
    assert codes == {"t": ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, "u": ErrorCode.NONE}


def test_a_group_can_be_deleted_once_it_is_empty():
    world, one, two = two_members()
    commit(world, "one", 2, one.numbers[0])
    answer = Answer()
    world.run(world.shard.delete_groups(["g"], answer))
    assert ErrorCode(answer.value[0].error_code) is ErrorCode.NON_EMPTY_GROUP
    one.leave()
    two.leave()
    answer = Answer()
    world.run(world.shard.delete_groups(["g"], answer))
    assert ErrorCode(answer.value[0].error_code) is ErrorCode.NONE
    assert not world.shard.groups
    world.restart()
    assert not world.shard.groups


def test_offsets_and_group_expire_when_nobody_has_been_there_for_long():
    world = ConsumerWorld(t=1)
    one = Consumer(world, "one").join()
    commit(world, "one", 1, 0)
    one.leave()
    world.pass_time(8 * 24 * 3600 * 1000)
    assert not world.shard.groups


def test_groups_are_listed_by_type_and_state():
    world, _, _ = two_members()
    Consumer(world, "x", group_id="other").join().leave()
    world.commit(1, group_id="simple")

    def listed(states=(), types=()):
        answer = Answer()
        world.run(world.shard.list_groups(states, types, answer))
        return {(group.group_id, group.group_type, group.group_state, group.protocol_type) for group in answer.value}

    assert listed(types=["consumer"]) == {
        ("g", "consumer", "Stable", "consumer"),
        ("other", "consumer", "Empty", "consumer"),
    }
    assert listed(states=["stable"]) == {("g", "consumer", "Stable", "consumer")}
    assert {group[0] for group in listed(types=["Classic"])} == {"simple"}


def test_a_group_is_shown_with_what_members_have_and_should_have():
    world = ConsumerWorld(t=2)
    one = Consumer(world, "one", rack_id="r").join()
    Consumer(world, "two", instance_id="i", regex="t", topics=()).join()
    one.beat()
    answer = Answer()
    world.run(world.shard.describe_consumer_groups(["g", "nothing"], answer))
    group, missing = answer.value
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Reconciling", 2, 2)
    assert group.assignor_name == "uniform"
    first, second = group.members
    assert (first.member_id, first.rack_id, first.member_epoch, first.member_type) == ("one", "r", 1, 1)
    assert [(t.topic_name, t.partitions) for t in first.assignment.topic_partitions] == [("t", [0])]
    assert second.instance_id == "i"
    assert second.subscribed_topic_regex == "t"
    assert second.assignment.topic_partitions == []
    assert [(t.topic_name, t.partitions) for t in second.target_assignment.topic_partitions] == [("t", [1])]
    assert first.client_host == "/127.0.0.1"


def test_the_classic_description_does_not_know_consumer_groups():
    world, _, _ = two_members()
    answer = Answer()
    world.run(world.shard.describe(["g"], 6, answer))
    assert answer.value[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        ([], "00000003000000020102000000000000000100000000000000020300000000000000010001" + "00"),
        (
            [3, 3],
            "0000000300000002010200000000000000010000000000000002030000000000000001010009030000000300000003" + "0100",
        ),
    ],
)
def test_current_assignments_are_written_as_kafkas_own_classes_write_them(epochs, expected):
    topic = CurrentTopicPartitions(
        topic_id=(1).to_bytes(8, "big") + (2).to_bytes(8, "big"), partitions=[0, 1], assignment_epochs=epochs
    )
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=3, previous_member_epoch=2, state=1, assigned_partitions=[topic]
    )
    assert encode(value, 0).hex() == expected
    assert CurrentTopicPartitions().assignment_epochs == []


def test_a_record_of_an_older_broker_without_assignment_epochs_counts_from_the_member_epoch():
    world, one, _ = two_members()
    value = one.me.current_value()
    for topic in value.assigned_partitions:
        topic.assignment_epochs = []
    assert one.me.with_current(value).assigned == {world.topic_id("t"): dict.fromkeys(one.numbers, 2)}
