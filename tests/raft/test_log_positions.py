"""Where two logs diverge, computed from epochs alone, against comparing them entry by entry."""

from hypothesis import given
from hypothesis import strategies as st

from klamm.raft.core.log_positions import Diverging, LogPositions, NeedsSnapshot, Valid
from klamm.raft.core.messages import OffsetAndEpoch

START = OffsetAndEpoch(0, 0)


def positions(epochs_of_offsets, base=START):
    """A log of one-record batches; the list gives the epoch of every offset."""
    log = LogPositions(base)
    for epoch in epochs_of_offsets:
        log.append(log.end_offset, log.end_offset + 1, epoch)
    return log


@st.composite
def two_histories(draw):
    """A leader's log and a follower's that share a prefix: in one epoch one leader wrote each offset once."""
    shared = sorted(draw(st.lists(st.integers(1, 5), max_size=8)))
    floor = shared[-1] if shared else 1
    odd = sorted(draw(st.lists(st.integers(floor // 2 + 1, 6).map(lambda n: 2 * n + 1), max_size=6)))
    even = sorted(draw(st.lists(st.integers(floor // 2 + 1, 6).map(lambda n: 2 * n), max_size=6)))
    return shared + odd, shared + even


@given(two_histories())
def test_truncating_by_epochs_ends_at_the_common_prefix(histories):
    leader_epochs, follower_epochs = histories
    leader, follower = positions(leader_epochs), positions(follower_epochs)
    for _ in range(30):
        verdict = leader.validate(follower.end_offset, follower.last_epoch)
        if isinstance(verdict, Valid):
            break
        assert isinstance(verdict, Diverging)
        before = follower.end_offset
        follower.truncate_to(follower.truncation_point(verdict.end))
        assert follower.end_offset < before
    else:
        raise AssertionError("never agreed")
    kept = follower.end_offset
    common = 0
    for ours, theirs in zip(leader_epochs, follower_epochs, strict=False):
        if ours != theirs:
            break
        common += 1
    assert kept == common


@given(st.lists(st.integers(1, 4), min_size=1, max_size=10).map(sorted), st.data())
def test_the_start_moves_without_changing_what_is_after_it(epochs_of_offsets, data):
    log = positions(epochs_of_offsets)
    start = data.draw(st.integers(1, len(epochs_of_offsets)))
    log.advance_start(OffsetAndEpoch(start, epochs_of_offsets[start - 1]))
    assert log.start_offset == start
    assert log.last_epoch == epochs_of_offsets[-1]
    for offset in range(start, len(epochs_of_offsets)):
        assert log.epoch_at(offset) == epochs_of_offsets[offset]
    assert log.epoch_at(start - 1) == epochs_of_offsets[start - 1]


def test_a_follower_behind_the_start_needs_the_newest_snapshot():
    log = positions([3, 3, 4], base=OffsetAndEpoch(10, 2))
    log.snapshot_id = OffsetAndEpoch(12, 3)
    assert log.validate(5, 2) == NeedsSnapshot(OffsetAndEpoch(12, 3))
    assert log.validate(0, 0) == NeedsSnapshot(OffsetAndEpoch(12, 3))
    assert log.validate(10, 1) == NeedsSnapshot(OffsetAndEpoch(12, 3))
    assert log.validate(10, 2) == Valid()
    assert log.validate(11, 2) == Diverging(OffsetAndEpoch(10, 2))
    assert log.validate(13, 4) == Valid()
