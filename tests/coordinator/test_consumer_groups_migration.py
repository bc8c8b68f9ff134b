"""Groups that change their protocol while they are in use, with members of both kinds."""

from dataclasses import replace

import pytest

from coordinator.consumer_groups_world import (
    CONFIG,
    ClassicConsumer,
    Consumer,
    ConsumerWorld,
    consumer_config,
    settle,
)
from klamm.coordinator.groups.classic.group import ClassicGroup
from klamm.coordinator.groups.consumer.config import MigrationPolicy
from klamm.coordinator.groups.consumer.group import ConsumerGroup
from klamm.model.errors import ErrorCode


def numbers(*clients):
    return sorted(number for client in clients for number in client.numbers)


@pytest.mark.parametrize("cooperative", [True, False])
def test_a_classic_group_is_rolled_over_to_the_new_protocol_and_back(cooperative):
    world = ConsumerWorld(t=6)
    old = [ClassicConsumer(world, cooperative=cooperative) for _ in range(3)]
    settle(world, *old)
    assert numbers(*old) == list(range(6))
    assert isinstance(world.shard.groups["g"], ClassicGroup)
    assert world.commit(41, old[0].member_id, old[0].generation) is ErrorCode.NONE

    new: list[Consumer] = []
    for index in range(3):
        gone = old.pop()
        world.leave(gone.member_id)
        new.append(Consumer(world, f"new-{index}").join())
        settle(world, *old, *new)
        assert numbers(*old, *new) == list(range(6)), "everything is read at every step"
        assert isinstance(world.shard.groups["g"], ConsumerGroup)
        assert world.consumers().state_name == "Stable"
    assert world.offset() == 41, "offsets stay"

    for _ in range(3):
        new.pop().leave()
        old.append(ClassicConsumer(world, cooperative=cooperative))
        settle(world, *new, *old, rounds=20)
        assert numbers(*old, *new) == list(range(6))
    assert isinstance(world.shard.groups["g"], ClassicGroup)
    assert world.offset() == 41
    world.restart()
    settle(world, *old, rounds=20)
    assert numbers(*old) == list(range(6))


def test_the_last_member_of_the_new_protocol_leaves_and_the_rest_goes_on_as_a_classic_group():
    world = ConsumerWorld(t=4)
    old = ClassicConsumer(world)
    settle(world, old)
    new = Consumer(world, "new").join()
    settle(world, old, new)
    assert len(old.numbers) == len(new.numbers) == 2
    new.leave()
    assert isinstance(world.shard.groups["g"], ClassicGroup)
    settle(world, old)
    assert old.numbers == [0, 1, 2, 3]
    assert "group downgraded from the consumer protocol" in world.reasons()
    assert any(event.text == "group downgraded to the classic protocol" for event in world.events)


def test_the_last_member_of_the_new_protocol_falls_silent():
    world = ConsumerWorld(t=2)
    old = ClassicConsumer(world, session_ms=60_000)
    settle(world, old)
    new = Consumer(world, "new").join()
    settle(world, old, new)
    for _ in range(10):
        world.pass_time(5_000)
        old.beat()
    assert isinstance(world.shard.groups["g"], ClassicGroup)
    settle(world, old)
    assert old.numbers == [0, 1]


def test_members_in_the_middle_of_a_classic_rebalance_are_sent_to_the_new_group():
    world = ConsumerWorld(replace(CONFIG, initial_rebalance_delay_ms=3000), t=2)
    old = ClassicConsumer(world)
    waiting = old.ask()
    assert waiting.pending
    new = Consumer(world, "new").join()
    assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
    settle(world, old, new)
    assert len(old.numbers) == len(new.numbers) == 1
    world.pass_time(3000)
    assert isinstance(world.shard.groups["g"], ConsumerGroup)


def test_a_refused_heartbeat_leaves_the_classic_rebalance_alone():
    world = ConsumerWorld(replace(CONFIG, initial_rebalance_delay_ms=3000), t=2)
    old = ClassicConsumer(world)
    waiting = old.ask()
    assert Consumer(world, "new", topics=None, regex="(").beat() is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert waiting.pending
    settle(world, old)
    world.pass_time(3000)
    settle(world, old)
    assert old.numbers == [0, 1]


@pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.DOWNGRADE])
def test_without_leave_to_migrate_a_classic_group_stays_classic(policy):
    world = ConsumerWorld(consumer_config(migration_policy=policy), t=2)
    old = ClassicConsumer(world)
    settle(world, old)
    assert Consumer(world, "new").beat() is ErrorCode.GROUP_ID_NOT_FOUND
    assert old.beat() is ErrorCode.NONE
    world.leave(old.member_id)
    world.settle()
    assert Consumer(world, "new").join().numbers == [0, 1], "an empty group may change"


def test_without_leave_to_migrate_classic_members_cannot_join_a_consumer_group():
    world = ConsumerWorld(consumer_config(migration_policy=MigrationPolicy.DISABLED), t=2)
    new = Consumer(world, "new").join()
    assert ClassicConsumer(world).ask().error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    new.leave()
    old = ClassicConsumer(world)
    settle(world, old)
    assert old.numbers == [0, 1], "an empty group may change"
    assert isinstance(world.shard.groups["g"], ClassicGroup)


def test_without_leave_to_go_back_classic_members_live_in_the_consumer_group():
    world = ConsumerWorld(consumer_config(migration_policy=MigrationPolicy.UPGRADE), t=4)
    old = [ClassicConsumer(world), ClassicConsumer(world)]
    settle(world, *old)
    new = Consumer(world, "new").join()
    settle(world, *old, new)
    new.leave()
    settle(world, *old)
    assert isinstance(world.shard.groups["g"], ConsumerGroup)
    assert numbers(*old) == [0, 1, 2, 3]
    world.grow("t", 6)
    settle(world, *old)
    assert numbers(*old) == list(range(6)), "new partitions are assigned, although no member uses the consumer protocol"


