"""Consumer groups as their members live them: join, share, give back, wait, take, leave."""

from dataclasses import replace

import pytest

from coordinator.consumer_groups_world import CONFIG, Consumer, ConsumerWorld, consumer_config
from klamm.coordinator.core.shard import Decision, make_record
from klamm.coordinator.groups.consumer.heartbeat import WAITING_INTERVAL_MS
from klamm.coordinator.groups.consumer.member import MemberState
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
)

INTERVAL_MS = CONFIG.consumer.heartbeat_interval_ms
ASSIGNMENT_INTERVAL_MS = 1000
EARLY_MS = 300
"""When a second member joins, after the first target."""
DUE_IN_MS = ASSIGNMENT_INTERVAL_MS - EARLY_MS + 1
"""A millisecond after the next target may be computed."""


def test_the_first_member_gets_everything_at_once():
    world = ConsumerWorld(t=3)
    one = Consumer(world, "one").join()
    assert one.numbers == [0, 1, 2]
    assert one.epoch == 1
    assert one.last.heartbeat_interval_ms == INTERVAL_MS
    assert world.consumers().state_name == "Stable"
    assert world.reasons() == ["member one joined"]


def test_a_second_member_waits_until_the_first_has_given_back():
    world = ConsumerWorld(t=4)
    one = Consumer(world, "one").join()
    two = Consumer(world, "two").join()
    assert two.numbers == []
    assert two.me.state is MemberState.UNRELEASED_PARTITIONS
    assert two.last.heartbeat_interval_ms == WAITING_INTERVAL_MS, "a member that waits sends heartbeats more often"
    assert world.consumers().state_name == "Reconciling"

    one.beat()  # is answered with what to revoke
    assert one.me.state is MemberState.UNREVOKED_PARTITIONS
    assert one.epoch == 1
    two.beat()
    assert two.numbers == [], "the first has not confirmed the revocation"

    one.beat()  # confirms it
    assert one.me.state is MemberState.STABLE
    assert one.epoch == 2
    two.beat()
    assert sorted(one.numbers + two.numbers) == [0, 1, 2, 3]
    assert len(two.numbers) == 2
    assert two.last.heartbeat_interval_ms == INTERVAL_MS
    assert world.consumers().state_name == "Stable"


def test_a_heartbeat_without_news_carries_no_assignment_and_writes_nothing():
    world = ConsumerWorld(t=2)
    one = Consumer(world, "one").join()
    before = len(world.log)
    one.beat()
    assert one.last.assignment is None
    assert len(world.log) == before


def test_a_full_request_is_answered_in_full():
    world = ConsumerWorld(t=2)
    one = Consumer(world, "one").join()
    one.beat(full=True)
    assert one.last.assignment is not None


def test_a_member_leaves_and_the_others_take_over():
    world = ConsumerWorld(t=4)
    one, two = Consumer(world, "one").join(), Consumer(world, "two").join()
    world.read_all(one, two)
    assert two.leave() is ErrorCode.NONE
    assert world.consumers().state_name == "Assigning"
    one.beat()
    assert one.numbers == [0, 1, 2, 3]
    assert world.reasons()[-1] == "member two left"


def test_the_last_member_leaves_and_the_group_stays_empty_until_it_is_deleted():
    world = ConsumerWorld(t=1)
    one = Consumer(world, "one").join()
    one.leave()
    assert world.consumers().state_name == "Empty"
    assert world.consumers().is_empty


def test_a_silent_member_is_gone_after_its_session():
    world = ConsumerWorld(t=2)
    one, two = Consumer(world, "one").join(), Consumer(world, "two").join()
    world.read_all(one, two)
    for _ in range(9):
        world.pass_time(4_500)
        one.beat()
    world.pass_time(4_499)
    assert "two" in world.consumers().members
    world.pass_time(1)
    assert "two" not in world.consumers().members
    one.beat()
    assert one.numbers == [0, 1]
    assert two.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    two.join()
    world.read_all(one, two)
    assert len(two.numbers) == 1


