"""Static members: a place in the group that outlives a process, and only one process may have it."""

import pytest

from klamm.model.errors import ErrorCode

from .groups_world import World


@pytest.fixture
def world():
    return World()


def group_of(world, *instances, **how):
    """A stable group of static members; the first leads. Returns member ids by instance."""
    joins = {}
    for instance in instances:
        joins[instance] = world.join(instance_id=instance, **how)
    world.settle()
    ids = world.group().static_members
    for instance in instances:
        if joins[instance].generation_id != world.group().generation_id:
            world.join(ids[instance], instance_id=instance, **how)
    group = world.group()
    assignments = {ids[instance]: instance.encode() for instance in instances}
    for instance in instances:
        mine = assignments if group.leader_id == ids[instance] else None
        world.sync(ids[instance], group.generation_id, mine, instance_id=instance)
    assert group.state_name == "Stable"
    return dict(ids)


def test_a_static_member_joins_without_being_asked_for_an_id(world):
    join = world.join(instance_id="a")
    world.settle()
    assert join.error is ErrorCode.NONE
    assert join.member_id == "a-1"
    assert join.members[0].group_instance_id == "a"


def test_a_static_member_returns_to_its_assignment_and_nobody_notices(world):
    ids = group_of(world, "a", "b")
    generation, rebalances = world.group().generation_id, len(world.reasons())
    back = world.join(instance_id="b")
    assert (back.error, back.generation_id) == (ErrorCode.NONE, generation)
    assert back.member_id != ids["b"]
    assert world.sync(back.member_id, generation, instance_id="b").assignment == b"b"
    assert world.heartbeat(ids["a"], generation, instance_id="a") is ErrorCode.NONE
    assert len(world.reasons()) == rebalances


def test_a_returned_static_member_is_known_after_a_restart_of_the_broker(world):
    group_of(world, "a", "b")
    generation = world.group().generation_id
    back = world.join(instance_id="b")
    world.restart()
    assert world.heartbeat(back.member_id, generation, instance_id="b") is ErrorCode.NONE
    assert world.sync(back.member_id, generation, instance_id="b").assignment == b"b"


def test_the_twin_of_a_static_member_is_fenced_everywhere(world):
    ids = group_of(world, "a", "b")
    generation = world.group().generation_id
    world.join(instance_id="b")
    old = ids["b"]
    assert world.heartbeat(old, generation, instance_id="b") is ErrorCode.FENCED_INSTANCE_ID
    assert world.sync(old, generation, instance_id="b").error is ErrorCode.FENCED_INSTANCE_ID
    assert world.commit(1, old, generation, instance_id="b") is ErrorCode.FENCED_INSTANCE_ID
    assert world.join(old, instance_id="b").error is ErrorCode.FENCED_INSTANCE_ID
    assert world.leave(old, instance_id="b") == [ErrorCode.FENCED_INSTANCE_ID]
    assert world.heartbeat(old, generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_twin_that_waits_is_fenced_at_once(world):
    ids = group_of(world, "a", "b")
    waiting = world.join(ids["a"], instance_id="a")
    assert waiting.pending
    newer = world.join(instance_id="a")
    assert waiting.error is ErrorCode.FENCED_INSTANCE_ID
    assert newer.pending
    world.join(ids["b"], instance_id="b")
    assert newer.error is ErrorCode.NONE


def test_a_twin_that_waits_for_its_assignment_is_fenced_and_the_group_gathers_again(world):
    world.join(instance_id="a")
    world.settle()
    ids = world.group().static_members
    b = world.join(instance_id="b")
    world.join(ids["a"], instance_id="a")
    generation = world.group().generation_id
    waiting = world.sync(b.member_id, generation, instance_id="b")
    assert waiting.pending
    newer = world.join(instance_id="b")
    assert waiting.error is ErrorCode.FENCED_INSTANCE_ID
    assert newer.pending
    assert "returned during a rebalance" in world.reasons()[-1]


def test_a_returned_leader_may_skip_the_assignment(world):
    ids = group_of(world, "a", "b")
    assert world.group().leader_id == ids["a"]
    back = world.join(instance_id="a", version=9)
    assert back.skip_assignment is True
    assert back.leader == back.member_id
    assert {m.group_instance_id for m in back.members} == {"a", "b"}


def test_an_older_returned_leader_is_told_that_another_leads(world):
    ids = group_of(world, "a", "b")
    back = world.join(instance_id="a", version=8)
    assert back.skip_assignment is False
    assert back.leader == ids["a"] != back.member_id
    assert back.members == []
    assert world.group().leader_id == back.member_id


def test_a_returned_follower_does_not_skip(world):
    group_of(world, "a", "b")
    back = world.join(instance_id="b", version=9)
    assert (back.skip_assignment, back.members) == (False, [])


def test_a_static_member_that_changes_the_protocol_rebalances(world):
    both, one = (("x", b""), ("y", b"")), (("y", b""),)
    group_of(world, "a", "b", protocols=both)
    assert world.group().protocol_name == "x"
    assert world.join(instance_id="b", protocols=one).pending
    assert "changed the protocol" in world.reasons()[-1]


def test_leaving_is_for_administrators_a_static_member_is_removed_by_its_name(world):
    ids = group_of(world, "a", "b")
    assert world.leave("", instance_id="b") == [ErrorCode.NONE]
    assert list(world.group().static_members) == ["a"]
    assert world.leave("", instance_id="b") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.leave("") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.heartbeat(ids["b"], 1, instance_id="b") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_misses_a_rebalance_keeps_its_place_for_its_session(world):
    ids = group_of(world, "a", "b", rebalance_ms=2000, session_ms=30_000)
    generation = world.group().generation_id
    join_a = world.join(ids["a"], instance_id="a", rebalance_ms=2000, session_ms=30_000)
    world.pass_time(2000)
    assert join_a.generation_id == generation + 1
    assert {m.group_instance_id for m in join_a.members} == {"a", "b"}
    world.sync(ids["a"], generation + 1, {ids["a"]: b"a", ids["b"]: b"b"}, instance_id="a")
    back = world.join(instance_id="b", rebalance_ms=2000, session_ms=30_000)
    assert back.generation_id == generation + 1


def test_a_static_member_that_stays_away_is_removed_after_its_session(world):
    ids = group_of(world, "a", "b", session_ms=10_000)
    generation = world.group().generation_id
    world.pass_time(6000)
    world.heartbeat(ids["a"], generation, instance_id="a")
    world.pass_time(4000)
    assert list(world.group().static_members) == ["a"]
    assert "session expired" in world.reasons()[-1]


def test_when_no_static_member_is_there_the_gathering_waits_for_their_sessions(world):
    ids = group_of(world, "a", "b", rebalance_ms=2000, session_ms=30_000)
    world.join(ids["a"], instance_id="a", rebalance_ms=2000, session_ms=30_000)
    world.join(instance_id="c", rebalance_ms=2000, session_ms=30_000)
    world.leave("", instance_id="c")
    world.leave("", instance_id="a")
    assert list(world.group().static_members) == ["b"]
    world.pass_time(2000)
    assert world.group().state_name == "PreparingRebalance"
    world.pass_time(30_000)
    assert world.group().state_name == "Empty"


def test_an_instance_id_nobody_has_is_unknown(world):
    (a,) = world.stable_group(1)
    generation = world.group().generation_id
    assert world.heartbeat(a, generation, instance_id="ghost") is ErrorCode.UNKNOWN_MEMBER_ID
