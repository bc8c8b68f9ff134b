"""A batch is in the topic exactly once, wherever tasks and drivers are killed: at any request, before and after it.

What breaks these: ending transactions before the decision is written down, writing again what is decided, taking over
the transactional id of a decided transaction, forgetting what was left open.
"""

import asyncio
import os

import pytest

import klamm
from klamm.client import Admin
from klamm.pipeline import SinkError
from klamm.pipeline.core.batch_ledger import LedgerError
from klamm.pipeline.task_writer import WriteId, abort_batch
from klamm.testing import unique
from pipeline.cuts import commit, decide, dies, options, plan, run_batch, write, written

TASKS = [["a1", "a2", "a3"], ["b1", "b2"], []]
EVERYTHING = sorted(value for task in TASKS for value in task)
CUTS_MAX = 60
STRIDE = 1 if os.environ.get("KLAMM_CAMPAIGN") == "all" else 4
"""Every fourth request is cut in the usual run, every one with KLAMM_CAMPAIGN=all."""


def values(broker, topic):
    table = klamm.read_topic(topic, bootstrap=broker.bootstrap, timeout_s=60)
    return sorted(row.decode() for row in table["value"].to_pylist())


def open_transactions(broker, sink):
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        transactions = admin.list_transactions(states=["Ongoing"])
    return [listing.transactional_id for listing in transactions if listing.transactional_id.startswith(sink)]


def replay(broker, topic, sink, batch=0, tasks=TASKS):
    asyncio.run(run_batch(broker.bootstrap, topic, sink, batch, tasks))


@pytest.fixture
def sink():
    return unique("sink")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("after", [False, True], ids=["before-sending", "after-the-answer"])
def test_a_driver_killed_at_any_request_of_its_commit(klamm_broker, after):
    topic = klamm_broker.topic("killed", partitions=2)
    target = klamm_broker.bootstrap, topic
    expected = []
    for cut in range(1 + after, CUTS_MAX, STRIDE):
        sink = unique("sink")
        tasks = [[f"{cut}-{value}" for value in task] for task in TASKS]
        transactions = [asyncio.run(write(*target, WriteId(sink, 0, index), rows)) for index, rows in enumerate(tasks)]
        killed = dies(cut, after, commit, *target, sink, 0, transactions, plan(sink, 0))
        asyncio.run(run_batch(*target, sink, 0, tasks))
        assert written(sink, 0), f"cut {cut}"
        expected += [value for task in tasks for value in task]
        assert not open_transactions(klamm_broker, sink), f"cut {cut}"
        if not killed:
            break
    assert not killed
    assert cut > 10
    assert values(klamm_broker, topic) == sorted(expected)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("after", [False, True], ids=["before-sending", "after-the-answer"])
def test_a_task_killed_at_any_request_and_tried_again(klamm_broker, after):
    topic = klamm_broker.topic("task", partitions=2)
    target = klamm_broker.bootstrap, topic
    expected = []
    for cut in range(1 + after, CUTS_MAX, STRIDE):
        sink = unique("sink")
        rows = [f"{cut}-{number}" for number in range(5)]
        killed = dies(cut, after, write, *target, WriteId(sink, 3, 0, 0), rows)
        transaction = asyncio.run(write(*target, WriteId(sink, 3, 0, 1), rows))
        asyncio.run(commit(*target, sink, 3, [transaction], plan(sink, 3)))
        expected += rows
        assert not open_transactions(klamm_broker, sink), f"cut {cut}"
        if not killed:
            break
    assert not killed
    assert values(klamm_broker, topic) == sorted(expected)


def test_a_commit_that_is_done_is_not_done_again(klamm_broker, sink):
    """The commit log of the query is lost after the commit: Spark replays the batch."""
    topic = klamm_broker.topic("replayed")
    for _ in range(3):
        replay(klamm_broker, topic, sink)
    assert values(klamm_broker, topic) == EVERYTHING


