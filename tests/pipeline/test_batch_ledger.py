"""Checkpoint and sink compared: whatever is restored, removed or killed, no row is lost or written twice unnoticed."""

import inspect
import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.pipeline.core import batch_ledger
from klamm.pipeline.core.batch_ledger import (
    DISAGREE,
    BatchPosition,
    CheckpointView,
    LedgerError,
    LedgerFault,
    LedgerFinding,
    LedgerStep,
    SinkBatch,
    judge,
    parse_offsets_file,
)
from klamm.pipeline.query_checkpoint import QueryCheckpoint

SINK = "s"


def fault(sink, view, judge_batch=judge):
    verdict = judge_batch(SINK, sink, view)
    return verdict.fault if isinstance(verdict, LedgerFinding) else verdict


CASES = [
    (SinkBatch(), CheckpointView(0), LedgerStep.CONTINUE),
    (SinkBatch(4, "e4"), CheckpointView(5, {4: "e4", 5: "e5"}), LedgerStep.CONTINUE),
    # Batches without rows since then, and Spark has removed the plan of the sink's newest batch.
    (SinkBatch(4, "e4"), CheckpointView(200, {}, SinkBatch(4, "e4"), SINK), LedgerStep.CONTINUE),
    (SinkBatch(4, "e4"), CheckpointView(200, {}, SinkBatch(4, "other"), SINK), LedgerFault.CHECKPOINT_DIVERGED),
    (SinkBatch(4, "e4"), CheckpointView(200, {}, SinkBatch(3, "e3"), SINK), LedgerFault.CHECKPOINT_DIVERGED),
    (SinkBatch(4, "e4"), CheckpointView(200, {}), LedgerFault.CHECKPOINT_DIVERGED),
    (SinkBatch(4), CheckpointView(200, {}), LedgerStep.CONTINUE),  # written by an older version
    (SinkBatch(4, "e4"), CheckpointView(200, {}, SinkBatch(), ""), LedgerStep.CONTINUE),  # given up for a new place
    (SinkBatch(5, "e5"), CheckpointView(5, {5: "e5"}), LedgerStep.REPLAY),
    (SinkBatch(5), CheckpointView(5, {5: "e5"}), LedgerStep.REPLAY),  # written by an older version
    (SinkBatch(5, "e5"), CheckpointView(5, {5: "other"}), LedgerFault.CHECKPOINT_DIVERGED),
    (SinkBatch(5, "e5"), CheckpointView(7, {5: "other"}), LedgerFault.CHECKPOINT_DIVERGED),
    (SinkBatch(5, "e5"), CheckpointView(5, {}), LedgerFault.CHECKPOINT_SET_BACK),
    (SinkBatch(5), CheckpointView(3, {3: "e3"}), LedgerFault.CHECKPOINT_SET_BACK),
    (SinkBatch(5, "e5"), CheckpointView(0), LedgerFault.CHECKPOINT_REMOVED),
    (SinkBatch(5, "e5"), CheckpointView(0, {0: "e0"}), LedgerFault.CHECKPOINT_REMOVED),
    (SinkBatch(0, "e0"), CheckpointView(0), LedgerFault.CHECKPOINT_REMOVED),
    (SinkBatch(0, "e0"), CheckpointView(0, {0: "e0"}), LedgerStep.REPLAY),
    (SinkBatch(3, "e3"), CheckpointView(5, {3: "e3"}, SinkBatch(4, "e4"), SINK), LedgerFault.SINK_SET_BACK),
    (SinkBatch(), CheckpointView(5, {}, SinkBatch(4, "e4"), SINK), LedgerFault.SINK_SET_BACK),
    # A copy of another query's checkpoint says nothing about this sink.
    (SinkBatch(), CheckpointView(5, {}, SinkBatch(4, "e4"), "another"), LedgerStep.CONTINUE),
]


@pytest.mark.parametrize(("sink", "view", "expected"), CASES)
def test_what_a_batch_may_do(sink, view, expected):
    assert fault(sink, view) is expected


def test_findings_say_what_is_missing_from_where():
    for kind in LedgerFault:
        text = LedgerFinding(kind, 7, 3, 9).describe("topic copies")
        assert text.startswith(DISAGREE)
        assert "topic copies" in text
        assert "7" in text


def test_positions_of_offset_files():
    spark = 'v1\n{"batchWatermarkMs":0}\n{"b":{"0":2},"a":{"1":3}}\n-\n'
    assert parse_offsets_file(spark) == BatchPosition('[{"a":{"1":3},"b":{"0":2}},null]')
    assert parse_offsets_file(spark).ends == [{"a": {"1": 3}, "b": {"0": 2}}, None]
    jdbc = '{"version": 1, "kind": "integer", "start": null, "end": 7, "rows": 3}'
    assert parse_offsets_file(jdbc) == BatchPosition('[{"cursor":"integer","end":7}]')
    for broken in ("", "v1\n", "v1\n{}\n{half", "{}"):
        assert parse_offsets_file(broken) is None


