"""What makes many transactions one batch, and what a replay makes of it: decisions without a broker."""

import pytest

from klamm.client.producer.prepared_transaction import PreparedTransaction
from klamm.pipeline.core.sink_commits import (
    COMMITS_PARTITIONS,
    CommitStep,
    SinkDecision,
    SinkError,
    SinkState,
    TaskTransaction,
    locate_task_offset,
    next_step,
    resume_batch,
)


def transaction(task, rows=10, size=100, epoch=0, attempt=0):
    return TaskTransaction(task, PreparedTransaction(f"s.{task}.{attempt}", 100 + task, epoch, 2), rows, size, 5)


def test_a_decision_comes_back_as_it_was():
    decision = SinkDecision("s", 7, (transaction(0), transaction(3, attempt=2)))
    assert SinkDecision.decode(decision.encode()) == decision
    assert decision.find_transaction(3) == transaction(3, attempt=2)
    assert decision.find_transaction(1) is None


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"sink":"s","batch":1,"tasks":[[1]]}'])
def test_what_is_no_decision_is_refused(data):
    with pytest.raises(SinkError):
        SinkDecision.decode(data)


def test_states_as_groups_keep_them():
    for state in (SinkState(7, done=False, decision_offset=3), SinkState(0, done=True, decision_offset=0)):
        assert SinkState.parse(state.decision_offset, state.text) == state
    with pytest.raises(SinkError, match="another application"):
        SinkState.parse(3, "")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (SinkState(), CommitStep.BEGIN),
        (SinkState(6, done=True), CommitStep.BEGIN),
        (SinkState(6, done=False), CommitStep.BEGIN),  # Spark begins 7 only after the commit of 6 has returned
        (SinkState(7, done=False), CommitStep.RESUME),
        (SinkState(7, done=True), CommitStep.SKIP),
        (SinkState(9, done=False), CommitStep.SKIP),
    ],
)
def test_where_batch_seven_stands(state, expected):
    assert next_step(state, 7) is expected


def test_a_replay_that_lost_nothing_needs_none_of_what_was_rewritten():
    resumption = resume_batch(SinkDecision("s", 7, (transaction(0), transaction(1))), [], [transaction(0, epoch=4)])
    assert resumption.decision is None
    assert resumption.unused == (transaction(0, epoch=4),)


def test_a_lost_transaction_is_replaced_by_the_same_rows():
    resumption = resume_batch(
        SinkDecision("s", 7, (transaction(0), transaction(1))), [1], [transaction(0, epoch=4), transaction(1, epoch=4)]
    )
    assert resumption.decision == SinkDecision("s", 7, (transaction(1, epoch=4),))
    assert resumption.unused == (transaction(0, epoch=4),)


@pytest.mark.parametrize("again", [[], [transaction(1, rows=9)], [transaction(1, size=99)], [transaction(0)]])
def test_other_rows_cannot_replace_a_lost_transaction(again):
    with pytest.raises(SinkError, match="half committed"):
        resume_batch(SinkDecision("s", 7, (transaction(0), transaction(1))), [1], again)


def test_every_task_has_an_offset_of_its_own():
    locations = {locate_task_offset("s", task) for task in range(5 * COMMITS_PARTITIONS)}
    assert len(locations) == 5 * COMMITS_PARTITIONS
    assert {partition for _, partition in locations} == set(range(COMMITS_PARTITIONS))
