"""Static members: a place that outlives the process, and only one process in it."""

from coordinator.consumer_groups_world import Consumer, ConsumerWorld
from klamm.coordinator.groups.consumer.member import MemberState
from klamm.model.errors import ErrorCode

AWAY = -2


def test_a_static_member_restarts_and_nobody_else_notices():
    world = ConsumerWorld(t=4)
    one = Consumer(world, "one").join()
    two = Consumer(world, "two", instance_id="i").join()
    world.read_all(one, two)
    mine, epoch, rebalances = set(two.owned), world.consumers().group_epoch, len(world.reasons())

    assert two.leave(AWAY) is ErrorCode.NONE
    assert world.consumers().members["two"].member_epoch == AWAY
    world.pass_time(10_000)
    one.beat()
    assert len(one.numbers) == 2, "its partitions wait for it"

    again = Consumer(world, "two-again", instance_id="i").join()
    assert again.owned == mine
    assert again.epoch == epoch
    assert "two" not in world.consumers().members
    assert world.consumers().group_epoch == epoch
    assert len(world.reasons()) == rebalances
    assert again.beat() is ErrorCode.NONE


def test_the_old_process_is_fenced():
    world = ConsumerWorld(t=1)
    old = Consumer(world, "old", instance_id="i").join()
    epoch = old.epoch
    old.leave(AWAY)
    Consumer(world, "new", instance_id="i").join()
    old.epoch = epoch
    assert old.beat() is ErrorCode.FENCED_INSTANCE_ID
    assert old.leave() is ErrorCode.FENCED_INSTANCE_ID


def test_a_second_process_with_the_same_instance_must_wait_until_the_first_has_left():
    world = ConsumerWorld(t=1)
    first = Consumer(world, "first", instance_id="i").join()
    second = Consumer(world, "second", instance_id="i")
    assert second.beat() is ErrorCode.UNRELEASED_INSTANCE_ID
    assert first.beat() is ErrorCode.NONE
    world.pass_time(45_000)
    assert second.join().numbers == [0]


def test_who_crashed_without_leaving_may_come_back_under_its_own_member_id():
    world = ConsumerWorld(t=2)
    one = Consumer(world, "one", instance_id="i").join()
    assert one.join().numbers == [0, 1]
    assert len(world.consumers().members) == 1


def test_a_static_member_that_stays_away_loses_its_place():
    world = ConsumerWorld(t=2)
    one = Consumer(world, "one").join()
    two = Consumer(world, "two", instance_id="i").join()
    world.read_all(one, two)
    two.leave(AWAY)
    for _ in range(9):
        world.pass_time(5_000)
        one.beat()
    assert "two" not in world.consumers().members
    one.beat()
    assert one.numbers == [0, 1]


def test_a_static_member_can_leave_for_good():
    world = ConsumerWorld(t=1)
    one = Consumer(world, "one", instance_id="i").join()
    assert one.leave() is ErrorCode.NONE
    assert not world.consumers().static_members


def test_it_comes_back_with_another_subscription_and_that_is_a_rebalance():
    world = ConsumerWorld(t=2, u=2)
    one = Consumer(world, "one", instance_id="i").join()
    one.leave(AWAY)
    again = Consumer(world, "again", instance_id="i", topics=("u",)).join()
    world.read_all(again)
    assert {topic for topic, _ in again.owned} == {world.topic_id("u")}
    assert again.me.state is MemberState.STABLE


def test_it_leaves_in_the_middle_of_giving_back_and_what_it_was_giving_is_free():
    world = ConsumerWorld(t=4)
    one = Consumer(world, "one", instance_id="i").join()
    two = Consumer(world, "two").join()
    one.beat()
    assert one.me.state is MemberState.UNREVOKED_PARTITIONS
    one.leave(AWAY)
    two.beat()
    assert len(two.numbers) == 2
    again = Consumer(world, "again", instance_id="i").join()
    world.read_all(again, two)
    assert len(again.numbers) == len(two.numbers) == 2


def test_commits_of_the_process_that_left_are_refused():
    world = ConsumerWorld(t=1)
    one = Consumer(world, "one", instance_id="i").join()
    topic_id = world.topic_id("t")
    assert world.commit(5, "one", 1, version=9, instance_id="i", topic_id=topic_id) is ErrorCode.NONE
    one.leave(AWAY)
    assert world.commit(6, "one", 1, version=9, instance_id="i", topic_id=topic_id) is ErrorCode.STALE_MEMBER_EPOCH
    world.restart()
    assert world.commit(6, "one", 1, version=9, instance_id="i", topic_id=topic_id) is ErrorCode.STALE_MEMBER_EPOCH


def test_an_administrator_removes_a_static_member_by_its_instance():
    world = ConsumerWorld(t=2)
    one = Consumer(world, "one").join()
    two = Consumer(world, "two", instance_id="i").join()
    world.read_all(one, two)
    assert world.leave("", instance_id="unknown") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.leave("", instance_id="i") == [ErrorCode.NONE]
    one.beat()
    assert one.numbers == [0, 1]
