"""A partition's state against a plain model: what every in-sync replica has is committed, and stays so."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.metadata.image import PartitionImage
from klamm.model.errors import ErrorCode
from klamm.replication.core.partition import PartitionState

ME = 1


def image(leader=ME, leader_epoch=0, partition_epoch=0, replicas=(1, 2, 3), isr=(1, 2, 3)):
    return PartitionImage(
        replicas=tuple(replicas), isr=tuple(isr), leader=leader, leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
    )  # fmt: skip


def leading(**fields):
    state = PartitionState(ME)
    state.apply(image(**fields))
    return state


def test_alone_in_sync_an_append_is_committed_at_once():
    state = leading(replicas=(1,), isr=(1,))
    assert state.alone_in_sync
    assert state.on_local_append(5) == 5


def test_the_slowest_in_sync_replica_decides():
    state = leading()
    assert state.on_local_append(10) == 0
    assert state.on_follower_fetch(2, 10, 10, 0) == 0
    assert state.on_follower_fetch(3, 4, 10, 0) == 4
    assert state.on_follower_fetch(3, 10, 10, 0) == 10


def test_who_is_out_of_sync_does_not_count():
    state = leading(isr=(1, 2))
    state.on_local_append(10)
    assert state.on_follower_fetch(2, 7, 10, 0) == 7


def test_a_replica_that_was_added_counts_once_it_is_in_sync():
    state = leading(replicas=(1, 2), isr=(1, 2))
    state.on_follower_fetch(2, 10, 10, 0)
    state.apply(image(replicas=(1, 2, 4), isr=(1, 2), partition_epoch=1))
    state.on_follower_fetch(4, 10, 10, 0)
    state.apply(image(replicas=(1, 2, 4), isr=(1, 2, 4), partition_epoch=2))
    assert state.on_follower_fetch(2, 20, 20, 0) == 10
    assert state.on_follower_fetch(4, 15, 20, 0) == 15


def test_old_news_of_the_metadata_log_is_ignored():
    state = leading(partition_epoch=5, leader_epoch=3)
    assert state.apply(image(partition_epoch=4, leader_epoch=2, leader=9)) is False
    assert (state.leader, state.leader_epoch) == (ME, 3)


def test_a_follower_has_no_high_watermark_of_its_own():
    state = PartitionState(ME, high_watermark=7)
    state.apply(image(leader=2))
    assert not state.is_leader
    assert state.on_local_append(100) == 7


def test_a_new_epoch_forgets_what_followers_had():
    state = leading()
    for follower in (2, 3):
        state.on_follower_fetch(follower, 10, 10, 0)
    assert state.high_watermark == 10
    assert state.apply(image(leader_epoch=1, partition_epoch=1)) is True
    assert state.on_local_append(20) == 10
    assert state.on_follower_fetch(2, 20, 20, 0) == 10


@pytest.mark.parametrize(
    ("named", "error"),
    [
        (-1, ErrorCode.NONE),
        (5, ErrorCode.NONE),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_leader_epochs(named, error):
    assert leading(leader_epoch=5).check_leader_epoch(named) == error


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 20)),
        st.tuples(st.just("fetch"), st.integers(2, 4), st.integers(0, 100)),
        st.tuples(st.just("isr"), st.sets(st.integers(2, 4))),
        st.tuples(st.just("lead again")),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(STEPS)
def test_the_high_watermark_is_the_smallest_end_in_sync_and_never_goes_back(steps):
    replicas = (1, 2, 3, 4)
    end, epoch, leader_epoch, isr, expected = 0, 0, 0, {1}, 0
    ends = dict.fromkeys((2, 3, 4), -1)
    state = PartitionState(ME)
    state.apply(image(replicas=replicas, isr=(1,)))
    for step in steps:
        match step:
            case ("append", count):
                end += count
                state.on_local_append(end)
            case ("fetch", follower, percent):
                ends[follower] = end * percent // 100
                state.on_follower_fetch(follower, ends[follower], end, 0)
            case ("isr", followers):
                # A controller lets in only who has caught up with the high watermark.
                isr = {1} | {f for f in followers if ends[f] >= expected}
                epoch += 1
                state.apply(image(replicas=replicas, isr=sorted(isr), partition_epoch=epoch, leader_epoch=leader_epoch))
                state.on_local_append(end)
            case ("lead again",):
                epoch += 1
                leader_epoch += 1
                ends = dict.fromkeys(ends, -1)
                state.apply(image(replicas=replicas, isr=sorted(isr), partition_epoch=epoch, leader_epoch=leader_epoch))
        before = expected
        if step != ("lead again",):  # then nothing changes until the next append or fetch
            expected = max(expected, min([end, *(ends[f] for f in isr - {1})]))
        assert state.high_watermark == expected
        assert state.high_watermark >= before
        assert state.high_watermark <= end
        state.check()
