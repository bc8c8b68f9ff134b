"""The table of states: what may follow what, and what one epoch may not contain twice."""

import pytest

from klamm.raft.core.quorum import ReplicaKey, VoterSet
from klamm.raft.core.roles import (
    TRANSITIONS,
    Ballot,
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
    check_transition,
    election_of,
)

VOTERS = VoterSet.of_ids(1, 2, 3)
ME, OTHER = ReplicaKey(1), ReplicaKey(2)


def a(role, epoch):
    return {
        Role.UNATTACHED: lambda: Unattached(epoch, 0),
        Role.PROSPECTIVE: lambda: Prospective(epoch, 0, Ballot(VOTERS)),
        Role.CANDIDATE: lambda: Candidate(epoch, 0, Ballot(VOTERS), ME),
        Role.LEADER: lambda: Leader(epoch, ME, VOTERS, 0, (1, 2), 0, 0, voted=ME),
        Role.FOLLOWER: lambda: Follower(epoch, 0, 2),
        Role.RESIGNED: lambda: Resigned(epoch, 0, 1, {2, 3}, (2, 3)),
    }[role]()


@pytest.mark.parametrize("old", Role)
@pytest.mark.parametrize("new", Role)
def test_only_the_table_s_transitions_happen(old, new):
    if new in TRANSITIONS[old]:
        check_transition(a(old, 1), a(new, 2))
    else:
        with pytest.raises(AssertionError, match="may not become"):
            check_transition(a(old, 1), a(new, 2))


@pytest.mark.parametrize("old", Role)
def test_epochs_never_go_back(old):
    for new in TRANSITIONS[old]:
        with pytest.raises(AssertionError, match="epoch may not decrease"):
            check_transition(a(old, 2), a(new, 1))


def test_an_epoch_has_one_leader_and_one_vote():
    with pytest.raises(AssertionError, match="is led by 2"):
        check_transition(Follower(1, 0, 2), Follower(1, 0, 3))
    with pytest.raises(AssertionError, match="the vote for 2"):
        check_transition(Unattached(1, 0, voted=OTHER), Unattached(1, 0, voted=ReplicaKey(3)))
    with pytest.raises(AssertionError, match="the vote for 2"):
        check_transition(Unattached(1, 0, voted=OTHER), Unattached(1, 0))


def test_who_resigned_waits_for_a_higher_epoch():
    with pytest.raises(AssertionError, match="may act only in a higher one"):
        check_transition(a(Role.RESIGNED, 1), Unattached(1, 0, leader_id=1))


def test_a_ballot_counts_each_voter_once():
    ballot = Ballot(VOTERS)
    ballot.record(1, granted=True)
    ballot.record(1, granted=False)
    ballot.record(9, granted=True)
    assert not ballot.won
    assert not ballot.lost
    assert ballot.unrecorded == [2, 3]
    ballot.record(2, granted=False)
    ballot.record(3, granted=False)
    assert ballot.lost


def test_what_is_written_of_a_state():
    assert election_of(Unattached(4, 0, OTHER)).voted == OTHER
    assert election_of(a(Role.LEADER, 4)).leader_id == 1
    assert election_of(a(Role.LEADER, 4)).voted is None
