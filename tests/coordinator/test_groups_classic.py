"""Classic groups: joins, waiting members, leaders, and members that are removed."""

import pytest

from klamm.coordinator.groups import GroupConfig
from klamm.model.errors import ErrorCode

from .groups_world import RANGE, World

BOTH = (("range", b"r"), ("roundrobin", b"rr"))


@pytest.fixture
def world():
    return World()


def test_the_first_member_gets_an_id_then_a_generation_then_an_assignment(world):
    first = world.join()
    assert first.error is ErrorCode.MEMBER_ID_REQUIRED
    assert first.member_id == "c-1"
    join = world.join(first.member_id)
    assert join.pending
    world.settle()
    assert (join.generation_id, join.leader, join.protocol_name, join.protocol_type) == (1, "c-1", "range", "consumer")
    assert [(m.member_id, m.metadata) for m in join.members] == [("c-1", b"range-metadata")]
    sync = world.sync("c-1", 1, {"c-1": b"everything"})
    assert (sync.error, sync.assignment, sync.protocol_name) == (ErrorCode.NONE, b"everything", "range")
    assert world.group().state_name == "Stable"
    assert world.heartbeat("c-1", 1) is ErrorCode.NONE


def test_before_v4_a_member_need_not_come_back_with_its_id(world):
    join = world.join(version=3)
    world.settle()
    assert (join.generation_id, join.member_id) == (1, "c-1")


def test_an_id_that_is_never_used_is_forgotten_after_its_session(world):
    first = world.join(session_ms=6000)
    assert world.group().pending_members == {first.member_id}
    world.pass_time(6000)
    assert world.group().pending_members == set()
    assert world.join(first.member_id).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_only_the_leader_hears_who_the_members_are(world):
    a, join_a = world.member()
    b, join_b = world.member()
    world.settle()
    assert {m.member_id for m in join_a.members} == {a, b}
    assert join_b.members == []
    assert join_b.leader == a


def test_followers_wait_for_the_leaders_assignment(world):
    a, _ = world.member()
    b, _ = world.member()
    world.settle()
    waiting = world.sync(b, 1)
    assert waiting.pending
    world.sync(a, 1, {a: b"0", b: b"1"})
    assert waiting.assignment == b"1"
    assert world.sync(b, 1).assignment == b"1", "a repeated sync gets the same"


def test_a_member_the_leader_forgot_gets_an_empty_assignment(world):
    a, _ = world.member()
    b, _ = world.member()
    world.settle()
    world.sync(a, 1, {a: b"0"})
    assert world.sync(b, 1).assignment == b""


