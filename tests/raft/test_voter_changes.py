"""Voters come and go one at a time; each refusal names what stands against it (KIP-853)."""

from random import Random

import pytest

from klamm.model.errors import ErrorCode, KlammError
from klamm.raft.core.events import AppendEntry, PeerUnreachable, Persisted, Received
from klamm.raft.core.log_positions import LogPositions
from klamm.raft.core.messages import (
    Entry,
    LeaderChange,
    OffsetAndEpoch,
    RaftFetchRequest,
    RaftFetchResponse,
    RaftMessage,
    RaftVoteRequest,
    RaftVoteResponse,
)
from klamm.raft.core.quorum import ReplicaKey, Voter, VoterSet
from klamm.raft.core.raft import RaftCore
from klamm.raft.core.roles import ElectionState, Role
from klamm.raft.core.voter_changes import UnknownVoterDetails
from klamm.raft.core.voter_history import BEFORE_LOG, VoterChange, VoterConfiguration, VoterHistory

ONE, TWO, THREE = (ReplicaKey(i, bytes(15) + bytes([i])) for i in (1, 2, 3))


def voter_set(*keys):
    return VoterSet(Voter(key, f"host{key.id}", 9093) for key in keys)


class Member:
    """One replica of a quorum that may change, its messages answered by hand."""

    def __init__(
        self,
        *voters,
        key=ONE,
        log=None,
        election=ElectionState(),  # noqa: B008 - frozen
        bootstrap=(),
        given=None,
    ):
        self.now = 0
        self.core = RaftCore(
            key,
            VoterSet(()),
            log or LogPositions(),
            election=election,
            random=Random(1),
            now_ms=0,
            voter_history=VoterHistory(given or VoterConfiguration(voter_set(*voters), 1 if voters else 0)),
            bootstrap=bootstrap,
        )
        self.appended = []
        self.outbox = []
        self.collect()

    def collect(self):
        self.outbox = []
        while (ready := self.core.ready()) is not None:
            self.appended += [operation.entry.payload for operation in ready.log if isinstance(operation, AppendEntry)]
            self.outbox += ready.messages
        self.core.check()
        return self.outbox

    def hears(self, source, body, correlation_id=7):
        self.core.step(Received(RaftMessage(source, self.core.local.id, correlation_id, body)), self.now)
        return self.collect()

    def answered(self, body, by=None):
        requested = next(message for message in self.outbox if by in (None, message.destination))
        return self.hears(requested.destination, body, requested.correlation_id)

    def pass_time(self, ms):
        self.now += ms
        self.core.tick(self.now)
        return self.collect()

    def syncs(self):
        self.core.step(Persisted(self.core.log.end_offset), self.now)
        return self.collect()

    def fetched_by(self, key, offset=None):
        core = self.core
        end = core.log.end_offset if offset is None else offset
        epoch = core.log.epoch_at(end - 1) if end else 0
        return self.hears(key.id, RaftFetchRequest(key, core.epoch, end, epoch, core.high_watermark, 0))


def leader_alone():
    member = Member(ONE)
    member.syncs()
    return member


def refusal(change):
    with pytest.raises(KlammError) as caught:
        change()
    return caught.value.code


def test_the_first_leader_writes_down_the_voters_it_was_formatted_with():
    leader = leader_alone()
    assert leader.appended == [LeaderChange(1, (ONE,), (ONE,)), VoterChange(voter_set(ONE), 1)]
    assert leader.core.voter_history.offset == 1


def test_an_observer_that_has_caught_up_becomes_a_voter_and_counts_at_once():
    leader = leader_alone()
    leader.fetched_by(TWO)
    leader.core.add_voter(Voter(TWO, "host2", 9093), leader.now)
    leader.syncs()
    assert leader.core.voters.ids == (1, 2)
    committed = leader.core.high_watermark
    assert committed == leader.core.voter_history.offset, "the change itself needs both"
    leader.fetched_by(TWO)
    assert leader.core.high_watermark == committed + 1


def test_who_has_not_caught_up_does_not_vote():
    leader = leader_alone()
    assert refusal(lambda: leader.core.add_voter(Voter(TWO), 0)) is ErrorCode.REQUEST_TIMED_OUT
    leader.fetched_by(TWO, 0)
    assert refusal(lambda: leader.core.add_voter(Voter(TWO), 0)) is ErrorCode.REQUEST_TIMED_OUT


