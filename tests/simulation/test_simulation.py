"""Whole clusters under the seeded scheduler: seeds, determinism, planted bugs, shrinking.

A failing seed is told as a story by `make sim SEED=<seed>`. KLAMM_SIM_CLUSTER_SEEDS runs more or fewer of them;
`make sim` runs a thousand.
"""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from klamm.records.batch import DecodedRecord
from simulation.bugs import BUGS, hunt, plant
from simulation.disk_faults import QUORUM_FILES
from simulation.faults import KINDS, Fault
from simulation.keyed import KeyedRecord, KeyedRecords
from simulation.ledger import Ledger
from simulation.net import SimNet
from simulation.plan import SITUATIONS, RunPlan, draw_plan, draw_situation
from simulation.run import run_seed
from simulation.shrink import format_story, shrink

SEEDS = int(os.environ.get("KLAMM_SIM_CLUSTER_SEEDS", "30"))
CHUNK = 5
ROOT = Path(__file__).parents[2]

NEARBY = 40
"""In its situation a planted bug does harm in one seed of a few; so many are looked at before it counts as missed."""
CAUGHT_BY = {
    "an EndTxn overtakes its AddPartitionsToTxn": 1,
    "compact away the markers of transactions": 1,
    "do not fence the producer before": 2,
    "do not sync the quorum's log": 1,
    "elect a leader that is not in sync": 1,
    "elect a quorum leader whose log is short": 2,
    "forget a vote": 4,
    "forget tombstones at once": 1,
    "keep a broker in sync that has lost its log": 1,
    "leave ACLs out of snapshots": 1,
    "never compare histories": 2,
    "skip the epoch check of a quorum leader": 2,
    "take the marker of the last transaction for the end of this one": 2,
    "take the quorum's files for what was written": 1,
}
"""The seed that caught a bug when it was planted last, looked at first; 0 for others. Any other seed does as well."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds(first):
    failed = [
        f"make sim SEED={seed}  # {outcome.violation}"
        for seed in range(first, min(first + CHUNK, SEEDS))
        if (outcome := run_seed(seed)).violation is not None
    ]
    assert not failed, "\n".join(failed)


@pytest.mark.timeout(300)
def test_a_healthy_cluster_loses_nothing():
    """Defects were found elsewhere in clusters that nothing had happened to."""
    load = {"producers": 2, "consumers": 2, "transactional": 2, "members": 2, "classic": 2, "copiers": 1, "keyed": 1}
    plan = RunPlan(seed=7, partitions=3, pace=0.1, seconds=10, events=40_000, **load)
    outcome = run_seed(7, plan=plan)
    assert outcome.violation is None
    assert outcome.acks > 100
    assert outcome.reads >= outcome.acks


@pytest.mark.timeout(300)
def test_one_node_survives_being_killed_again_and_again():
    faults = tuple(Fault(float(at), "kill", (1,), 0.5) for at in range(1, 10, 2))
    outcome = run_seed(3, plan=RunPlan(seed=3, layout="one", factor=1, seconds=12, faults=faults))
    assert outcome.violation is None
    assert outcome.acks


@pytest.mark.timeout(300)
def test_records_that_are_synced_survive_a_power_loss_of_all():
    faults = tuple(Fault(at, "power", (1, 2, 3), 1.0) for at in (1.0, 4.0, 7.0))
    for seed in range(3):
        outcome = run_seed(seed, plan=RunPlan(seed=seed, flush=True, transactional=1, seconds=10, faults=faults))
        assert outcome.violation is None, seed


_DIGEST = "from simulation.run import run_seed; o = run_seed({seed}); print(o.events, o.digest, o.violation)"


@pytest.mark.timeout(300)
def test_a_seed_runs_the_same_in_every_process():
    """Breaks when any part of a node uses real time, real randomness or the order of a set."""
    lines = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", _DIGEST.format(seed=1)]
        lines.append(
            subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT).stdout
        )
    assert lines[0] == lines[1]


def _story(*faults, **more):
    plan = RunPlan(seed=5, pace=0.1, seconds=10.0, faults=faults, **more)
    outcome = run_seed(5, plan=plan)
    assert outcome.violation is None, outcome.violation
    return "\n".join(outcome.story)


@pytest.mark.timeout(300)
class TestFaults:
    """Each fault must have happened, not only have been planned."""

    def test_a_wiped_disk_is_filled_again(self):
        story = _story(Fault(2.0, "wiped disk", (2,), 1.0))
        assert "gets an empty disk" in story
        assert story.count("node 2 serves") == 2

    def test_an_old_disk_is_brought_up_to_date(self):
        assert "its disk is what it was 4.00 s ago" in _story(Fault(1.0, "old disk", (3,), 4.0))

    def test_a_bit_that_turned_over_is_noticed_or_does_not_matter(self):
        assert "turns over" in _story(Fault(2.0, "bit flip", (1,), 1.0))

    @pytest.mark.parametrize("file", QUORUM_FILES)
    def test_a_voter_whose_files_are_damaged_says_so_or_is_none_the_worse(self, file):
        """Breaks when a voter accepts a damaged log, vote or snapshot."""
        size = (QUORUM_FILES.index(file) + 0.5) / len(QUORUM_FILES)
        busy = tuple(Fault(0.5 + at / 4, "change config", (1,), 0.1, 0.1 * at) for at in range(8))
        plan = RunPlan(seed=5, snapshots=True, pace=0.2, seconds=10.0)
        flip = Fault(3.0, "quorum bit flip", (1,), 1.0, size)
        outcome = run_seed(5, plan=replace(plan, faults=(*busy, flip, Fault(6.0, "depose", (1,), 2.0, 0.3))))
        assert outcome.violation is None
        story = "\n".join(outcome.story)
        assert re.search(f"a bit of .*__cluster_metadata-0/.*{file} turns over", story)
        assert story.count("node 1 serves") >= 2

    def test_clocks_that_run_at_different_rates(self):
        drift = [Fault(0.0, "clock drift", (node,), 10.0, rate) for node, rate in ((1, 0.9), (2, 1.1))]
        story = _story(
            *drift, Fault(2.0, "clock jump", (3,), 3.0, -3_600_000), Fault(4.0, "kill", (1,), 2.0), members=2
        )
        assert "a second of node 1 takes 1.11 s" in story

    def test_who_is_away_for_longer_than_tombstones_are_kept_may_keep_what_they_deleted(self):
        """As in seed 241: no replica has the tombstone any more. Breaks when that counts as a loss."""
        away = (Fault(1.5, "isolate", (1,), 8.0), Fault(1.6, "pause client", (1,), 5.0, 0.6))
        _story(*away, hot=True, tombstones_ms=500, members=1, keyed=1)

    def test_a_wiped_voter_comes_back_under_its_new_directory(self):
        plan = RunPlan(seed=5, dynamic=True, seconds=15.0, pace=0.2, faults=(Fault(2.0, "wiped disk", (2,), 1.0),))
        outcome = run_seed(5, plan=plan, verbose=True)
        assert outcome.violation is None
        assert "voter added voter=2/" in "\n".join(outcome.story)

    def test_a_voter_leaves_and_comes_back(self):
        plan = RunPlan(seed=5, dynamic=True, seconds=15.0, pace=0.2, faults=(Fault(2.0, "change voters", (3,), 4.0),))
        story = "\n".join(run_seed(5, plan=plan, verbose=True).story)
        assert "voter removed voter=3/" in story
        assert "voter added voter=3/" in story

    def test_who_was_replaced_under_its_id_stops(self):
        """A second process takes the id of a broker that is out of sight; when that comes back it must not go on."""
        story = _story(
            Fault(0.2, "two with one id", (4,), 9.0), Fault(1.0, "pause", (4,), 5.0), layout="extra", partitions=1
        )
        assert "node 4 (the second of this id) serves" in story
        assert "node 4 stopped by itself: another process" in story

    def test_partitions_are_added_under_load(self):
        assert "gets a partition more: 3" in _story(Fault(1.0, "more partitions", (1,), 1.0), classic=2, members=2)

    def test_controllers_and_brokers_apart(self):
        story = _story(Fault(1.0, "kill", (4,), 2.0), Fault(4.0, "kill", (1,), 2.0), layout="apart")
        assert story.count("node 4 serves") == 2


@pytest.mark.timeout(300)
class TestRights:
    """A cluster all of whose listeners require logins."""

    def test_rights_and_passwords_change_and_are_enforced(self):
        faults = (Fault(2.0, "kill", (1,), 1.0), Fault(5.0, "isolate", (2,), 1.5))
        plan = RunPlan(seed=4, secured=True, snapshots=True, pace=0.3, seconds=8.0, members=1, faults=faults)
        outcome = run_seed(4, plan=plan, verbose=True)
        assert outcome.violation is None, outcome.violation
        story = "\n".join(outcome.story)
        assert re.search("User:guest-. is Denied operation = WRITE .* request = Produce", story)
        assert re.search("guest-. has password", story)
        assert "no more: " in story
        assert 'reason="wrong password"' in story

    def test_some_seeds_are_secured_and_the_others_stay_what_they_were(self):
        plans = [draw_plan(seed) for seed in range(400)]
        secured = [plan for plan in plans if plan.secured and plan.situation != "rights change"]
        assert 30 < len(secured) < 90
        assert {plan.layout for plan in secured} >= {"combined", "extra", "apart"}

    def test_some_of_the_secured_seeds_are_encrypted(self):
        plans = [plan for plan in map(draw_plan, range(400)) if plan.secured]
        assert 0.25 < sum(plan.tls for plan in plans) / len(plans) < 0.55

    def test_an_encrypted_cluster_survives_faults_and_runs_the_same_again(self):
        """OpenSSL's keys are others each time; what arrives when, and so all that follows, must be the same."""
        faults = (
            Fault(1.0, "kill", (1,), 1.0),
            Fault(3.0, "isolate", (2,), 1.5),
            Fault(5.0, "kill", (3,), 1.0),
        )
        plan = RunPlan(seed=7, secured=True, tls=True, pace=0.3, seconds=8.0, members=1, transactional=1, faults=faults)
        first, again = run_seed(7, plan=plan), run_seed(7, plan=plan)
        assert first.violation is None, first.violation
        assert first.acks > 20
        assert (first.digest, first.events) == (again.digest, again.events)

    def test_an_encrypted_cluster_sends_nothing_in_the_clear(self, monkeypatch):
        """Breaks when a listener or a client of an encrypted run is left without TLS."""
        first_bytes, pieces = {}, []
        carry = SimNet.carry

        def watch(net, end, kind, data):
            if kind == "data":
                first_bytes.setdefault(id(end), (end, data[:2]))
                pieces.append(data)
            carry(net, end, kind, data)

        monkeypatch.setattr(SimNet, "carry", watch)
        outcome = run_seed(8, plan=RunPlan(seed=8, secured=True, tls=True, pace=0.3, seconds=2.0))
        assert outcome.violation is None, outcome.violation
        assert outcome.acks > 0
        assert {begin for _, begin in first_bytes.values()} == {b"\x16\x03"}, "not every connection begins with TLS"
        assert not any(b"SCRAM" in data or b"PLAIN" in data for data in pieces)

    def test_a_secured_seed_runs_the_same_again(self):
        """Breaks when a nonce or a salt comes from the operating system."""
        plan = RunPlan(seed=6, secured=True, pace=0.3, seconds=3.0)
        first, second = run_seed(6, plan=plan), run_seed(6, plan=plan)
        assert (first.events, first.digest) == (second.events, second.digest)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(BUGS))
