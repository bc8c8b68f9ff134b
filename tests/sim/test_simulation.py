"""Whole clusters under the seeded scheduler: seeds, determinism, planted bugs, shrinking.

A failing seed is told as a story by `make sim SEED=<seed>`. KLAMM_SIM_CLUSTER_SEEDS runs more or fewer of them.
"""

import os
import subprocess
import sys

import pytest

from klamm.testing.sim.bugs import BUGS, hunt, planted
from klamm.testing.sim.faults import Fault
from klamm.testing.sim.ledger import Ledger
from klamm.testing.sim.run import Plan, draw_plan, run_seed
from klamm.testing.sim.shrink import shrink, tell

SEEDS = int(os.environ.get("KLAMM_SIM_CLUSTER_SEEDS", "300"))
CHUNK = 10

KNOWN_TO_CATCH = {
    "a new leader takes all it has for committed": 108,
    "acknowledge before the others in sync have it": 0,
    "acknowledge before the sync": 3,
    "commit what was aborted": 0,
    "do not fence the producer before": 376,
    "do not sync the quorum's log": 3,
    "drop a control batch": 0,
    "elect a leader that is not in sync": 166,
    "elect a quorum leader whose log is short": 16,
    "followers forget producers": 1,
    "forget a vote": 80,
    "forget sequence numbers": 1,
    "join before catching up": 45,
    "ignore min.insync.replicas": 1,
    "keep a broker in sync that has lost its log": 16,
    "let a member commit that was fenced": 937,
    "never compare histories": 1,
    "show aborted transactions": 0,
    "skip the epoch check of a quorum leader": 231,
    "show open transactions": 0,
    "take one voter for a majority": 11,
    "truncate to the high watermark": 1,
    "vote for everybody": 11,
}
"""Seeds that caught a planted bug. A change of the code or of the plans moves them: `make sim-bugs` hunts anew."""
NEARBY = 40


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
    plan = Plan(seed=7, partitions=3, producers=2, consumers=2, transactional=2, members=2, pace=0.05, seconds=10)
    outcome = run_seed(7, plan=plan)
    assert outcome.violation is None
    assert outcome.acks > 100
    assert outcome.reads >= outcome.acks


@pytest.mark.timeout(300)
def test_one_node_survives_being_killed_again_and_again():
    faults = tuple(Fault(float(at), "kill", (1,), 0.5) for at in range(1, 10, 2))
    outcome = run_seed(3, plan=Plan(seed=3, nodes=1, factor=1, seconds=12, faults=faults))
    assert outcome.violation is None
    assert outcome.acks


@pytest.mark.timeout(300)
def test_records_that_are_synced_survive_a_power_loss_of_all():
    faults = tuple(Fault(at, "power", (1, 2, 3), 1.0) for at in (1.0, 4.0, 7.0))
    for seed in range(3):
        outcome = run_seed(seed, plan=Plan(seed=seed, flush=True, transactional=1, seconds=10, faults=faults))
        assert outcome.violation is None, seed


_DIGEST = "from klamm.testing.sim.run import run_seed; o = run_seed({seed}); print(o.events, o.digest, o.violation)"


@pytest.mark.timeout(300)
def test_a_seed_runs_the_same_in_every_process():
    """Breaks when anything in a node asks the machine for time, chance or the order of a set."""
    told = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", _DIGEST.format(seed=1)]
        told.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert told[0] == told[1]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(KNOWN_TO_CATCH))
def test_a_planted_bug_is_caught(name):
    """The seed that caught it, or one of the next: other changes move what a seed does."""
    first = KNOWN_TO_CATCH[name]
    assert hunt(name, range(first, first + NEARBY)) is not None


def test_twenty_bugs_can_be_planted_and_taken_out():
    assert len(BUGS) >= 20
    for name in BUGS:
        with planted(name):
            pass
    assert draw_plan(1) == draw_plan(1)


@pytest.mark.timeout(300)
def test_a_failing_run_becomes_a_short_story():
    name = "forget sequence numbers"
    with planted(name):
        outcome = next(o for o in map(run_seed, range(20)) if o.violation is not None)
        short = shrink(outcome, lambda plan: run_seed(plan.seed, plan=plan))
        story = tell(run_seed(short.plan.seed, plan=short.plan, verbose=True))
    assert len(short.plan.faults) <= len(outcome.plan.faults)
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

    def test_a_record_nobody_sent(self):
        ledger, violations = self.make()
        ledger.committed["t", 0] = 1
        ledger.read(("t", 0), 0, b"x", "c", committed_only=False)
        assert "nobody sent" in violations[0]

    def test_a_position_that_goes_back(self):
        ledger, violations = self.make()
        ledger.group_position("g", ("t", 0), 3, 5)
        assert violations
