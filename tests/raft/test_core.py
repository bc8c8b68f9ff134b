"""Elections and replication as conversations: what one member says when others speak to it."""

from random import Random

import pytest

from klamm.model.errors import ErrorCode, KlammError
from klamm.raft.core.events import AppendEntry, Persisted, Received, Resign, Truncate
from klamm.raft.core.log_positions import LogPositions
from klamm.raft.core.messages import (
    Entry,
    LeaderChange,
    OffsetAndEpoch,
    RaftBeginQuorumEpochRequest,
    RaftEndQuorumEpochRequest,
    RaftFetchRequest,
    RaftFetchResponse,
    RaftFetchSnapshotRequest,
    RaftMessage,
    RaftVoteRequest,
    RaftVoteResponse,
)
from klamm.raft.core.quorum import ReplicaKey, VoterSet
from klamm.raft.core.raft import RaftCore
from klamm.raft.core.roles import ElectionState, Leader, Role

ONE, TWO, THREE = ReplicaKey(1), ReplicaKey(2), ReplicaKey(3)


class Member:
    """Member 1 of a quorum, with a clock we move and a notebook of what it says."""

    def __init__(self, *voters, election=ElectionState(), log=None, key=ONE):  # noqa: B008 - frozen
        self.now = 0
        self.core = RaftCore(
            key,
            VoterSet.of_ids(*(voters or (1, 2, 3))),
            log or LogPositions(),
            election=election,
            random=Random(1),
            now_ms=0,
        )
        self.correlation = {}
        self.written = election
        self.messages = []
        self.log = []
        self.collect()

    def collect(self):
        self.messages = []
        while (ready := self.core.ready()) is not None:
            self.written = ready.election or self.written
            self.log += ready.log
            for message in ready.messages:
                self.correlation[message.destination] = message.correlation_id
                self.messages.append((message.destination, message.body))
        self.core.check()
        return self.messages

    def hears(self, source, body):
        response = isinstance(body, RaftVoteResponse | RaftFetchResponse)
        correlation = self.correlation.get(source, 0) if response else 7
        self.core.step(Received(RaftMessage(source, self.core.local.id, correlation, body)), self.now)
        return self.collect()

    def pass_time(self, ms):
        self.now += ms
        self.core.tick(self.now)
        return self.collect()

    def syncs(self):
        self.core.step(Persisted(self.core.log.end_offset), self.now)
        return self.collect()

    def wins(self):
        """Through pre-vote and vote with the help of member 2."""
        self.pass_time(2001)
        self.hears(2, RaftVoteResponse(self.core.epoch, None, granted=True))
        self.hears(2, RaftVoteResponse(self.core.epoch, None, granted=True))
        assert self.core.is_leader
        return self

    @property
    def role(self):
        return self.core.state.role


def follower_with(log, epoch=1):
    member = Member(log=log, election=ElectionState(epoch, 2))
    assert member.role is Role.FOLLOWER
    return member


def log_of(*epochs):
    log = LogPositions()
    for epoch in epochs:
        log.append(log.end_offset, log.end_offset + 1, epoch)
    log.persisted_offset = log.end_offset
    return log


# one voter


def test_a_sole_voter_leads_at_once_and_commits_by_its_own_sync():
    alone = Member(1)
    assert alone.role is Role.LEADER
    assert alone.written == ElectionState(1, 1)
    [first] = alone.log
    assert first.entry.payload == LeaderChange(1, (ONE,), (ONE,))
    entry = alone.core.propose((b"a", b"b"), alone.now)
    assert (entry.base_offset, entry.last_offset, entry.epoch) == (1, 2, 1)
    alone.collect()
    assert alone.core.high_watermark == 0
    alone.syncs()
    assert alone.core.high_watermark == 3


def test_a_sole_voter_takes_a_new_epoch_at_every_start():
    again = Member(1, election=ElectionState(4, 1), log=log_of(1, 4))
    assert (again.role, again.core.epoch) == (Role.LEADER, 5)
    assert again.core.high_watermark == 0
    again.syncs()
    assert again.core.high_watermark == 3


def test_a_lost_quorum_state_never_lets_an_epoch_of_the_log_be_used_again():
    assert Member(1, log=log_of(1, 7)).core.epoch == 8


# elections


def test_a_silent_quorum_is_asked_before_it_is_disturbed():
    member = Member()
    assert member.role is Role.UNATTACHED
    votes = member.pass_time(2001)
    assert member.role is Role.PROSPECTIVE
    assert votes == [(peer, RaftVoteRequest(ONE, 0, OffsetAndEpoch(0, 0), pre_vote=True)) for peer in (2, 3)]
    assert member.written == ElectionState(), "a pre-vote promises nothing"
    votes = member.hears(2, RaftVoteResponse(0, None, granted=True))
    assert (member.role, member.core.epoch) == (Role.CANDIDATE, 1)
    assert member.written == ElectionState(1, None, ONE), "its own vote is on disk before it requests others"
    assert votes == [(peer, RaftVoteRequest(ONE, 1, OffsetAndEpoch(0, 0), pre_vote=False)) for peer in (2, 3)]
    messages = member.hears(3, RaftVoteResponse(1, None, granted=True))
    assert member.role is Role.LEADER
    assert messages == [(peer, RaftBeginQuorumEpochRequest(1, 1)) for peer in (2, 3)]