def test_a_newcomer_calls_everybody_together(world):
    a, b = world.stable_group(2)
    generation = world.group().generation_id
    c, join_c = world.member()
    assert join_c.pending
    assert world.heartbeat(a, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    join_a, join_b = world.join(a), world.join(b)
    assert {join.generation_id for join in (join_a, join_b, join_c)} == {generation + 1}
    assert world.reasons()[-1] == f"member {c} joined"


def test_who_does_not_rejoin_in_time_is_out(world):
    a, b = world.stable_group(2, rebalance_ms=5000, session_ms=30_000)
    generation = world.group().generation_id
    join_a = world.join(a, rebalance_ms=5000, session_ms=30_000)
    assert join_a.pending
    world.pass_time(4999)
    assert join_a.pending
    world.pass_time(1)
    assert join_a.generation_id == generation + 1
    assert world.heartbeat(b, generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_silence_for_a_session_ends_a_membership(world):
    a, b = world.stable_group(2)
    generation = world.group().generation_id
    world.pass_time(6000)
    assert world.heartbeat(a, generation) is ErrorCode.NONE
    world.pass_time(4000)
    assert world.heartbeat(a, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.reasons()[-1] == f"member {b} removed: session expired after 10000 ms"
    assert world.join(a).generation_id == generation + 1


def test_commits_are_signs_of_life_too(world):
    (a,) = world.stable_group(1)
    generation = world.group().generation_id
    for i in range(4):
        world.pass_time(6000)
        assert world.commit(i, a, generation) is ErrorCode.NONE
    assert world.group().state_name == "Stable"


def test_who_waits_in_a_join_need_not_send_heartbeats(world):
    a, b = world.stable_group(2, session_ms=10_000)
    join_a = world.join(a)
    for _ in range(5):
        world.pass_time(6000)
        world.heartbeat(b, world.group().generation_id)
    assert join_a.pending
    assert a in world.group().members


def test_a_new_member_that_hangs_in_its_first_join_is_given_up_after_five_minutes():
    world = World(GroupConfig(initial_rebalance_delay_ms=0, max_session_timeout_ms=3_600_000))
    _a, _b = world.stable_group(2, session_ms=3_600_000, rebalance_ms=3_600_000)
    c, join_c = world.member(session_ms=3_600_000, rebalance_ms=3_600_000)
    world.pass_time(299_999)
    assert join_c.pending
    world.pass_time(1)
    assert join_c.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert c not in world.group().members


def test_leaving_rebalances_those_who_stay(world):
    a, b = world.stable_group(2)
    generation = world.group().generation_id
    assert world.leave(b) == [ErrorCode.NONE]
    assert world.heartbeat(a, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.reasons()[-1] == f"members left: {b}"
    assert world.leave(b, "unknown") == [ErrorCode.UNKNOWN_MEMBER_ID] * 2


def test_when_all_have_left_the_group_is_empty_and_its_generation_counts_on(world):
    a, b = world.stable_group(2)
    generation = world.group().generation_id
    world.leave(a, b)
    assert world.group().state_name == "Empty"
    assert world.group().generation_id == generation + 1
    assert world.sync(a, generation).error is ErrorCode.UNKNOWN_MEMBER_ID
    world.restart()
    assert world.group().generation_id == generation + 1
    _, join = world.member()
    world.settle()
    assert join.generation_id == generation + 2


def test_a_pending_member_may_leave(world):
    first = world.join()
    assert world.leave(first.member_id) == [ErrorCode.NONE]
    assert world.join(first.member_id).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_leaving_while_everybody_waits_for_the_leaver_completes_the_join(world):
    a, b = world.stable_group(2)
    join_a = world.join(a)
    assert join_a.pending
    world.leave(b)
    assert join_a.error is ErrorCode.NONE
    assert [m.member_id for m in join_a.members] == [a]


def test_wrong_generation_and_unknown_members_are_told_so(world):
    (a,) = world.stable_group(1)
    generation = world.group().generation_id
    assert world.heartbeat(a, generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat("x", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(a, generation, group_id="none") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.sync(a, generation + 1).error is ErrorCode.ILLEGAL_GENERATION
    assert world.sync("x", generation).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join("x").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join("x", group_id="none").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_sync_checks_what_the_member_believes_about_the_protocol(world):
    (a,) = world.stable_group(1)
    generation = world.group().generation_id
    wrong = world.sync(a, generation, protocol_type="consumer", protocol_name="sticky")
    assert wrong.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.sync(a, generation, protocol_type="consumer", protocol_name="range").error is ErrorCode.NONE


def test_session_timeouts_have_limits(world):
    assert world.join(session_ms=5999).error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert world.join(session_ms=1_800_001).error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert world.shard.groups == {}


# Protocols


def test_the_protocol_most_members_like_best_wins():
    world = World(GroupConfig(initial_rebalance_delay_ms=1000))
    answers = [
        world.join(version=3, protocols=(("a", b"1"), ("b", b"1"))),
        world.join(version=3, protocols=(("b", b"2"), ("a", b"2"))),
        world.join(version=3, protocols=(("b", b"3"), ("a", b"3"), ("c", b"3"))),
    ]
    world.pass_time(3000)
    assert {answer.protocol_name for answer in answers} == {"b"}
    assert [m.metadata for m in answers[0].members] == [b"1", b"2", b"3"]


def test_of_two_protocols_liked_equally_the_one_kafka_takes_wins():
    world = World(GroupConfig(initial_rebalance_delay_ms=1000))
    answers = [
        world.join(version=3, protocols=(("b", b""), ("a", b""))),
        world.join(version=3, protocols=(("a", b""), ("b", b""))),
    ]
    world.pass_time(3000)
    assert {answer.protocol_name for answer in answers} == {"a"}


def test_members_need_a_protocol_in_common(world):
    world.stable_group(1, protocols=BOTH)
    assert world.join(protocols=(("sticky", b""),)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join(protocols=(("roundrobin", b""),)).error is ErrorCode.MEMBER_ID_REQUIRED
    assert world.join(protocol_type="connect").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_group_needs_a_protocol_type_and_a_protocol(world):
    assert world.join(protocols=()).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join(protocol_type="").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.shard.groups == {}


def test_groups_of_connect_workers_are_served_without_a_look_inside(world):
    a, join = world.member(protocol_type="connect", protocols=(("sessioned", b"\x01worker"),))
    world.settle()
    assert (join.protocol_type, join.protocol_name) == ("connect", "sessioned")
    assert world.sync(a, 1, {a: b"tasks"}).assignment == b"tasks"


def test_an_empty_group_may_change_its_protocol_type(world):
    (a,) = world.stable_group(1)
    world.leave(a)
    _b, join = world.member(protocol_type="connect", protocols=(("compatible", b""),))
    world.settle()
    assert join.protocol_type == "connect"


# Rejoining


def test_a_lost_answer_is_given_again_while_the_assignment_is_awaited(world):
    a, _ = world.member()
    b, _ = world.member()
    world.settle()
    again = world.join(a)
    assert (again.generation_id, len(again.members)) == (1, 2)
    assert world.join(b).members == []
    assert world.group().generation_id == 1


def test_a_follower_that_joins_again_unchanged_disturbs_nobody(world):
    _a, b = world.stable_group(2)
    generation = world.group().generation_id
    assert world.join(b).generation_id == generation
    assert world.group().state_name == "Stable"


def test_a_follower_with_another_subscription_rebalances(world):
    a, b = world.stable_group(2)
    assert world.join(b, protocols=(("range", b"other"),)).pending
    assert world.heartbeat(a, world.group().generation_id) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.reasons()[-1] == f"member {b} rejoined with new metadata"


def test_the_leader_may_always_rebalance_for_it_watches_the_partitions(world):
    a, b = world.stable_group(2)
    assert world.join(a, reason="cached metadata has changed").pending
    assert world.reasons()[-1] == f"member {a} rejoined (leader) (cached metadata has changed)"
    assert world.join(b).error is ErrorCode.NONE


def test_a_join_asked_twice_is_answered_twice(world):
    a, b = world.stable_group(2)
    first, second = world.join(a), world.join(a)
    assert first.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert second.pending
    world.join(b)
    assert second.error is ErrorCode.NONE


def test_a_rebalance_during_the_sync_sends_the_waiting_back(world):
    a, _ = world.member()
    b, _ = world.member()
    world.settle()
    waiting = world.sync(b, 1)
    _, join_c = world.member()
    assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.sync(a, 1, {a: b"0"}).error is ErrorCode.REBALANCE_IN_PROGRESS
    world.join(a)
    world.join(b)
    assert join_c.generation_id == 2


def test_a_leader_that_never_assigns_is_replaced(world):
    a, _ = world.member(rebalance_ms=8000, session_ms=60_000)
    b, _ = world.member(rebalance_ms=8000, session_ms=60_000)
    world.settle()
    waiting = world.sync(b, 1)
    world.pass_time(8000)
    assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.reasons()[-1] == f"members removed: no SyncGroup within the rebalance timeout: {a}"
    join_b = world.join(b, rebalance_ms=8000, session_ms=60_000)
    assert (join_b.leader, join_b.generation_id) == (b, 2)


def test_a_member_that_never_asks_for_its_assignment_is_out(world):
    a, _ = world.member(rebalance_ms=8000, session_ms=60_000)
    b, _ = world.member(rebalance_ms=8000, session_ms=60_000)
    world.settle()
    world.sync(a, 1, {a: b"0", b: b"1"})
    world.pass_time(8000)
    assert b not in world.group().members
    assert world.heartbeat(a, 1) is ErrorCode.REBALANCE_IN_PROGRESS


# The initial delay


def test_a_new_group_waits_for_more_members_and_longer_when_some_come():
    world = World(GroupConfig(initial_rebalance_delay_ms=3000))
    _, join_a = world.member(rebalance_ms=10_000)
    world.pass_time(2000)
    _, join_b = world.member(rebalance_ms=10_000)
    world.pass_time(1000)
    assert join_a.pending, "a member joined, so the initial delay is extended"
    world.pass_time(3000)
    assert join_a.generation_id == join_b.generation_id == 1
    assert len(join_a.members) == 2


def test_the_wait_is_never_longer_than_the_rebalance_timeout():
    world = World(GroupConfig(initial_rebalance_delay_ms=3000))
    _, join = world.member(rebalance_ms=10_000)
    for _ in range(9):
        assert join.pending
        world.pass_time(1000)
        world.member(rebalance_ms=10_000)
    world.pass_time(1000)
    assert join.generation_id == 1
    assert len(join.members) == 10


def test_without_more_members_the_wait_is_the_delay():
    world = World(GroupConfig(initial_rebalance_delay_ms=3000))
    _, join = world.member()
    world.pass_time(2999)
    assert join.pending
    world.pass_time(1)
    assert join.generation_id == 1


# Size


def test_a_full_group_takes_nobody_more():
    world = World(GroupConfig(initial_rebalance_delay_ms=1000, max_size=2))
    _a, join_a = world.member()
    _b, join_b = world.member()
    full = world.join()
    assert full.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    world.pass_time(5000)
    assert {join_a.generation_id, join_b.generation_id} == {1}
    assert world.join().error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_group_that_became_too_large_rebalances_when_it_is_loaded():
    world = World(GroupConfig(initial_rebalance_delay_ms=0))
    a, b, c = world.stable_group(3)
    world.config = GroupConfig(initial_rebalance_delay_ms=0, max_size=2)
    world.restart()
    assert world.group().state_name == "PreparingRebalance"
    joins = [world.join(a), world.join(b), world.join(c)]
    assert joins[2].error is ErrorCode.GROUP_MAX_SIZE_REACHED
    world.pass_time(60_000)
    assert [join.generation_id for join in joins[:2]] == [world.group().generation_id] * 2


# Restarts


def test_a_stable_group_survives_a_restart_without_a_rebalance(world):
    a, b = world.stable_group(2)
    generation = world.group().generation_id
    world.restart()
    assert world.heartbeat(a, generation) is ErrorCode.NONE
    assert world.sync(b, generation).assignment == b"1"
    assert world.group().leader_id == a
    assert world.commit(7, b, generation) is ErrorCode.NONE


def test_members_that_do_not_come_back_after_a_restart_are_out(world):
    a, _b = world.stable_group(2)
    generation = world.group().generation_id
    world.restart()
    world.pass_time(9999)
    assert world.heartbeat(a, generation) is ErrorCode.NONE
    world.pass_time(1)
    assert list(world.group().members) == [a]


def test_a_restart_in_the_middle_of_a_rebalance_goes_back_to_the_last_generation(world):
    a, b = world.stable_group(2)
    generation = world.group().generation_id
    c, join_c = world.member()
    _join_a, _join_b = world.join(a), world.join(b)
    assert join_c.generation_id == generation + 1
    world.restart()
    assert world.group().generation_id == generation
    assert world.heartbeat(a, generation + 1) is ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat(c, generation + 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(b, generation) is ErrorCode.NONE


def test_whoever_waits_when_the_shard_moves_is_sent_away(world):
    a, _b = world.stable_group(2)
    join_a = world.join(a)
    world.restart()
    assert join_a.error is ErrorCode.NOT_COORDINATOR


def test_a_hundred_members_settle_in_one_generation_when_they_come_together():
    world = World(GroupConfig(initial_rebalance_delay_ms=3000))
    joins = [world.member(protocols=RANGE) for _ in range(100)]
    world.pass_time(6000)
    assert {join.generation_id for _, join in joins} == {1}
    assert len(joins[0][1].members) == 100


def test_more_than_the_offsets_topic_takes_is_refused_and_the_group_gathers_again():
    world = World(GroupConfig(initial_rebalance_delay_ms=0, record_bytes_max=500))
    a, _ = world.member()
    b, _ = world.member()
    world.settle()
    waiting = world.sync(b, 1)
    leader = world.sync(a, 1, {a: b"x" * 600})
    assert leader.error is waiting.error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "more than the offsets topic takes" in world.reasons()[-1]
    again, _ = world.join(a), world.join(b)
    assert world.sync(a, again.generation_id, {a: b"small"}).assignment == b"small"