def test_a_checkpoint_in_a_folder(tmp_path):
    checkpoint = QueryCheckpoint.at(f"file://{tmp_path}")
    assert checkpoint.path == str(tmp_path)
    assert QueryCheckpoint.at("hdfs://nowhere/checkpoint") is None
    assert (checkpoint.next_batch(), checkpoint.read_written()) == (0, (None, SinkBatch()))
    for log, batches in (("offsets", range(3)), ("commits", range(2))):
        (tmp_path / log).mkdir()
        for batch in batches:
            (tmp_path / log / str(batch)).write_text(f'v1\n{{}}\n{{"t":{{"0":{batch}}}}}')
    (tmp_path / "offsets" / ".3.crc").write_text("")
    assert (checkpoint.last_planned(), checkpoint.next_batch()) == (2, 2)
    (tmp_path / "commits" / "2").write_text("v1\n{}")
    assert checkpoint.next_batch() == 3
    checkpoint.record_written(SINK, 2)
    digest = BatchPosition('[{"t":{"0":2}}]').digest
    assert checkpoint.read_written() == (SINK, SinkBatch(2, digest))
    assert checkpoint.check_batch(SINK, SinkBatch(2, digest), 3) is LedgerStep.CONTINUE
    with pytest.raises(LedgerError, match=f"batch 2: {DISAGREE}"):
        checkpoint.check_batch(SINK, SinkBatch(4, "e4"), 2)


NONE = SinkBatch()
PLANS_KEPT = 2
"""Spark keeps a hundred; with the fewest, plans are removed within a short history."""


class Killed(Exception):
    pass


class Wrong(Exception):
    """A row was lost or doubled, or a batch refused without a reason."""


@dataclass(frozen=True)
class Checkpoint:
    plans: dict = field(default_factory=dict)
    committed: int = -1
    written: SinkBatch = NONE
    written_sink: str | None = None


@dataclass(frozen=True)
class Table:
    """A sink: rows, and the newest batch with rows."""

    rows: tuple = ()
    newest: SinkBatch = NONE


class World:
    """A source, a checkpoint and a sink, and copies of them at any time.

    Rows that the query filters out, and triggers without records, make batches without rows.
    """

    def __init__(self, judge_batch):
        self.judge = judge_batch
        self.records = 0
        self.checkpoint, self.table, self.copies = Checkpoint(), Table(), {}
        self.tampered = False
        """Whether checkpoint and sink may be of different times: only then a batch may be refused."""

    def output(self, start, end):
        return [number for number in range(start, end) if number % 3]

    def produce(self, count):
        self.records += count

    def copy(self, slot):
        self.copies[slot] = (self.checkpoint, self.table, self.tampered)

    def restore_both(self, slot):
        if slot in self.copies:
            self.checkpoint, self.table, self.tampered = self.copies[slot]

    def restore_checkpoint(self, slot):
        if slot in self.copies:
            self.checkpoint, self.tampered = self.copies[slot][0], True

    def restore_sink(self, slot):
        if slot in self.copies:
            self.table, self.tampered = self.copies[slot][1], True

    def remove_checkpoint(self, _):
        self.checkpoint, self.tampered = Checkpoint(), True

    def remove_sink(self, _):
        self.table, self.tampered = Table(), True

    def run_batch(self, kill_after):
        """Run one batch as Spark does, killed after a step; the ledger may refuse it."""
        plans = self.checkpoint.plans
        newest = max(plans, default=-1)
        batch = newest if newest > self.checkpoint.committed else newest + 1
        # On start, and again in the batch, as the sink of a plain query does.
        if self.decide(batch) is None:
            return
        plans = {batch: self.records, **plans}
        plans = {number: plans[number] for number in sorted(plans)[-PLANS_KEPT:]}
        self.checkpoint = replace(self.checkpoint, plans=plans)
        self.pass_step("planned", kill_after)
        step = self.decide(batch)
        if step is None:
            return
        end = plans[batch]
        rows = self.output(plans.get(batch - 1, 0), end)
        if step is LedgerStep.CONTINUE and rows:
            self.table = Table((*self.table.rows, *rows), SinkBatch(batch, str(end)))
        if sorted(self.table.rows) != self.output(0, end):
            raise Wrong(f"{step} of batch {batch} up to {end} leaves {sorted(self.table.rows)}")
        self.pass_step("sink committed", kill_after)
        if self.table.newest.batch == batch:
            self.checkpoint = replace(self.checkpoint, written=self.table.newest, written_sink=SINK)
        self.pass_step("written recorded", kill_after)
        self.checkpoint = replace(self.checkpoint, committed=batch)

    def run_idle(self, count):
        """Run batches, of which all but the first have no records."""
        for _ in range(count):
            self.run_batch(None)

    def decide(self, batch):
        """Return the step of a batch; None when the ledger refuses it."""
        digests = {number: str(end) for number, end in self.checkpoint.plans.items()}
        view = CheckpointView(batch, digests, self.checkpoint.written, self.checkpoint.written_sink)
        verdict = self.judge(SINK, self.table.newest, view)
        if not isinstance(verdict, LedgerFinding):
            return verdict
        if not self.tampered:
            raise Wrong(f"batch {batch} refused after crashes only: {verdict}")
        return None

    @staticmethod
    def pass_step(step, kill_after):
        if step == kill_after:
            raise Killed


