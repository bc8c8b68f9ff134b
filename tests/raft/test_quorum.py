"""Counting voters and replicas, against the slow and obvious way."""

from hypothesis import given
from hypothesis import strategies as st

from klamm.raft.core.quorum import ReplicaKey, Voter, VoterSet, high_watermark, replicated_by_majority

ids = st.sets(st.integers(0, 20), min_size=1, max_size=7)
ends = st.lists(st.integers(-1, 12), min_size=1, max_size=7)


def naive_majority_end(end_offsets):
    """Try every offset: the highest that more than half of the logs have reached."""
    reached = [
        offset for offset in {-1, *end_offsets} if sum(end >= offset for end in end_offsets) * 2 > len(end_offsets)
    ]
    return max(reached)


@given(ends)
def test_a_majority_has_reached_the_offset(end_offsets):
    assert replicated_by_majority(end_offsets) == naive_majority_end(end_offsets)


@given(ends, st.integers(0, 12), st.integers(0, 12))
def test_the_high_watermark_waits_for_the_epoch_and_never_goes_back(end_offsets, epoch_start, current):
    new = high_watermark(end_offsets, epoch_start, current)
    assert new >= current
    if new > current:
        assert new > epoch_start
        assert new == naive_majority_end(end_offsets)
    else:
        assert naive_majority_end(end_offsets) <= max(current, epoch_start)


@given(ids, st.sets(st.integers(0, 20)))
def test_majorities_count_voters_only_and_overlap(voter_ids, some):
    voters = VoterSet.of_ids(*voter_ids)
    assert voters.is_majority(some) == (len(voter_ids & some) > len(voter_ids) / 2)
    assert not (voters.is_majority(some) and voters.is_majority(voter_ids - some))
    assert voters.can_still_reach_majority(some) == (len(voter_ids - some) > len(voter_ids) / 2)


def test_a_voter_with_another_directory_is_another_replica():
    old, new = bytes(15) + b"\x02", bytes(15) + b"\x03"
    voters = VoterSet([Voter(ReplicaKey(1, old))])
    assert voters.is_voter(ReplicaKey(1, old))
    assert voters.is_voter(ReplicaKey(1))
    assert not voters.is_voter(ReplicaKey(1, new))
    assert not voters.is_voter(ReplicaKey(2, old))