def test_a_member_that_does_not_give_back_in_time_is_thrown_out():
    world = ConsumerWorld(t=2)
    one = Consumer(world, "one", rebalance_ms=7_000).join()
    two = Consumer(world, "two").join()
    one.beat()
    held = set(one.owned) | {(world.topic_id("t"), 0), (world.topic_id("t"), 1)}
    for _ in range(2):
        one.owned = set(held)
        one.beat()
        world.pass_time(3_400)
        two.beat()
    assert two.numbers == []
    world.pass_time(1_000)
    assert "one" not in world.consumers().members
    two.beat()
    assert two.numbers == [0, 1]
    assert "partitions not revoked" in world.reasons()[-1]


def test_new_partitions_are_found_at_the_next_heartbeat():
    world = ConsumerWorld(t=1)
    one = Consumer(world, "one").join()
    world.grow("t", 3)
    one.beat()
    assert one.numbers == [0, 1, 2]
    assert world.reasons()[-1] == "subscribed topics changed"


def test_a_topic_that_appears_later_is_read_and_one_that_goes_is_given_back():
    world = ConsumerWorld(t=1)
    one = Consumer(world, "one", topics=("t", "later")).join()
    assert one.numbers == [0]
    world.create("later", 2)
    one.beat()
    assert len(one.owned) == 3
    world.delete("t")
    world.read_all(one)
    assert {topic for topic, _ in one.owned} == {world.topic_id("later")}
    assert one.me.state is MemberState.STABLE


def test_a_topic_that_is_created_anew_is_another_topic():
    world = ConsumerWorld(t=1)
    one = Consumer(world, "one").join()
    world.delete("t")
    world.create("t", 1)
    world.read_all(one)
    assert one.owned == {(world.topic_id("t"), 0)}


def test_other_changes_of_the_cluster_rebalance_nobody():
    world = ConsumerWorld(t=1)
    one = Consumer(world, "one").join()
    world.create("elsewhere", 5)
    world.brokers(None, None)
    before = len(world.log)
    one.beat()
    assert len(world.log) == before


def test_who_subscribes_to_other_topics_gives_back_at_once():
    world = ConsumerWorld(consumer_config(assignment_interval_ms=1000), t=2, u=2)
    one = Consumer(world, "one", topics=("t", "u")).join()
    one.subscribe("u")
    assert one.me.state is MemberState.UNREVOKED_PARTITIONS
    assert {topic for topic, _ in one.owned} == {world.topic_id("u")}
    world.pass_time(1000)
    world.read_all(one)
    assert one.numbers == [0, 1]
    assert world.consumers().state_name == "Stable"


def test_targets_are_held_back_for_the_assignment_interval_and_heartbeats_are_due_when_it_ends():
    world = ConsumerWorld(consumer_config(assignment_interval_ms=ASSIGNMENT_INTERVAL_MS), t=2)
    one = Consumer(world, "one").join()
    world.pass_time(EARLY_MS)
    two = Consumer(world, "two").join()
    assert two.last.heartbeat_interval_ms == DUE_IN_MS
    assert two.epoch == 1
    assert world.consumers().state_name == "Assigning"
    one.beat()
    assert one.numbers == [0, 1]
    world.pass_time(DUE_IN_MS)
    two.beat()
    assert two.last.heartbeat_interval_ms == WAITING_INTERVAL_MS
    world.read_all(one, two)
    assert two.last.heartbeat_interval_ms == INTERVAL_MS
    assert len(one.numbers) == len(two.numbers) == 1


def test_settings_of_the_group_itself_count_within_the_brokers_limits():
    world = ConsumerWorld(t=1)
    world.configure("g", consumer_session_timeout_ms="50000", consumer_heartbeat_interval_ms="1000")
    one = Consumer(world, "one").join()
    assert one.last.heartbeat_interval_ms == INTERVAL_MS, "not below the broker's minimum"
    world.pass_time(49_999)
    assert "one" in world.consumers().members
    world.pass_time(1)
    assert "one" not in world.consumers().members