def test_a_group_of_another_protocol_type_does_not_migrate():
    world = ConsumerWorld(t=1)
    first = world.join(protocol_type="connect", protocols=(("compatible", b"x"),))
    world.join(first.member_id, protocol_type="connect", protocols=(("compatible", b"x"),))
    world.settle()
    assert Consumer(world, "new").beat() is ErrorCode.GROUP_ID_NOT_FOUND


def test_words_nobody_understands_keep_a_group_classic():
    world = ConsumerWorld(t=1)
    first = world.join(protocols=(("range", b"\x00"),))
    world.join(first.member_id, protocols=(("range", b"\x00"),))
    world.settle()
    assert Consumer(world, "new").beat() is ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(world.shard.groups["g"], ClassicGroup)


def test_static_members_are_restarted_one_by_one_into_the_new_protocol_and_back():
    world = ConsumerWorld(t=4)
    a, b = ClassicConsumer(world, instance_id="a"), ClassicConsumer(world, instance_id="b")
    settle(world, a, b)
    new_a = Consumer(world, "new-a", instance_id="a").join()
    settle(world, new_a, b)
    assert numbers(new_a, b) == [0, 1, 2, 3]
    assert world.heartbeat(a.member_id, a.generation, instance_id="a") is ErrorCode.FENCED_INSTANCE_ID
    world.shard.check()

    again = ClassicConsumer(world, instance_id="a")
    settle(world, again, b, rounds=20)
    assert isinstance(world.shard.groups["g"], ClassicGroup), "the last one of the new protocol was replaced"
    assert numbers(again, b) == [0, 1, 2, 3]
    assert new_a.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_only_member_is_replaced_by_a_classic_process_of_the_same_instance():
    world = ConsumerWorld(t=2)
    new = Consumer(world, "new", instance_id="i").join()
    assert new.numbers == [0, 1]
    old = ClassicConsumer(world, instance_id="i")
    settle(world, old)
    assert old.numbers == [0, 1]
    assert isinstance(world.shard.groups["g"], ClassicGroup)


def test_a_classic_member_that_does_not_rejoin_in_time_is_thrown_out():
    world = ConsumerWorld(consumer_config(migration_policy=MigrationPolicy.UPGRADE), t=2)
    old = ClassicConsumer(world, rebalance_ms=8_000, session_ms=10_000)
    settle(world, old)
    new = Consumer(world, "new").join()
    for _ in range(4):
        code = world.heartbeat(old.member_id, old.generation)
        assert code is ErrorCode.REBALANCE_IN_PROGRESS
        world.pass_time(2_000)
        new.beat()
    assert old.member_id not in world.consumers().members
    settle(world, new)
    assert new.numbers == [0, 1]
    assert any("not rejoined" in reason for reason in world.reasons())


def test_a_classic_member_that_does_not_sync_in_time_is_thrown_out():
    world = ConsumerWorld(t=2)
    new = Consumer(world, "new").join()
    old = ClassicConsumer(world, rebalance_ms=8_000, session_ms=20_000)
    assert old.ask().error is ErrorCode.NONE
    world.pass_time(8_000)
    assert list(world.consumers().members) == ["new"]
    settle(world, new)
    assert new.numbers == [0, 1]


def test_classic_words_in_a_consumer_group_are_checked():
    world = ConsumerWorld(t=2)
    new = Consumer(world, "new").join()
    old = ClassicConsumer(world)
    settle(world, new, old)
    assert world.heartbeat(old.member_id, old.generation + 5) is ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat("unknown", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat("new", new.epoch) is ErrorCode.UNKNOWN_MEMBER_ID, "it uses the consumer protocol"
    assert world.sync(old.member_id, old.generation, protocol_name="other").error is (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    assert world.join(protocols=(("other", b"\x00\x00"),)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.commit(3, old.member_id, old.generation) is ErrorCode.NONE
    assert world.commit(3, old.member_id, old.generation + 1) is ErrorCode.ILLEGAL_GENERATION
    assert world.leave("unknown", old.member_id) == [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]


def test_offsets_committed_without_members_stay_when_a_consumer_group_takes_the_name():
    world = ConsumerWorld(t=1)
    world.commit(17)
    new = Consumer(world, "new").join()
    assert world.offset() == 17
    world.restart()
    assert new.beat() is ErrorCode.NONE
    assert world.offset() == 17


def test_more_members_than_a_consumer_group_may_have_keep_it_classic():
    world = ConsumerWorld(consumer_config(max_size=1), t=2)
    old = [ClassicConsumer(world), ClassicConsumer(world)]
    settle(world, *old)
    assert Consumer(world, "new").beat() is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_restart_in_the_middle_of_a_migration_changes_nothing():
    world = ConsumerWorld(t=4)
    old = [ClassicConsumer(world), ClassicConsumer(world)]
    settle(world, *old)
    new = Consumer(world, "new").join()
    world.restart()
    settle(world, *old, new)
    assert numbers(*old, new) == [0, 1, 2, 3]
    assert world.consumers().state_name == "Stable"


def test_who_slept_while_its_group_went_back_joins_again():
    world = ConsumerWorld(t=2)
    old = ClassicConsumer(world, session_ms=60_000)
    settle(world, old)
    sleeper = Consumer(world, "sleeper").join()
    settle(world, old, sleeper)
    for _ in range(10):
        world.pass_time(5_000)
        old.beat()
    assert isinstance(world.shard.groups["g"], ClassicGroup)
    assert sleeper.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    settle(world, old, sleeper)
    assert len(old.numbers) == len(sleeper.numbers) == 1
