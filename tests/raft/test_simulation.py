"""Random lives of a quorum: whatever is lost, delayed or crashed, nothing committed is ever contradicted."""

import os

import pytest

from klamm.raft.core import elections, log_positions, raft, replica, roles, voter_changes, voter_history

from .simulation import Cluster, SimDisk, run_story

SHAPES = [(1, 0), (2, 0), (3, 0), (3, 1), (5, 0)]
CHANGING_SHAPES = [(1, 3), (3, 2), (2, 2), (3, 1)]
"""(voters, observers)"""
SEEDS = int(os.environ.get("KLAMM_SIM_SEEDS", "60"))
"""How many random lives; `make sim` runs more."""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_life_keeps_every_promise(seed):
    voters, observers = SHAPES[seed % len(SHAPES)]
    print(f"seed {seed}: {voters} voters, {observers} observers")
    cluster = run_story(seed, voters, observers, rounds=60)
    assert cluster.log


@pytest.mark.parametrize("seed", range(SEEDS * 2 // 3))
def test_a_random_life_with_changing_voters_keeps_every_promise(seed):
    voters, observers = CHANGING_SHAPES[seed % len(CHANGING_SHAPES)]
    print(f"seed {seed}: {voters} voters at first, {observers} others")
    cluster = run_story(seed, voters, observers, rounds=80, dynamic=True)
    assert cluster.configuration_at(max(cluster.log) + 1).voters.ids


@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_a_random_life_in_which_fixed_voters_become_free_keeps_every_promise(seed):
    """A node is killed while kraft.version is raised: all have the new quorum in the end, or all the old one."""
    voters, observers = CHANGING_SHAPES[seed % len(CHANGING_SHAPES)]
    print(f"seed {seed}: {voters} fixed voters, {observers} others")
    run_story(seed, voters, observers, rounds=80, raised=True)


def test_in_a_quiet_life_kraft_version_is_raised_and_voters_change():
    cluster = Cluster(1, 3, 1, raised=True)
    assert cluster.run(20_000, lambda: cluster.leader() is not None)
    assert cluster.run(20_000, lambda: cluster.raise_kraft_version() or bool(cluster.changes()))
    assert cluster.run(20_000, lambda: cluster.change_voters() or len(cluster.changes()) > 3)


def forget_votes(monkeypatch):
    monkeypatch.setattr(raft, "election_of", lambda it: roles.ElectionState(it.epoch, it.leader_id, None))


def vote_for_any_log(monkeypatch):
    monkeypatch.setattr(log_positions.LogPositions, "is_up_to_date", lambda self, other: True)


def commit_records_of_older_epochs(monkeypatch):
    monkeypatch.setattr(roles, "high_watermark", lambda ends, start, now: max(now, sorted(ends)[(len(ends) - 1) // 2]))


def count_what_is_not_synced(monkeypatch):
    monkeypatch.setattr(
        log_positions.LogPositions, "persisted_offset", property(lambda self: self.end_offset, lambda *_: None)
    )


def never_truncate(monkeypatch):
    monkeypatch.setattr(log_positions.LogPositions, "validate", lambda self, offset, epoch: log_positions.Valid())


def lead_without_a_majority(monkeypatch):
    monkeypatch.setattr(roles.Ballot, "won", property(lambda self: len(self.granted) >= len(self.voters) // 2))


def grant_two_votes(monkeypatch):
    monkeypatch.setattr(elections.Elections, "record_vote", lambda self, candidate: None)


def restart_as_if_new(monkeypatch):
    real = replica.RaftReplica._restore_state
    monkeypatch.setattr(replica.RaftReplica, "_restore_state", lambda self, election: real(self, roles.ElectionState()))


@pytest.mark.parametrize(
    "plant",
    [
        forget_votes,
        vote_for_any_log,
        commit_records_of_older_epochs,
        count_what_is_not_synced,
        never_truncate,
        lead_without_a_majority,
        grant_two_votes,
        restart_as_if_new,
    ],
)
def test_a_planted_bug_is_caught(plant, monkeypatch):
    """The simulation itself is tested: each of these must be noticed within a few hundred lives."""
    plant(monkeypatch)
    for seed in range(200):
        try:
            run_story(seed, voters=5, observers=0, rounds=60)
        except Exception as caught:  # noqa: BLE001 - whatever notices the bug will do
            print(f"{plant.__name__}: seed {seed}: {caught!r}")
            return
    pytest.fail(f"{plant.__name__} went unnoticed")


def change_before_the_last_change_is_committed(monkeypatch):
    monkeypatch.setattr(
        voter_changes.VoterChanges,
        "is_allowed",
        property(lambda self: self._replica.high_watermark > self._replica.state.epoch_start_offset),
    )


def remember_voters_that_were_cut_off(monkeypatch):
    monkeypatch.setattr(voter_history.VoterHistory, "truncate_to", lambda self, end_offset: None)


def forget_voters_at_a_restart(monkeypatch):
    monkeypatch.setattr(SimDisk, "voter_history", lambda self, given: voter_history.VoterHistory(given))


def count_oneself_after_removal(monkeypatch):
    real = roles.Leader.high_watermark

    def counting(self, persisted, current):
        if self.local.id in self.progress:
            return real(self, persisted, current)
        self.progress[self.local.id] = roles.ReplicaProgress(self.local)
        try:
            return real(self, persisted, current)
        finally:
            del self.progress[self.local.id]

    monkeypatch.setattr(roles.Leader, "high_watermark", counting)


def never_elect_who_is_being_removed(monkeypatch):
    monkeypatch.setattr(replica.RaftReplica, "is_electable", property(lambda self: self.is_voter and not self.stopping))


@pytest.mark.parametrize(
    "plant",
    [
        change_before_the_last_change_is_committed,
        remember_voters_that_were_cut_off,
        forget_voters_at_a_restart,
        count_oneself_after_removal,
        never_elect_who_is_being_removed,
    ],
)
def test_a_planted_bug_of_changing_voters_is_caught(plant, monkeypatch):
    """As above, in lives whose voters change."""
    plant(monkeypatch)
    for seed in range(500):
        voters, observers = CHANGING_SHAPES[seed % len(CHANGING_SHAPES)]
        try:
            run_story(seed, voters, observers, rounds=80, dynamic=True)
        except Exception as caught:  # noqa: BLE001 - whatever notices the bug will do
            print(f"{plant.__name__}: seed {seed}: {caught!r}")
            return
    pytest.fail(f"{plant.__name__} went unnoticed")