def test_the_assignment_interval_can_be_set_for_the_cluster_and_for_a_group():
    world = ConsumerWorld(consumer_config(assignment_interval_ms=1000), t=2)
    of_cluster_ms = 4000
    world.configure(None, group_consumer_assignment_interval_ms=str(of_cluster_ms))
    Consumer(world, "one").join()
    assert Consumer(world, "two").join().last.heartbeat_interval_ms == of_cluster_ms + 1
    world.configure("g", consumer_assignment_interval_ms="0")
    Consumer(world, "three").join()
    assert world.consumers().target_epoch == world.consumers().group_epoch == 3


def test_the_group_takes_no_more_members_than_it_may():
    world = ConsumerWorld(consumer_config(max_size=1), t=1)
    one = Consumer(world, "one").join()
    assert Consumer(world, "two").beat() is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert one.beat() is ErrorCode.NONE
    assert one.join().epoch == 1, "a member that joins again is no other member"


def test_the_assignor_most_members_ask_for_is_used():
    world = ConsumerWorld(t=4, u=4)
    both = ("t", "u")
    one = Consumer(world, "a", topics=both, assignor="range").join()
    two = Consumer(world, "b", topics=both, assignor="range").join()
    world.read_all(one, two)
    assert one.numbers == [0, 0, 1, 1]
    assert two.numbers == [2, 2, 3, 3]
    assert Consumer(world, "c", assignor="mine").beat() is ErrorCode.UNSUPPORTED_ASSIGNOR


def test_members_read_in_their_own_rack():
    world = ConsumerWorld()
    world.brokers("a", "b")
    world.create("t", 4, ((0,), (0,), (1,), (1,)))
    near = Consumer(world, "near", rack_id="a").join()
    far = Consumer(world, "far", rack_id="b").join()
    world.read_all(near, far)
    assert near.numbers == [0, 1]
    assert far.numbers == [2, 3]


# Epochs


def test_an_epoch_from_the_future_or_the_far_past_is_fenced():
    world = ConsumerWorld(t=1)
    one = Consumer(world, "one").join()
    one.epoch = 7
    assert one.beat() is ErrorCode.FENCED_MEMBER_EPOCH
    assert one.join().numbers == [0]


def test_the_epoch_before_is_accepted_when_the_answer_may_have_been_lost():
    world = ConsumerWorld(t=2)
    one = Consumer(world, "one").join()
    world.grow("t", 3)
    world.beat(one.request(one.epoch))  # the answer is lost
    assert one.me.member_epoch == 2
    assert one.epoch == 1
    assert one.beat(full=True) is ErrorCode.NONE
    assert one.epoch == 2
    assert one.numbers == [0, 1, 2]


def test_the_epoch_before_is_fenced_when_the_member_claims_what_it_does_not_have():
    world = ConsumerWorld(t=2)
    one = Consumer(world, "one").join()
    world.grow("t", 3)
    world.beat(one.request(one.epoch))
    one.owned.add((world.topic_id("t"), 9))
    assert one.beat(full=True) is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_lost_answer_to_a_join_is_no_second_member():
    world = ConsumerWorld(t=2)
    one = Consumer(world, "one")
    world.beat(one.request(0))
    one.join()
    assert one.numbers == [0, 1]
    assert len(world.consumers().members) == 1


def test_version_zero_is_given_a_member_id():
    world = ConsumerWorld(t=1)
    one = Consumer(world, "", version=0).join()
    assert one.member_id
    assert one.beat() is ErrorCode.NONE


# Restarts