def test_a_refused_pre_vote_changes_nothing():
    member = Member()
    member.pass_time(2001)
    member.hears(2, RaftVoteResponse(0, None, granted=False))
    member.hears(3, RaftVoteResponse(0, None, granted=False))
    assert (member.role, member.core.epoch) == (Role.UNATTACHED, 0)


def test_one_vote_per_epoch_even_after_a_restart():
    member = Member()
    ask_two, ask_three = (RaftVoteRequest(key, 3, OffsetAndEpoch(0, 0), pre_vote=False) for key in (TWO, THREE))
    assert (2, RaftVoteResponse(3, None, granted=True)) in member.hears(2, ask_two)
    assert member.written == ElectionState(3, None, TWO)
    assert (3, RaftVoteResponse(3, None, granted=False)) in member.hears(3, ask_three)
    restarted = Member(election=member.written)
    assert (3, RaftVoteResponse(3, None, granted=False)) in restarted.hears(3, ask_three)
    assert (2, RaftVoteResponse(3, None, granted=True)) in restarted.hears(2, ask_two), "the same vote may be repeated"


def test_no_vote_for_a_log_that_misses_something():
    member = Member(log=log_of(1, 2, 2))
    for last, granted in [((9, 1), False), ((2, 2), False), ((3, 2), True), ((1, 3), True)]:
        request = RaftVoteRequest(TWO, 3, OffsetAndEpoch(*last), pre_vote=True)
        assert (2, RaftVoteResponse(3, None, granted=granted)) in member.hears(2, request)


def test_a_follower_of_a_live_leader_refuses_even_a_pre_vote():
    member = follower_with(log_of(1))
    ask = RaftVoteRequest(THREE, 1, OffsetAndEpoch(1, 1), pre_vote=True)
    assert (3, RaftVoteResponse(1, 2, granted=True)) in member.hears(3, ask), "it has not heard its leader yet"
    member.hears(2, RaftFetchResponse(1, 2, high_watermark=1))
    assert (3, RaftVoteResponse(1, 2, granted=False)) in member.hears(3, ask)


def test_an_old_epoch_is_fenced():
    member = follower_with(log_of(5), epoch=5)
    messages = member.hears(3, RaftVoteRequest(THREE, 4, OffsetAndEpoch(9, 4), pre_vote=False))
    assert messages == [(3, RaftVoteResponse(5, 2, granted=False, error=ErrorCode.FENCED_LEADER_EPOCH))]


def test_a_leader_that_hears_no_majority_resigns():
    leader = Member().wins()
    messages = leader.pass_time(3001)
    assert leader.role is Role.RESIGNED
    assert messages == [(peer, RaftEndQuorumEpochRequest(1, 1, (2, 3))) for peer in (2, 3)]
    with pytest.raises(KlammError, match="leader of epoch 1") as refused:
        leader.core.propose((b"x",), leader.now)
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    leader.pass_time(2001)
    assert (leader.role, leader.core.epoch) == (Role.UNATTACHED, 2)


def test_a_leader_that_is_fetched_from_stays():
    leader = Member().wins()
    for _ in range(8):
        leader.pass_time(1000)
        leader.hears(3, RaftFetchRequest(THREE, 1, 0, 0))
    assert leader.role is Role.LEADER


def test_a_preferred_successor_stands_at_once_when_its_leader_stops():
    member = follower_with(log_of(1))
    member.hears(2, RaftFetchResponse(1, 2, high_watermark=1))
    member.hears(2, RaftEndQuorumEpochRequest(2, 1, (1, 3)))
    assert member.role is Role.PROSPECTIVE


def test_a_stopping_leader_names_its_best_follower_first():
    leader = Member().wins()
    leader.syncs()
    leader.hears(3, RaftFetchRequest(THREE, 1, 1, 1))
    leader.core.step(Resign(), leader.now)
    assert (2, RaftEndQuorumEpochRequest(1, 1, (3, 2))) in leader.collect()
    leader.pass_time(60_000)
    assert leader.role is Role.RESIGNED, "it stops; it does not stand again"


def test_a_leader_s_old_epoch_is_not_led_again_after_a_restart():
    restarted = Member(election=ElectionState(4, 1))
    assert restarted.role is Role.RESIGNED
    restarted.pass_time(2001)
    assert (restarted.role, restarted.core.epoch) == (Role.UNATTACHED, 5)


# replication


