"""Checkpoint and sink compared: whatever is restored, removed or killed, no row is lost or written twice unnoticed."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def fault(sink, view):
    verdict = judge(SINK, sink, view)
    return verdict.fault if isinstance(verdict, LedgerFinding) else verdict


@pytest.mark.parametrize(
    ("sink", "view", "expected"),
    [
        (SinkBatch(), CheckpointView(0), LedgerStep.CONTINUE),
        (SinkBatch(4, "e4"), CheckpointView(5, {4: "e4", 5: "e5"}), LedgerStep.CONTINUE),
        (SinkBatch(4, "e4"), CheckpointView(9, {}), LedgerStep.CONTINUE),  # empty batches, and their plans are gone
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
    ],
)
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
    assert (checkpoint.next_batch(), checkpoint.written()) == (0, ("", SinkBatch()))
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
    assert checkpoint.written() == (SINK, SinkBatch(2, digest))
    assert checkpoint.check_batch(SINK, SinkBatch(2, digest), 3) is LedgerStep.CONTINUE
    with pytest.raises(LedgerError, match=f"batch 2: {DISAGREE}"):
        checkpoint.check_batch(SINK, SinkBatch(4, "e4"), 2)


class Killed(Exception):
    pass


class World:
    """A source, a checkpoint and a sink; rows that the query filters out make batches without rows."""

    def __init__(self):
        self.records = 0
        self.plans, self.commits, self.written = {}, set(), SinkBatch()
        self.rows, self.sink = [], SinkBatch()

    def checkpoint(self):
        return copy.deepcopy((self.plans, self.commits, self.written))

    def output(self, start, end):
        return [number for number in range(start, end) if number % 3]

    def run_batch(self, kill):
        """One batch as Spark runs it, killed after a step; False when the ledger refuses it."""
        newest, committed = max(self.plans, default=-1), max(self.commits, default=-1)
        batch = newest if newest > committed else newest + 1
        for planned in (False, True):
            digests = {number: str(end) for number, end in self.plans.items()}
            # On start, and again in the batch, as the sink of a plain query does.
            verdict = judge(SINK, self.sink, CheckpointView(batch, digests, self.written, SINK))
            if isinstance(verdict, LedgerFinding):
                return False
            if not planned:
                self.plans.setdefault(batch, self.records)
                self.step(kill, 0)
        start, end = self.plans.get(batch - 1, 0), self.plans[batch]
        rows = self.output(start, end)
        if verdict is LedgerStep.CONTINUE and rows:
            self.rows += rows
            self.sink = SinkBatch(batch, str(end))
            self.step(kill, 1)
        if self.sink.batch == batch:
            self.written = self.sink
            self.step(kill, 2)
        self.commits.add(batch)
        self.step(kill, 3)
        return True

    @staticmethod
    def step(kill, step):
        if kill == step:
            raise Killed


ACTIONS = st.one_of(
    st.tuples(st.just("produce"), st.integers(1, 4)),
    st.tuples(st.just("batch"), st.integers(0, 5)),
    st.tuples(st.just("copy"), st.integers(0, 2)),
    st.tuples(st.just("restore"), st.integers(0, 2)),
    st.tuples(st.just("copy sink"), st.integers(0, 2)),
    st.tuples(st.just("restore sink"), st.integers(0, 2)),
    st.tuples(st.just("remove"), st.just(0)),
    st.tuples(st.just("remove sink"), st.just(0)),
)


@settings(max_examples=500, deadline=None)
@given(st.lists(ACTIONS, max_size=30), st.booleans())
def test_no_order_of_crash_restore_and_removal_loses_or_repeats_a_row(actions, sink_too):
    world, copies, sink_copies = World(), {}, {}
    for action, number in actions:
        if action == "produce":
            world.records += number
        elif action == "copy":
            copies[number] = world.checkpoint()
        elif action == "restore" and number in copies:
            world.plans, world.commits, world.written = copy.deepcopy(copies[number])
        elif action == "remove":
            world.plans, world.commits, world.written = {}, set(), SinkBatch()
        elif action == "batch":
            try:
                if not world.run_batch(number):
                    return
            except Killed:
                pass
        elif sink_too and action == "copy sink":
            sink_copies[number] = (list(world.rows), world.sink)
        elif sink_too and action == "restore sink" and number in sink_copies:
            world.rows, world.sink = list(sink_copies[number][0]), sink_copies[number][1]
        elif sink_too and action == "remove sink":
            world.rows, world.sink = [], SinkBatch()
        done = max(world.commits, default=-1)
        # While the sink is as the checkpoint left it, it has every row up to the last committed batch once.
        if action == "batch" and done >= 0:
            rows = sorted(world.rows)
            assert len(rows) == len(set(rows)), f"doubled: {rows}"
            expected = world.output(0, world.plans[done])
            assert set(expected) <= set(rows), f"lost: {sorted(set(expected) - set(rows))}"
