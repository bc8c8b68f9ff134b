"""Groups as administrators see them."""

import pytest

from klamm.model.errors import ErrorCode

from .groups_world import Answer, World


@pytest.fixture
def world():
    return World()


def listed(world, states=(), types=()):
    answer = Answer()
    world.run(world.shard.list_groups(states, types, answer))
    return {g.group_id: (g.protocol_type, g.group_state, g.group_type) for g in answer.value}


def described(world, group_id, version=6):
    answer = Answer()
    world.run(world.shard.describe([group_id], version, answer))
    return answer.value[0]


def deleted(world, *group_ids):
    answer = Answer()
    world.run(world.shard.delete_groups(group_ids, answer))
    return [ErrorCode(result.error_code) for result in answer.value]


def test_groups_are_listed_by_state_and_type(world):
    world.stable_group(1)
    world.commit(1, group_id="simple")
    assert listed(world) == {"g": ("consumer", "Stable", "classic"), "simple": ("", "Empty", "classic")}
    assert list(listed(world, ["stable"])) == ["g"]
    assert list(listed(world, ["Empty", "Dead"])) == ["simple"]
    assert listed(world, (), ["consumer"]) == {}
    assert len(listed(world, (), ["Classic"])) == 2


def test_a_stable_group_shows_what_its_members_said_and_got(world):
    a, b = world.stable_group(2)
    group = described(world, "g")
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    assert {m.member_id: (m.member_metadata, m.member_assignment) for m in group.members} == {
        a: (b"range-metadata", b"0"),
        b: (b"range-metadata", b"1"),
    }
    assert (group.members[0].client_id, group.members[0].client_host) == ("c", "/127.0.0.1")


def test_a_group_in_a_rebalance_shows_its_members_without_their_words(world):
    a, _ = world.stable_group(2)
    world.join(a)
    group = described(world, "g")
    assert (group.group_state, group.protocol_data) == ("PreparingRebalance", "")
    assert {m.member_metadata for m in group.members} == {b""}


def test_a_group_nobody_knows_is_dead_or_from_v6_not_found(world):
    assert described(world, "none", 5).group_state == "Dead"
    assert described(world, "none", 5).error_code == ErrorCode.NONE
    assert described(world, "none", 6).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "none" in described(world, "none", 6).error_message


def test_only_groups_without_members_are_deleted_and_their_offsets_with_them(world):
    (a,) = world.stable_group(1)
    world.commit(5, a, world.group().generation_id)
    assert deleted(world, "g", "none") == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    world.leave(a)
    world.commit_in_transaction(9, producer_id=3, partition=4)
    assert deleted(world, "g") == [ErrorCode.NONE]
    assert world.shard.groups == {}
    assert world.offset() == -1
    world.end_transaction(3, committed=True)
    assert world.offset(partition=4) == -1
    world.restart()
    assert world.shard.groups == {}


def test_a_deleted_group_can_be_founded_again(world):
    (a,) = world.stable_group(1)
    world.leave(a)
    deleted(world, "g")
    _, join = world.member()
    world.settle()
    assert join.generation_id == 1