def test_the_high_watermark_needs_a_majority_s_disks():
    leader = Member().wins()
    leader.core.propose((b"a",), leader.now)
    leader.collect()
    leader.hears(2, RaftFetchRequest(TWO, 1, 2, 1))
    assert leader.core.high_watermark == 0, "the leader has not synced"
    leader.syncs()
    assert leader.core.high_watermark == 2


def test_records_of_an_older_epoch_are_committed_only_with_one_of_the_leader_s_own():
    leader = Member(log=log_of(1, 1), election=ElectionState(1))
    leader.wins()
    leader.syncs()
    assert leader.core.epoch == 2
    leader.hears(2, RaftFetchRequest(TWO, 2, 2, 1))
    assert leader.core.high_watermark == 0
    leader.hears(2, RaftFetchRequest(TWO, 2, 3, 2))
    assert leader.core.high_watermark == 3


def test_a_fetch_at_the_end_waits_for_news():
    leader = Member().wins()
    leader.syncs()
    assert (3, RaftFetchResponse(1, 1, high_watermark=1)) in leader.hears(3, RaftFetchRequest(THREE, 1, 1, 1, 0, 500))
    assert leader.hears(3, RaftFetchRequest(THREE, 1, 1, 1, 1, 500)) == []
    leader.core.propose((b"a",), leader.now)
    assert leader.collect() == [(3, RaftFetchResponse(1, 1, high_watermark=1, read_from=1))]
    assert leader.hears(3, RaftFetchRequest(THREE, 1, 2, 1, 1, 500)) == []
    assert leader.syncs() == [(3, RaftFetchResponse(1, 1, high_watermark=2))]
    assert leader.hears(3, RaftFetchRequest(THREE, 1, 2, 1, 2, 500)) == []
    assert (3, RaftFetchResponse(1, 1, high_watermark=2)) in leader.pass_time(500)


def test_a_follower_fetches_on_only_after_its_sync():
    member = follower_with(log_of(1))
    entry = Entry(1, 2, 1, b"raw")
    messages = member.hears(2, RaftFetchResponse(1, 2, high_watermark=2, entries=(entry,)))
    assert member.log == [AppendEntry(entry)]
    assert messages == []
    assert member.core.high_watermark == 2
    [(destination, fetch)] = member.syncs()
    assert (destination, fetch.fetch_offset, fetch.last_fetched_epoch) == (2, 3, 1)


def test_a_diverging_follower_cuts_its_log_and_asks_again():
    member = follower_with(log_of(1, 2, 2), epoch=3)
    messages = member.hears(2, RaftFetchResponse(3, 2, diverging=OffsetAndEpoch(1, 1)))
    assert member.log == [Truncate(1)]
    assert [(body.fetch_offset, body.last_fetched_epoch) for _, body in messages] == [(1, 1)]


def test_a_leader_of_a_higher_epoch_is_followed_and_a_zombie_answers_nothing():
    leader = Member().wins()
    leader.core.propose((b"lost",), leader.now)
    leader.hears(2, RaftBeginQuorumEpochRequest(2, 5))
    assert (leader.role, leader.core.leadership.leader_id, leader.core.epoch) == (Role.FOLLOWER, 2, 5)
    with pytest.raises(KlammError):
        leader.core.propose((b"x",), leader.now)


def test_an_observer_is_served_but_not_counted():
    leader = Member().wins()
    leader.syncs()
    leader.hears(9, RaftFetchRequest(ReplicaKey(9), 1, 1, 1))
    assert leader.core.high_watermark == 0
    assert isinstance(leader.core.state, Leader)
    assert [key.id for key in leader.core.state.observers] == [9]


@pytest.mark.parametrize("epoch", [2, 2**31 - 1])
def test_a_fetch_of_a_later_epoch_does_not_depose_the_leader(epoch):
    """An observer has no vote; with the largest epoch there would be none left for the next election."""
    leader = Member().wins()
    [(_, reply)] = leader.hears(9, RaftFetchRequest(ReplicaKey(9), epoch, 1, 1))
    assert reply.error is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert (leader.role, leader.core.epoch) == (Role.LEADER, 1)
    snapshot = RaftFetchSnapshotRequest(ReplicaKey(9), epoch, OffsetAndEpoch(1, 1), 0, 100)
    [(_, reply)] = leader.hears(9, snapshot)
    assert reply.error is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert (leader.role, leader.core.epoch) == (Role.LEADER, 1)


def test_an_observer_finds_the_leader_by_asking_any_voter():
    observer = Member(1, 2, 3, key=ReplicaKey(9))
    [(voter, fetch)] = observer.messages
    assert voter in {1, 2, 3}
    assert isinstance(fetch, RaftFetchRequest)
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    [(destination, _)] = observer.hears(voter, RaftFetchResponse(4, 2, error=error))
    assert (observer.role, destination) == (Role.FOLLOWER, 2)
    observer.pass_time(60_000)
    assert observer.role is Role.FOLLOWER, "an observer never stands"