def test_a_checkpoint_that_went_back_several_batches(klamm_broker, sink):
    topic = klamm_broker.topic("rolled-back")
    for batch in (0, 1, 2, 2, 3):
        replay(klamm_broker, topic, sink, batch, [[f"batch {batch}"], [f"also {batch}"]])
        if batch == 2:
            with pytest.raises(LedgerError, match="it was set back"):
                replay(klamm_broker, topic, sink, 1, [["batch 1"], ["also 1"]])
    assert values(klamm_broker, topic) == sorted(
        [f"{word} {batch}" for batch in range(4) for word in ("batch", "also")]
    )


def test_a_batch_without_rows_decides_nothing(klamm_broker, sink):
    topic = klamm_broker.topic("empty")
    replay(klamm_broker, topic, sink, 0)
    replay(klamm_broker, topic, sink, 1, [[], []])
    replay(klamm_broker, topic, sink, 0)
    replay(klamm_broker, topic, sink, 2, [["more"]])
    assert values(klamm_broker, topic) == sorted([*EVERYTHING, "more"])


def leave_open(broker, topic, sink, tasks=TASKS, attempt=0):
    """Return the transactions that tasks leave open."""
    return [
        asyncio.run(write(broker.bootstrap, topic, WriteId(sink, 0, index, attempt), rows))
        for index, rows in enumerate(tasks)
    ]


