"""Which markers end a question about a transaction, and which belong to the transaction before."""

import pytest

from klamm.coordinator.transactions.rules import ProducerIdAndEpoch
from klamm.server.coordinators import transaction_guards
from klamm.server.coordinators.transaction_guards import GuardKey, TransactionGuards

KEY = GuardKey(b"t" * 16, 0, 7)


@pytest.mark.parametrize(
    ("marker_epoch", "version", "holds"),
    [
        (4, 0, True),
        (4, 2, True),
        (5, 0, False),
        (5, 1, False),
        (5, 2, True),
        (6, 0, False),
        (6, 2, False),
    ],
)
def test_a_marker_ends_the_questions_of_its_own_transaction_alone(marker_epoch, version, holds):
    guards = TransactionGuards()
    guard = guards.take(KEY, ProducerIdAndEpoch(7, 5), 0, leader_epoch=1)
    guards.on_marker(KEY, marker_epoch, version)
    assert guards.holds(KEY, guard) is holds


def test_a_marker_of_another_producer_or_partition_changes_nothing():
    guards = TransactionGuards()
    guard = guards.take(KEY, ProducerIdAndEpoch(7, 5), 0, 1)
    guards.on_marker(KEY._replace(producer_id=8), 6, 2)
    guards.on_marker(KEY._replace(partition=1), 6, 2)
    assert guards.holds(KEY, guard)


def test_questions_of_one_transaction_share_a_guard_and_its_lowest_sequence():
    guards = TransactionGuards()
    guard = guards.take(KEY, ProducerIdAndEpoch(7, 5), 3, 1)
    assert guards.take(KEY, ProducerIdAndEpoch(7, 5), 1, 1) is guard
    assert guards.take(KEY, ProducerIdAndEpoch(7, 5), 9, 1) is guard
    assert guard.lowest_sequence == 1
    older = guards.take(KEY, ProducerIdAndEpoch(7, 4), 0, 1)
    assert (older, guard.lowest_sequence) == (guard, 1), "an epoch that is over lowers nothing"


def test_the_next_transaction_has_a_guard_of_its_own():
    guards = TransactionGuards()
    guard = guards.take(KEY, ProducerIdAndEpoch(7, 5), 3, 1)
    following = guards.take(KEY, ProducerIdAndEpoch(7, 6), 0, 1)
    assert not guards.holds(KEY, guard)
    assert guards.holds(KEY, following)


def test_a_new_leader_epoch_has_a_guard_of_its_own():
    """Another leader may have written the end of the transaction, and no marker came by here."""
    guards = TransactionGuards()
    guard = guards.take(KEY, ProducerIdAndEpoch(7, 5), 3, 1)
    following = guards.take(KEY, ProducerIdAndEpoch(7, 5), 8, 3)
    assert not guards.holds(KEY, guard)
    assert following.lowest_sequence == 8, "batches before it were written under another leader"
    assert guards.holds(KEY, following)


def test_a_written_transaction_needs_no_guard():
    guards = TransactionGuards()
    guard = guards.take(KEY, ProducerIdAndEpoch(7, 5), 0, 1)
    guards.release(KEY)
    assert not guards.holds(KEY, guard)
    assert len(guards) == 0


def test_producers_that_asked_and_never_wrote_are_forgotten(monkeypatch):
    monkeypatch.setattr(transaction_guards, "GUARDS_MAX", 2)
    guards = TransactionGuards()
    taken = [guards.take(KEY._replace(producer_id=i), ProducerIdAndEpoch(i, 0), 0, 1) for i in range(3)]
    assert [guards.holds(KEY._replace(producer_id=i), guard) for i, guard in enumerate(taken)] == [False, True, True]