def test_a_planted_bug_is_caught(name):
    """In the situation where it does harm, whatever else has moved what a seed does."""
    first = CAUGHT_BY.get(name, 0)
    assert hunt(name, [*range(first, NEARBY), *range(first)], anywhere=False) is not None


def test_twenty_bugs_can_be_planted_and_taken_out():
    assert len(BUGS) >= 20
    for name in BUGS:
        with plant(name):
            pass
    assert {bug.situation for bug in BUGS.values()} <= set(SITUATIONS)


def test_a_seed_draws_the_same_plan_again_and_all_seeds_together_draw_everything():
    assert draw_plan(1) == draw_plan(1)
    assert {fault.kind for seed in range(3000) for fault in draw_plan(seed).faults} == set(KINDS)
    assert {draw_plan(seed).situation for seed in range(3000)} == {"", *SITUATIONS}
    assert all(draw_situation(1, name).situation == name for name in SITUATIONS)


def test_bugs_that_were_caught_exist():
    assert set(CAUGHT_BY) <= set(BUGS)


@pytest.mark.timeout(300)
def test_a_failing_run_becomes_a_short_story():
    name = "forget sequence numbers"
    kinds = ("duplicate", "kill", "change config", "pause")
    faults = tuple(Fault(float(at), kind, (1,), 1.5) for at, kind in enumerate(kinds))
    plans = (RunPlan(seed=seed, pace=0.05, seconds=6.0, faults=faults) for seed in range(20))
    with plant(name):
        outcome = next(o for o in (run_seed(plan.seed, plan=plan) for plan in plans) if o.violation is not None)
        short = shrink(outcome, lambda plan: run_seed(plan.seed, plan=plan))
        story = format_story(run_seed(short.plan.seed, plan=short.plan, verbose=True))
    assert len(short.plan.faults) < len(faults)
    assert "VIOLATION 7" in story
    assert "node 1 serves" in story