KILLS = ["planned", "sink committed", "written recorded", None]
SLOTS = [0, 1]
ARGUMENTS = {
    World.produce: [1, 2, 3],
    World.run_batch: KILLS,
    World.run_idle: [3],
    World.copy: SLOTS,
    World.restore_both: SLOTS,
    World.restore_checkpoint: SLOTS,
    World.restore_sink: SLOTS,
    World.remove_checkpoint: [None],
    World.remove_sink: [None],
}
FREQUENT = [World.produce, World.run_batch, World.run_batch, World.run_batch, World.copy]
"""Damage is rare beside batches: otherwise every history is refused early."""
ACTIONS = [(method, argument) for method in (*ARGUMENTS, *FREQUENT) for argument in ARGUMENTS[method]]


def play(actions, judge_batch=judge):
    world = World(judge_batch)
    for method, argument in actions:
        try:
            method(world, argument)
        except Killed:
            continue


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(ACTIONS), max_size=40))
def test_no_order_of_crash_restore_and_removal_loses_or_repeats_a_row(actions):
    """And a plain crash, or a backup of both sides of one time, is never refused."""
    play(actions)


def play_all(judge_batch):
    chance = random.Random(5)
    for _ in range(3000):
        play(chance.choices(ACTIONS, k=40), judge_batch)


PLANTED = {
    "sink set back": ("written.batch > sink.batch", "False"),
    "sink set back by more than one batch": ("written.batch > sink.batch", "written.batch > sink.batch + 1"),
    "sink with all batches refused": ("written.batch > sink.batch", "written.batch >= sink.batch >= 0"),
    "first batch refused": ("sink.batch < 0", "False"),
    "every replay refused": ("view.next_batch < sink.batch or", "view.next_batch <= sink.batch or"),
    "other position": ("planned and sink.digest and planned != sink.digest", "False"),
    "removed plan": ("planned is None and view.written_sink in (None, sink_name)", "False"),
    "removed plan, nothing written": ("in (None, sink_name)", "== sink_name"),
    "batch of the same number": ("written.digest if written.batch == sink.batch else _NOT_WRITTEN", "None"),
    "replay written again": ("LedgerStep.REPLAY if", "LedgerStep.CONTINUE if"),
    "new batch skipped": ("LedgerStep.REPLAY if view.next_batch == sink.batch", "LedgerStep.REPLAY if sink.batch >= 0"),
}
"""Faults of the judge: a text, and what replaces it."""
MISNAMED = {
    "checkpoint removed": ("view.next_batch == 0 and (sink.batch > 0 or planned is None)", "False"),
    "smaller batch": ("view.next_batch < sink.batch or", "False or"),
    "batch without a plan": ("or (view.next_batch == sink.batch and planned is None)", ""),
}
"""With positions another check refuses the same batches, as another fault; without them none does."""


def plant(old, new):
    source = inspect.getsource(judge)
    assert source.count(old) == 1, old
    names = dict(vars(batch_ledger))
    exec(compile(source.replace(old, new), "planted", "exec", dont_inherit=True), names)
    return names["judge"]


@pytest.mark.parametrize("replacement", PLANTED.values(), ids=PLANTED.keys())
def test_the_model_finds_planted_faults(replacement):
    with pytest.raises(Wrong):
        play_all(plant(*replacement))


@pytest.mark.parametrize("replacement", MISNAMED.values(), ids=MISNAMED.keys())
def test_the_cases_find_planted_faults(replacement):
    planted = plant(*replacement)
    assert any(fault(sink, view, planted) is not expected for sink, view, expected in CASES)


def test_random_histories_pass():
    play_all(judge)