def fence(broker, name):
    """End a transaction as its timeout does."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.fence_producers([name])


@pytest.mark.parametrize("ended", [0, 1, 2])
def test_a_decided_batch_is_completed_even_if_its_tasks_compute_something_else(klamm_broker, sink, ended):
    """Restarted in time, the transactions are still open: they are ended, whatever the replay has written."""
    topic = klamm_broker.topic("decided")
    transactions = leave_open(klamm_broker, topic, sink)
    asyncio.run(decide(klamm_broker.bootstrap, topic, sink, 0, transactions, ended))
    replay(klamm_broker, topic, sink, 0, [["other"], ["rows"], ["and more"], ["tasks"]])
    assert values(klamm_broker, topic) == EVERYTHING
    assert not open_transactions(klamm_broker, sink)


def test_a_lost_transaction_of_a_decided_batch_is_made_good_by_the_same_rows(klamm_broker, sink):
    """The driver was away for longer than transaction.timeout.ms."""
    topic = klamm_broker.topic("lost")
    transactions = leave_open(klamm_broker, topic, sink)
    asyncio.run(decide(klamm_broker.bootstrap, topic, sink, 0, transactions, 1))
    fence(klamm_broker, transactions[1].prepared.transactional_id)
    replay(klamm_broker, topic, sink)
    assert values(klamm_broker, topic) == EVERYTHING


def test_a_lost_transaction_is_not_made_good_by_other_rows(klamm_broker, sink):
    topic = klamm_broker.topic("lost")
    transactions = leave_open(klamm_broker, topic, sink)
    asyncio.run(decide(klamm_broker.bootstrap, topic, sink, 0, transactions, 1))
    fence(klamm_broker, transactions[1].prepared.transactional_id)
    with pytest.raises(SinkError, match="half committed"):
        replay(klamm_broker, topic, sink, 0, [TASKS[0], ["something else"], []])
    assert values(klamm_broker, topic) == sorted(TASKS[0])


def test_a_committed_transaction_whose_id_went_on_is_not_taken_for_lost(klamm_broker, sink):
    """Epochs tell nothing any more; what the transaction committed beside its rows does."""
    topic = klamm_broker.topic("went-on")
    transactions = leave_open(klamm_broker, topic, sink)
    asyncio.run(decide(klamm_broker.bootstrap, topic, sink, 0, transactions, 2))
    for transaction in transactions[:2]:
        fence(klamm_broker, transaction.prepared.transactional_id)
    replay(klamm_broker, topic, sink)
    assert values(klamm_broker, topic) == EVERYTHING


def test_of_two_speculative_attempts_one_counts(klamm_broker, sink):
    topic = klamm_broker.topic("speculative")
    slow = leave_open(klamm_broker, topic, sink, attempt=0)
    quick = leave_open(klamm_broker, topic, sink, attempt=1)
    asyncio.run(commit(klamm_broker.bootstrap, topic, sink, 0, [slow[0], quick[1]], plan(sink, 0)))
    assert values(klamm_broker, topic) == EVERYTHING
    assert not open_transactions(klamm_broker, sink)


@pytest.mark.parametrize("attempt", [0, 1], ids=["same-ids", "other-ids"])
def test_an_old_driver_that_comes_back_commits_nothing(klamm_broker, sink, attempt):
    """A driver that was thought dead: another has run the batch meanwhile."""
    topic = klamm_broker.topic("two-drivers")
    old = leave_open(klamm_broker, topic, sink, attempt=attempt)
    replay(klamm_broker, topic, sink)
    asyncio.run(commit(klamm_broker.bootstrap, topic, sink, 0, old, plan(sink, 0)))
    assert values(klamm_broker, topic) == EVERYTHING


def test_two_drivers_that_commit_the_same_batch(klamm_broker, sink):
    """The old one has decided and ended half; the new one, whose tasks ran before that, comes to its commit."""
    topic = klamm_broker.topic("two-drivers")
    old = leave_open(klamm_broker, topic, sink, attempt=0)
    new = leave_open(klamm_broker, topic, sink, attempt=1)
    asyncio.run(decide(klamm_broker.bootstrap, topic, sink, 0, old, 1))
    asyncio.run(commit(klamm_broker.bootstrap, topic, sink, 0, new, plan(sink, 0)))
    assert values(klamm_broker, topic) == EVERYTHING
    assert not open_transactions(klamm_broker, sink)


def test_an_abort_lets_readers_go_on_at_once(klamm_broker, sink):
    topic = klamm_broker.topic("aborted")
    leave_open(klamm_broker, topic, sink)
    assert open_transactions(klamm_broker, sink)
    asyncio.run(abort_batch(options(klamm_broker.bootstrap, topic), WriteId(sink, 0)))
    assert not open_transactions(klamm_broker, sink)
    assert values(klamm_broker, topic) == []
    replay(klamm_broker, topic, sink)
    assert values(klamm_broker, topic) == EVERYTHING


def test_an_abort_after_a_commit_that_failed_halfway_undoes_nothing(klamm_broker, sink):
    topic = klamm_broker.topic("half")
    transactions = leave_open(klamm_broker, topic, sink)
    asyncio.run(decide(klamm_broker.bootstrap, topic, sink, 0, transactions, 1))
    asyncio.run(abort_batch(options(klamm_broker.bootstrap, topic), WriteId(sink, 0)))
    replay(klamm_broker, topic, sink, 0, [["other"], ["rows"]])
    assert values(klamm_broker, topic) == EVERYTHING


def test_a_broker_killed_between_writing_and_committing(klamm_own_broker, sink):
    broker = klamm_own_broker
    topic = broker.topic("broker-kill")
    transactions = leave_open(broker, topic, sink)
    broker.kill()
    broker.start()
    asyncio.run(commit(broker.bootstrap, topic, sink, 0, transactions, plan(sink, 0)))
    assert values(broker, topic) == EVERYTHING


def test_a_broker_killed_in_the_middle_of_a_commit(klamm_own_broker, sink):
    broker = klamm_own_broker
    topic = broker.topic("broker-kill")
    transactions = leave_open(broker, topic, sink)
    asyncio.run(decide(broker.bootstrap, topic, sink, 0, transactions, 1))
    broker.kill()
    broker.start()
    replay(broker, topic, sink)
    replay(broker, topic, sink)
    assert values(broker, topic) == EVERYTHING