def test_one_change_at_a_time():
    leader = leader_alone()
    leader.fetched_by(TWO)
    leader.fetched_by(THREE)
    leader.core.add_voter(Voter(TWO), leader.now)
    leader.syncs()
    assert refusal(lambda: leader.core.add_voter(Voter(THREE), leader.now)) is ErrorCode.REQUEST_TIMED_OUT
    leader.fetched_by(TWO)
    leader.core.add_voter(Voter(THREE), leader.now)
    assert leader.core.voters.ids == (1, 2, 3)


def test_a_leader_that_has_committed_nothing_in_its_epoch_changes_nothing():
    """The hole of the first single-server changes: two leaders could otherwise decide by majorities that never met."""
    leader = Member(ONE)
    assert leader.core.is_leader
    assert refusal(lambda: leader.core.remove_voter(TWO, 0)) is ErrorCode.REQUEST_TIMED_OUT


def test_refusals_name_what_stands_against_a_change():
    leader = leader_alone()
    assert refusal(lambda: leader.core.add_voter(Voter(ONE), 0)) is ErrorCode.DUPLICATE_VOTER
    assert refusal(lambda: leader.core.remove_voter(TWO, 0)) is ErrorCode.VOTER_NOT_FOUND
    assert refusal(lambda: leader.core.remove_voter(ReplicaKey(1), 0)) is ErrorCode.VOTER_NOT_FOUND
    assert refusal(lambda: leader.core.remove_voter(ONE, 0)) is ErrorCode.INVALID_REQUEST
    follower = Member(ONE, TWO, key=THREE)
    assert refusal(lambda: follower.core.add_voter(Voter(THREE), 0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    fixed = RaftCore(
        ReplicaKey(1), VoterSet.of_ids(1), LogPositions(), election=ElectionState(), random=Random(1), now_ms=0
    )
    assert refusal(lambda: fixed.add_voter(Voter(TWO), 0)) is ErrorCode.UNSUPPORTED_VERSION


def test_a_voter_that_moved_is_written_down_once():
    leader = leader_alone()
    moved = Voter(ONE, "elsewhere", 9094)
    assert leader.core.update_voter(moved, 0) is not None
    leader.syncs()
    assert leader.core.voters.get(1) == moved
    assert leader.core.update_voter(moved, 0) is None


def test_a_leader_that_removes_itself_leads_until_that_is_committed():
    leader = leader_alone()
    leader.fetched_by(TWO)
    leader.core.add_voter(Voter(TWO), leader.now)
    leader.syncs()
    leader.fetched_by(TWO)
    leader.core.remove_voter(ONE, leader.now)
    leader.syncs()
    assert leader.core.is_leader, "its own sync does not count any more"
    leader.fetched_by(TWO)
    assert leader.core.state.role is Role.RESIGNED


def test_a_change_that_is_cut_off_never_was():
    follower = Member(ONE, TWO, key=TWO, election=ElectionState(1, 1))
    batches = (
        Entry(0, 0, 1, b"", voter_change=None),
        Entry(1, 1, 1, b"", voter_change=VoterChange(voter_set(ONE, TWO, THREE))),
    )
    follower.answered(RaftFetchResponse(1, 1, high_watermark=0, entries=batches))
    assert follower.core.voters.ids == (1, 2, 3)
    follower.syncs()
    follower.answered(RaftFetchResponse(1, 1, high_watermark=0, diverging=OffsetAndEpoch(1, 1)))
    assert follower.core.voters.ids == (1, 2)


def test_who_is_being_removed_still_stands_until_it_is_committed():
    log = LogPositions()
    log.append(0, 1, 1)
    log.append(1, 2, 1)
    log.persisted_offset = 2
    member = Member(ONE, TWO, log=log, election=ElectionState(1, 2))
    member.core.voter_history.append(1, VoterChange(voter_set(TWO)))
    assert not member.core.is_voter
    assert member.core.replica.is_electable
    member.core.replica.high_watermark = 2
    assert not member.core.replica.is_electable


# fixed voters become ones that can change

FIXED = [Voter(key, f"host{key.id}", 9093) for key in (ONE, TWO, THREE)]
"""What static voters report of themselves."""


def fixed_quorum(*, key=ONE, election=ElectionState(), log=None):  # noqa: B008 - frozen
    """A member of three voters whose directories no file names."""
    member = Member(key=key, election=election, log=log, given=VoterConfiguration(VoterSet.of_ids(1, 2, 3)))
    assert not member.core.voter_history.latest.dynamic
    return member


def fixed_leader():
    leader = fixed_quorum()
    leader.pass_time(2_000)
    for pre_vote in (True, False):
        assert leader.outbox[0].body.pre_vote is pre_vote
        leader.answered(RaftVoteResponse(leader.core.epoch, None, granted=True))
    assert leader.core.is_leader
    leader.syncs()
    leader.fetched_by(TWO)
    return leader


def introduce(leader, *voters):
    for voter in voters:
        assert leader.core.update_voter(voter, leader.now) is None


def test_fixed_voters_become_part_of_the_log_in_one_batch():
    leader = fixed_leader()
    introduce(leader, *FIXED[1:])
    entry = leader.core.raise_kraft_version(1, FIXED[0], leader.now)
    assert entry.payload == VoterChange(VoterSet(FIXED), 1)
    assert (entry.last_offset - entry.base_offset, leader.core.voters) == (1, VoterSet(FIXED))
    assert refusal(lambda: leader.core.remove_voter(THREE, leader.now)) is ErrorCode.REQUEST_TIMED_OUT
    assert refusal(lambda: leader.core.raise_kraft_version(1, FIXED[0], leader.now)) is ErrorCode.REQUEST_TIMED_OUT, (
        "a repeated request waits for the same commit"
    )
    leader.syncs()
    leader.fetched_by(TWO)
    assert leader.core.raise_kraft_version(1, FIXED[0], leader.now) is None
    leader.core.remove_voter(THREE, leader.now)
    assert leader.core.voters.ids == (1, 2)


def test_a_voter_that_nobody_knows_keeps_the_voters_fixed():
    leader = fixed_leader()
    introduce(leader, FIXED[1])
    with pytest.raises(UnknownVoterDetails, match="voter 3 is not known") as caught:
        leader.core.raise_kraft_version(1, FIXED[0], leader.now)
    assert caught.value.code is ErrorCode.INVALID_UPDATE_VERSION
    introduce(leader, Voter(ReplicaKey(3), "host3", 9093))
    assert refusal(lambda: leader.core.raise_kraft_version(1, FIXED[0], leader.now)), "a directory without a name"
    assert not leader.core.voter_history.latest.dynamic


def test_a_voter_that_is_too_old_keeps_the_voters_fixed():
    leader = fixed_leader()
    introduce(leader, FIXED[1], Voter(THREE, "host3", 9093, kraft_versions=(0, 0)))
    with pytest.raises(KlammError, match="not by 3") as caught:
        leader.core.raise_kraft_version(1, FIXED[0], leader.now)
    assert caught.value.code is ErrorCode.INVALID_UPDATE_VERSION
    introduce(leader, FIXED[2])
    assert leader.core.raise_kraft_version(1, FIXED[0], leader.now, validate_only=True) is None
    assert not leader.core.voter_history.latest.dynamic, "only looked at"
    assert refusal(lambda: leader.core.raise_kraft_version(2, FIXED[0], leader.now)), "no such version"


def test_kraft_version_never_goes_back():
    assert (
        refusal(lambda: leader_alone().core.raise_kraft_version(0, Voter(ONE, "host1", 9093), 0))
        is ErrorCode.INVALID_UPDATE_VERSION
    )


def test_strangers_and_those_who_cannot_lead_introduce_and_raise_nothing():
    leader = fixed_leader()
    stranger = ReplicaKey(4, bytes(range(16)))
    assert refusal(lambda: leader.core.update_voter(Voter(stranger, "host4", 9093), 0)) is ErrorCode.VOTER_NOT_FOUND
    too_new = Voter(TWO, "host2", 9093, kraft_versions=(1, 1))
    assert refusal(lambda: leader.core.update_voter(too_new, 0)) is ErrorCode.INVALID_REQUEST
    follower = fixed_quorum(key=TWO, election=ElectionState(1, 1))
    raised = refusal(lambda: follower.core.raise_kraft_version(1, FIXED[1], 0))
    assert raised is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_leader_that_has_committed_nothing_yet_does_not_raise():
    leader = fixed_quorum()
    leader.pass_time(2_000)
    for _ in range(2):
        leader.answered(RaftVoteResponse(leader.core.epoch, None, granted=True))
    introduce(leader, *FIXED[1:])
    assert refusal(lambda: leader.core.raise_kraft_version(1, FIXED[0], leader.now)) is ErrorCode.REQUEST_TIMED_OUT


def test_a_raise_that_is_cut_off_never_was():
    follower = fixed_quorum(key=TWO, election=ElectionState(1, 1))
    batches = (
        Entry(0, 0, 1, b"", voter_change=None),
        Entry(1, 2, 1, b"", voter_change=VoterChange(VoterSet(FIXED), 1)),
    )
    follower.answered(RaftFetchResponse(1, 1, high_watermark=0, entries=batches))
    assert follower.core.voter_history.latest == VoterConfiguration(VoterSet(FIXED), 1)
    assert follower.core.is_voter
    follower.syncs()
    follower.answered(RaftFetchResponse(1, 1, high_watermark=0, diverging=OffsetAndEpoch(1, 1)))
    assert follower.core.voter_history.latest == VoterConfiguration(VoterSet.of_ids(1, 2, 3))


def test_who_slept_through_the_raise_follows_a_leader_its_file_does_not_name():
    """Voters 1, 2 and 3 of the file may all have been replaced meanwhile."""
    sleeper = fixed_quorum(key=THREE, election=ElectionState(1, 1))
    sleeper.answered(RaftFetchResponse(9, 7, error=ErrorCode.FENCED_LEADER_EPOCH))
    assert sleeper.core.leadership.leader_id == 7
    assert [message.destination for message in sleeper.outbox] == [7]


# observers and strangers


def test_who_knows_nobody_finds_the_leader_through_a_bootstrap_server():
    stranger = Member(key=THREE, bootstrap=(-2,))
    [requested] = stranger.outbox
    assert requested.destination == -2
    stranger.answered(RaftFetchResponse(4, 1, error=ErrorCode.FENCED_LEADER_EPOCH))
    assert stranger.core.leadership.leader_id == 1
    [fetch] = stranger.outbox
    assert fetch.destination == 1, "from the leader itself, although no voter is known yet"


def test_an_observer_whose_leader_is_silent_asks_around():
    observer = Member(ONE, TWO, key=THREE, election=ElectionState(1, 1))
    assert [message.destination for message in observer.outbox] == [1]
    requested = set()
    for _ in range(30):
        pending = observer.outbox[0]
        requested.add(pending.destination)
        observer.core.step(PeerUnreachable(pending.destination, pending.correlation_id), observer.now)
        observer.collect()
        observer.pass_time(20)
    assert requested == {1, 2}
    assert observer.core.state.role is Role.FOLLOWER, "an observer never stands"


# a leader that is dead


def dead_leader(key, *voters):
    follower = Member(*voters, key=key, election=ElectionState(1, 1))
    [fetch] = follower.outbox
    follower.core.step(PeerUnreachable(1, fetch.correlation_id, refused=True), follower.now)
    follower.collect()
    return follower


def test_the_first_in_line_stands_at_once_for_a_leader_whose_process_is_gone():
    follower = dead_leader(TWO, ONE, TWO, THREE)
    assert [body.pre_vote for body in (m.body for m in follower.outbox) if isinstance(body, RaftVoteRequest)]
    assert follower.core.epoch == 1, "a pre-vote changes nothing"


def test_the_next_in_line_waits_its_turn_but_grants_meanwhile():
    follower = dead_leader(THREE, ONE, TWO, THREE)
    assert follower.core.state.role is Role.FOLLOWER
    [reply] = follower.hears(2, RaftVoteRequest(TWO, 1, OffsetAndEpoch(0, 0), pre_vote=True))
    assert reply.body == RaftVoteResponse(1, 1, granted=True)
    follower.pass_time(100)
    assert follower.core.state.role is Role.PROSPECTIVE


def test_a_connection_that_merely_broke_elects_nobody():
    follower = Member(ONE, TWO, THREE, key=TWO, election=ElectionState(1, 1))
    [fetch] = follower.outbox
    follower.core.step(PeerUnreachable(1, fetch.correlation_id), follower.now)
    assert follower.collect() == []
    follower.pass_time(100)
    assert follower.core.state.role is Role.FOLLOWER
    assert [message.destination for message in follower.outbox] == [1]


def test_a_peer_that_only_refuses_is_not_asked_in_a_loop():
    stranger = Member(key=THREE, bootstrap=(-2,))
    stranger.answered(RaftFetchResponse(0, None, error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert stranger.outbox == []
    stranger.pass_time(20)
    assert [message.destination for message in stranger.outbox] == [-2]


# the history of voter_history


def test_configurations_by_offset():
    log = VoterHistory(VoterConfiguration(voter_set(ONE)))
    log.append(5, VoterChange(kraft_version=1))
    log.append(9, VoterChange(voter_set(ONE, TWO)))
    assert [log.at(end).voters.ids for end in (0, 5, 9, 10)] == [(1,), (1,), (1,), (1, 2)]
    assert [log.at(end).kraft_version for end in (5, 6)] == [0, 1]
    log.forget_before(7)
    assert log.at(8).kraft_version == 1
    log.truncate_to(9)
    assert log.latest.voters.ids == (1,)
    log.start_at(20, VoterConfiguration(voter_set(TWO), 1))
    assert (log.offset, log.latest.voters.ids) == (19, (2,))
    assert VoterHistory(VoterConfiguration(voter_set(ONE))).offset == BEFORE_LOG