def test_after_a_restart_everything_is_as_before_and_sessions_begin_anew():
    world = ConsumerWorld(t=4)
    one, two = Consumer(world, "one").join(), Consumer(world, "two", instance_id="i").join()
    world.read_all(one, two)
    before = (world.consumers().members, world.consumers().target, world.consumers().group_epoch)
    world.restart()
    assert (world.consumers().members, world.consumers().target, world.consumers().group_epoch) == before
    log = len(world.log)
    world.read_all(one, two)
    assert len(world.log) == log, "nothing has changed, so nothing is written"
    world.pass_time(45_000)
    assert world.consumers().is_empty


def test_a_revocation_under_way_has_its_deadline_after_a_restart():
    world = ConsumerWorld(t=2)
    one = Consumer(world, "one", rebalance_ms=5_000).join()
    Consumer(world, "two").join()
    one.beat()
    world.restart()
    world.pass_time(5_000)
    assert "one" not in world.consumers().members


def test_a_state_of_a_later_version_makes_the_member_start_anew():
    world = ConsumerWorld(t=2)
    one = Consumer(world, "one").join()
    value = one.me.current_value()
    value.state = 9
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="one")
    world.run(Decision(records=(make_record(key, value),)))
    assert one.me.state is MemberState.UNKNOWN
    assert one.beat() is ErrorCode.FENCED_MEMBER_EPOCH
    assert one.join().numbers == [0, 1]
    assert one.me.state is MemberState.STABLE


def test_what_older_brokers_kept_of_the_topics_goes_with_the_next_change():
    world = ConsumerWorld(t=1)
    one = Consumer(world, "one").join()
    key = ConsumerGroupPartitionMetadataKey(group_id="g")
    world.run(Decision(records=(make_record(key, ConsumerGroupPartitionMetadataValue()),)))
    world.grow("t", 2)
    one.beat()
    assert one.numbers == [0, 1]
    assert make_record(key, None) in world.log[-1].records
    assert not world.consumers().has_partition_metadata


# Refusals


@pytest.mark.parametrize(
    ("changes", "version"),
    [
        ({"group_id": " "}, 1),
        ({"member_id": ""}, 1),
        ({"member_id": "", "member_epoch": 3}, 0),
        ({"instance_id": ""}, 1),
        ({"rack_id": " "}, 1),
        ({"rebalance_timeout_ms": -1}, 1),
        ({"topic_partitions": None}, 1),
        ({"subscribed_topic_names": None}, 1),
        ({"member_epoch": -3}, 1),
        ({"member_epoch": -2}, 1),
    ],
)
def test_requests_that_do_not_hold_together_are_refused(changes, version):
    world = ConsumerWorld(t=1)
    request = Consumer(world, "one").request(0)
    for name, value in changes.items():
        setattr(request, name, value)
    assert world.beat(request, version).error is ErrorCode.INVALID_REQUEST
    assert not world.shard.groups
    assert not world.log


def test_who_never_joined_is_not_known():
    world = ConsumerWorld(t=1)
    stranger = Consumer(world, "stranger", epoch=3)
    assert stranger.beat() is ErrorCode.GROUP_ID_NOT_FOUND
    assert Consumer(world, "stranger").leave() is ErrorCode.GROUP_ID_NOT_FOUND
    Consumer(world, "one").join()
    assert Consumer(world, "stranger", epoch=3).beat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert Consumer(world, "stranger").leave() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_too_large_for_one_batch_is_refused_and_its_neighbours_feel_nothing():
    world = ConsumerWorld(replace(CONFIG, record_bytes_max=2_000), t=3, wide=900)
    small = Consumer(world, "one").join()
    assert Consumer(world, "two", topics=("wide",), group_id="large").beat() is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "large" not in world.shard.groups
    assert small.beat() is ErrorCode.NONE
    assert Consumer(world, "two", topics=("wide",)).beat() is ErrorCode.UNKNOWN_SERVER_ERROR
    world.grow("t", 4)
    small.beat()
    assert small.numbers == [0, 1, 2, 3]
