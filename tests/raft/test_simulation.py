"""Random lives of a quorum: whatever is lost, delayed or crashed, nothing committed is ever contradicted."""

import pytest

from klamm.raft import core, elections, member, positions, state

from .simulation import run_story

SHAPES = [(1, 0), (2, 0), (3, 0), (3, 1), (5, 0)]
"""(voters, observers)"""


@pytest.mark.parametrize("seed", range(60))
def test_a_random_life_keeps_every_promise(seed):
    voters, observers = SHAPES[seed % len(SHAPES)]
    print(f"seed {seed}: {voters} voters, {observers} observers")
    cluster = run_story(seed, voters, observers, rounds=60)
    assert cluster.log


def forget_votes(monkeypatch):
    monkeypatch.setattr(core, "election_of", lambda it: state.ElectionState(it.epoch, it.leader_id, None))


def vote_for_any_log(monkeypatch):
    monkeypatch.setattr(positions.LogPositions, "is_up_to_date", lambda self, other: True)


def commit_records_of_older_epochs(monkeypatch):
    monkeypatch.setattr(state, "high_watermark", lambda ends, start, now: max(now, sorted(ends)[(len(ends) - 1) // 2]))


def count_what_is_not_synced(monkeypatch):
    monkeypatch.setattr(
        positions.LogPositions, "persisted_offset", property(lambda self: self.end_offset, lambda *_: None)
    )


def never_truncate(monkeypatch):
    monkeypatch.setattr(positions.LogPositions, "validate", lambda self, offset, epoch: positions.Valid())


def lead_without_a_majority(monkeypatch):
    monkeypatch.setattr(state.Ballot, "won", property(lambda self: len(self.granted) >= len(self.voters) // 2))


def grant_two_votes(monkeypatch):
    monkeypatch.setattr(elections.ElectingMember, "_give_vote", lambda self, candidate: None)


def restart_as_if_new(monkeypatch):
    real = member.Member._initial_state
    monkeypatch.setattr(member.Member, "_initial_state", lambda self, election: real(self, state.ElectionState()))


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