class TestLedger:
    def make(self):
        violations = []
        return Ledger(violations.append), violations

    def test_a_lost_write(self):
        ledger, violations = self.make()
        ledger.send(("t", 0), b"a", "p", 1)
        ledger.committed["t", 0] = 1
        ledger.ack(("t", 0), 0, [b"a"])
        assert not violations
        ledger.check_log(("t", 0), [], set())
        assert "lost write" in violations[0]

    def test_an_acknowledgement_before_the_commit(self):
        ledger, violations = self.make()
        ledger.send(("t", 0), b"a", "p", 1)
        ledger.ack(("t", 0), 0, [b"a"])
        assert "committed" in violations[0]

    def test_a_duplicate_and_a_wrong_order(self):
        ledger, violations = self.make()
        for i, value in enumerate((b"a", b"b")):
            ledger.send(("t", 0), value, "p", i)
        ledger.check_log(("t", 0), [(0, b"b"), (1, b"a"), (2, b"a")], {0, 1, 2})
        assert any("twice" in v for v in violations)
        assert any("comes after" in v for v in violations)

    def test_a_record_that_was_never_sent(self):
        ledger, violations = self.make()
        ledger.committed["t", 0] = 1
        ledger.read(("t", 0), 0, b"x", "c", committed_only=False)
        assert "no producer sent" in violations[0]

    def test_a_partition_given_to_two_in_one_generation(self):
        ledger, violations = self.make()
        ledger.give("g", ("t", 0), "a", 3)
        ledger.give("g", ("t", 0), "b", 4)
        ledger.give("g", ("t", 0), "a", 3)  # late news
        assert not violations
        assert ledger.owner("g", ("t", 0)) == "b"
        ledger.give("g", ("t", 0), "c", 4)
        assert "12:" in violations[0]

    def test_a_key_whose_latest_value_is_gone(self):
        ledger, violations = self.make()
        place = ("keys", 0)
        for i, name in enumerate((b"old", b"new")):
            ledger.send(place, name, "p", i)
            ledger.committed[place] = i + 1
            ledger.ack(place, i, [name])
        keyed = KeyedRecords(
            {(place, b"k"): [KeyedRecord(b"old", tombstone=False), KeyedRecord(b"new", tombstone=False)]}
        )
        kept = DecodedRecord(1, 0, b"k", b"new", (("name", b"new"),))
        keyed.check(ledger, place, 1, [kept], keeps_tombstones=True)
        assert not violations
        keyed.check(ledger, place, 1, [DecodedRecord(0, 0, b"k", b"old", (("name", b"old"),))], keeps_tombstones=True)
        assert "14:" in violations[0]
        violations.clear()
        keyed.check(ledger, place, 1, [], keeps_tombstones=False)
        assert "14:" in violations[0]

    def test_damaged_bytes_come_only_from_a_damaged_disk(self):
        ledger, violations = self.make()
        ledger.damaged.add(2)
        ledger.record_damaged(2, "c", ValueError())
        assert not violations
        ledger.record_damaged(1, "c", ValueError())
        assert "4:" in violations[0]

    def test_a_position_that_goes_back(self):
        ledger, violations = self.make()
        ledger.group_position("g", ("t", 0), 3, 5)
        assert violations
