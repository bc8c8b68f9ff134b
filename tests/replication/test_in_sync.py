"""Who counts for the high watermark, who may join, who must leave: the rules of in-sync replicas on paper."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.metadata.image import PartitionImage
from klamm.replication.core.partition import PartitionState

ME = 1


def image(leader=ME, leader_epoch=0, partition_epoch=0, replicas=(1, 2, 3), isr=(1, 2, 3)):
    return PartitionImage(
        replicas=tuple(replicas), isr=tuple(isr), leader=leader, leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
    )  # fmt: skip


def leading(end=0, now_ms=0, min_insync=1, lag_ms=100, **fields):
    state = PartitionState(ME, min_insync_replicas=min_insync, lag_ms=lag_ms)
    state.apply(image(**fields), end, now_ms)
    return state


def fetch(state, follower, offset, end, now_ms=0, *, eligible=True):
    return state.on_follower_fetch(follower, offset, end, now_ms, eligible=eligible)


def test_too_few_in_sync_and_nothing_becomes_visible():
    state = leading(min_insync=2, isr=(1,))
    assert state.under_min_isr
    assert state.on_local_append(10) == 0
    state.apply(image(isr=(1, 2), partition_epoch=1))
    fetch(state, 2, 10, 10)
    assert state.high_watermark == 10


def test_more_required_than_there_are_is_all_there_are():
    state = leading(min_insync=3, replicas=(1,), isr=(1,))
    assert state.required_in_sync == 1
    assert state.alone_in_sync
    assert state.on_local_append(5) == 5


def test_a_proposed_follower_holds_the_high_watermark_back_until_it_is_decided():
    state = leading(isr=(1,))
    fetch(state, 2, 0, 0)
    state.propose((1, 2))
    assert state.maximal_isr == (1, 2)
    assert state.on_local_append(10) == 0
    state.withdraw()
    state._join(2, False)
    assert state.on_local_append(10) == 10


def test_a_follower_proposed_to_leave_still_counts():
    state = leading()
    for follower in (2, 3):
        fetch(state, follower, 5, 5)
    state.propose((1, 2))
    fetch(state, 2, 20, 20)
    assert state.on_local_append(20) == 5
    state.apply(image(isr=(1, 2), partition_epoch=1))
    assert state.proposed is None
    assert state.on_local_append(20) == 20


def test_a_busy_leader_that_is_alone_waits_for_who_is_about_to_join():
    state = leading(isr=(1,))
    state.on_local_append(100)
    fetch(state, 2, 100, 100, now_ms=10)
    assert not state.alone_in_sync
    assert state.on_local_append(150) == 100, "else the follower would be behind again before it could join"
    assert fetch(state, 2, 150, 200, now_ms=20) == 150
    assert state.may_join(2)


def test_who_is_about_to_join_and_stays_away_holds_nothing_back_for_long():
    state = leading(isr=(1,), lag_ms=100)
    state.on_local_append(100)
    fetch(state, 2, 100, 100, now_ms=10)
    state.on_local_append(150)
    assert not state.reconsider(150, 100, lambda _f, _e: True)
    assert state.reconsider(150, 111, lambda _f, _e: True)
    assert state.on_local_append(150) == 150


def test_who_is_fenced_is_not_waited_for():
    state = leading(isr=(1,))
    state.on_local_append(100)
    fetch(state, 2, 100, 100, eligible=False)
    assert state.on_local_append(150) == 150
    fetch(state, 2, 150, 150)
    assert state.reconsider(150, 1, lambda follower, _epoch: follower != 2)
    assert state.on_local_append(200) == 200


@pytest.mark.parametrize(("offset", "joins"), [(9, False), (10, True), (15, True)])
def test_who_joins_has_what_is_committed_and_where_the_leader_began(offset, joins):
    state = leading(end=10, isr=(1,))
    state.high_watermark = 8
    fetch(state, 2, offset, 20, eligible=False)
    state.high_watermark = 8
    assert state.may_join(2) is joins


def test_a_new_leader_gives_everybody_in_sync_time():
    state = leading(end=50, now_ms=1000, lag_ms=100)
    assert state.laggards(50, 1100) == []
    assert state.laggards(50, 1101) == [2, 3]


def test_a_follower_that_never_quite_arrives_but_keeps_up_is_in_sync():
    state = leading(lag_ms=100)
    end = 0
    for now_ms in range(0, 1000, 50):
        before, end = end, end + 10
        fetch(state, 3, before, end, now_ms)
        fetch(state, 2, 0, end, now_ms)
    assert state.laggards(end, 1000) == [2]


def test_a_quiet_follower_is_not_behind_the_moment_the_leader_appends():
    """With sessions a follower of a quiet partition says nothing for hours, and was not behind in all that time."""
    state = leading(lag_ms=100)
    for follower in (2, 3):
        fetch(state, follower, 10, 10, now_ms=0)
    assert state.high_watermark == 10
    state.in_sync_until_ms = 1_000_000  # what the leader notes when it appends to a log that all have whole
    assert state.laggards(20, 1_000_050) == []
    assert state.laggards(20, 1_000_101) == [2, 3]


def test_only_one_proposal_at_a_time():
    state = leading(isr=(1,), end=0)
    for follower in (2, 3):
        fetch(state, follower, 0, 0)
    state.propose((1, 2))
    assert not state.may_join(3)
    assert state.laggards(10, 10**9) == []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("fetch"), st.sampled_from((2, 3)), st.integers(0, 100)),
        st.tuples(st.just("propose")),
        st.tuples(st.just("decide"), st.booleans()),
        st.tuples(st.just("shrink"), st.sampled_from((2, 3))),
        st.tuples(st.just("time"), st.integers(1, 80)),
    ),
    max_size=80,
)


@settings(max_examples=300)
@given(STEPS)
def test_whoever_is_in_sync_has_everything_committed(steps):
    """The promise elections rest on, whatever comes in which order."""
    state = leading(isr=(1,), min_insync=2)
    end, now, epoch, waiting = 0, 0, 0, None
    ends = {2: 0, 3: 0}
    for step in steps:
        match step:
            case ("append", count):
                end += count
                state.on_local_append(end)
            case ("fetch", follower, percent):
                ends[follower] = max(ends[follower], end * percent // 100)
                fetch(state, follower, ends[follower], end, now)
            case ("propose",):
                joins = [follower for follower in (2, 3) if state.may_join(follower)]
                if joins:
                    waiting = (*state.isr, joins[0])
                    state.propose(waiting)
            case ("shrink", follower):
                if state.proposed is None and follower in state.isr:
                    waiting = tuple(r for r in state.isr if r != follower)
                    state.propose(waiting)
            case ("decide", yes):
                if waiting is not None:
                    if yes:
                        epoch += 1
                        state.apply(image(isr=waiting, partition_epoch=epoch))
                    else:
                        state.withdraw()
                    waiting = None
                    state.on_local_append(end)
            case ("time", count):
                now += count
                state.reconsider(end, now, lambda _f, _e: True)
                state.on_local_append(end)
        for member in {*state.isr, *(state.proposed or ())} - {1}:
            assert ends[member] >= state.high_watermark
        state.check()
