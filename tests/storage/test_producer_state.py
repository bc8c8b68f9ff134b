"""The rules of idempotent and transactional producers, as a table and as stories."""

import pytest

from klamm.model.errors import ErrorCode, KlammError
from klamm.records.batch import BatchView
from klamm.records.control import build_end_txn_marker
from klamm.storage.producer_state import MAX_SEQUENCE, Origin, ProducerStates, Undo

from .conftest import NOW, PRODUCER, from_producer


def states(*views: memoryview) -> ProducerStates:
    made = ProducerStates("t-0")
    for view in views:
        made.append(BatchView(view), Origin.CLIENT)
    return made


def marker(offset: int, *, producer_id: int = 7, epoch: int = 0, committed: bool = True, coordinator_epoch: int = 0):
    return BatchView(
        build_end_txn_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=NOW,
            base_offset=offset,
        )
    )


OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(
    ("known", "sent", "answer"),
    [
        # known: (epoch, sequence, count) of the batch before; sent: (epoch, sequence)
        pytest.param(None, (0, 0), None, id="unknown producer from 0"),
        pytest.param(None, (3, 17), None, id="unknown producer from anywhere"),
        pytest.param((0, 0, 5), (0, 5), None, id="the next sequence"),
        pytest.param((0, 0, 5), (0, 6), OUT_OF_ORDER, id="a gap"),
        pytest.param((0, 0, 5), (0, 3), OUT_OF_ORDER, id="an overlap that is no duplicate"),
        pytest.param((0, 50, 5), (0, 40), OUT_OF_ORDER, id="long past"),
        pytest.param((1, 0, 5), (0, 5), ErrorCode.INVALID_PRODUCER_EPOCH, id="an older epoch"),
        pytest.param((1, 0, 5), (2, 0), None, id="a new epoch from 0"),
        pytest.param((1, 0, 5), (2, 5), OUT_OF_ORDER, id="a new epoch that goes on"),
        pytest.param((0, MAX_SEQUENCE - 4, 5), (0, 0), None, id="after the last sequence comes 0"),
        pytest.param((0, MAX_SEQUENCE - 1, 4), (0, 1), OUT_OF_ORDER, id="repeats the end of a batch that wrapped"),
        pytest.param((0, MAX_SEQUENCE - 1, 4), (0, 2), None, id="follows a batch that wrapped inside"),
    ],
)
def test_sequence_rules(known, sent, answer):
    made = states() if known is None else states(from_producer(known[1], known[2], epoch=known[0], base_offset=0))
    view = BatchView(from_producer(sent[1], epoch=sent[0], base_offset=100))
    before = {pid: entry.state() for pid, entry in made.entries.items()}
    if answer is None:
        made.append(view, Origin.CLIENT)
        assert made.entries[PRODUCER].last_offset == 100
    else:
        with pytest.raises(KlammError) as refused:
            made.append(view, Origin.CLIENT)
        assert refused.value.code is answer
        assert {pid: entry.state() for pid, entry in made.entries.items()} == before


def test_the_last_five_batches_are_known_as_duplicates_and_the_sixth_is_not():
    made = states(*[from_producer(i * 2, 2, base_offset=100 + i * 2) for i in range(6)])
    assert made.find_duplicate(7, 0, 0, 1) is None
    for i in range(1, 6):
        assert made.find_duplicate(7, 0, i * 2, i * 2 + 1).first_offset == 100 + i * 2
    assert made.find_duplicate(7, 0, 2, 4) is None, "other sequences"
    assert made.find_duplicate(7, 1, 2, 3) is None, "another epoch"
    assert made.find_duplicate(8, 0, 2, 3) is None, "another producer"


def test_a_new_epoch_forgets_the_batches_of_the_old():
    made = states(from_producer(0, base_offset=0), from_producer(0, epoch=1, base_offset=1))
    assert len(made.entries[PRODUCER].batches) == 1


def test_coordinators_write_without_sequences_but_not_with_an_old_epoch():
    made = states(from_producer(0, epoch=5, base_offset=0))
    made.append(BatchView(from_producer(-1, epoch=5, base_offset=1)), Origin.COORDINATOR)
    with pytest.raises(KlammError) as refused:
        made.append(BatchView(from_producer(-1, epoch=4, base_offset=2)), Origin.COORDINATOR)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_replication_is_taken_at_its_word():
    made = states(from_producer(0, epoch=5, base_offset=0))
    made.append(BatchView(from_producer(99, epoch=4, base_offset=1)), Origin.REPLICATION)
    assert made.entries[PRODUCER].epoch == 4


def test_an_open_transaction_holds_back_the_first_unstable_offset_until_its_marker_is_replicated():
    made = states(from_producer(0, base_offset=10, transactional=True))
    made.append(BatchView(from_producer(0, producer_id=8, base_offset=11, transactional=True)), Origin.CLIENT)
    assert made.first_unstable_offset == 10
    assert made.append(marker(12), Origin.COORDINATOR) is None
    assert made.first_unstable_offset == 10, "ended, but the marker is not replicated"
    made.on_high_watermark(12)
    assert made.first_unstable_offset == 10, "the marker itself lies at 12"
    made.on_high_watermark(13)
    assert made.first_unstable_offset == 11
    aborted = made.append(marker(13, producer_id=8, committed=False), Origin.COORDINATOR)
    assert aborted == (8, 11, 13, 14)
    made.on_high_watermark(14)
    assert made.first_unstable_offset is None
    assert made.is_stable


def test_an_abort_notes_the_last_stable_offset_that_other_transactions_leave():
    made = states(from_producer(0, base_offset=10, transactional=True))
    made.append(BatchView(from_producer(0, producer_id=8, base_offset=11, transactional=True)), Origin.CLIENT)
    assert made.append(marker(12, producer_id=8, committed=False), Origin.COORDINATOR).last_stable_offset == 10


def test_a_marker_without_a_transaction_ends_nothing():
    made = states()
    assert made.append(marker(5, committed=False), Origin.COORDINATOR) is None
    assert made.is_stable
    assert made.entries[PRODUCER].coordinator_epoch == 0


def test_writing_outside_an_open_transaction_is_refused():
    made = states(from_producer(0, base_offset=0, transactional=True))
    with pytest.raises(KlammError) as refused:
        made.append(BatchView(from_producer(1, base_offset=1)), Origin.CLIENT)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize(
    ("version", "epoch", "open_", "coordinator_epoch", "answer"),
    [
        (0, 4, True, 3, ErrorCode.INVALID_PRODUCER_EPOCH),
        (0, 5, True, 3, None),
        (0, 5, True, 2, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        (2, 5, True, 3, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, 6, True, 3, None),
        (2, 5, False, 3, None),
        (2, 4, False, 3, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_marker_rules(version, epoch, open_, coordinator_epoch, answer):
    made = states(from_producer(0, epoch=5, base_offset=0, transactional=True))
    made.append(marker(1, epoch=5, coordinator_epoch=3), Origin.COORDINATOR)
    if open_:
        made.append(BatchView(from_producer(1, epoch=5, base_offset=2, transactional=True)), Origin.CLIENT)
    view = marker(3, epoch=epoch, coordinator_epoch=coordinator_epoch)
    if answer is None:
        made.append(view, Origin.COORDINATOR, transaction_version=version)
        assert made.entries[PRODUCER].txn_first_offset == -1
    else:
        with pytest.raises(KlammError) as refused:
            made.append(view, Origin.COORDINATOR, transaction_version=version)
        assert refused.value.code is answer


def test_a_marker_with_a_bumped_epoch_lets_the_next_transaction_begin_with_0():
    made = states(from_producer(0, 3, base_offset=0, transactional=True))
    made.append(marker(3, epoch=1), Origin.COORDINATOR, transaction_version=2)
    made.append(BatchView(from_producer(0, epoch=1, base_offset=4, transactional=True)), Origin.CLIENT)
    assert made.entries[PRODUCER].txn_first_offset == 4


def test_an_undo_list_takes_everything_back():
    made = states(from_producer(0, base_offset=0), from_producer(0, producer_id=8, base_offset=1, transactional=True))
    before = {pid: entry.state() for pid, entry in made.entries.items()}
    undo: Undo = []
    made.append(BatchView(from_producer(1, base_offset=2)), Origin.CLIENT, undo)
    made.append(BatchView(from_producer(2, base_offset=3, transactional=True)), Origin.CLIENT, undo)
    made.append(marker(4, producer_id=8, committed=False), Origin.COORDINATOR, undo)
    made.append(BatchView(from_producer(0, producer_id=9, base_offset=5, transactional=True)), Origin.CLIENT, undo)
    made.rollback(undo, 2)
    assert {pid: entry.state() for pid, entry in made.entries.items()} == before
    assert made.first_unstable_offset == 1
    assert made.open_transactions() == {1: 8}


def test_silent_producers_expire_unless_a_transaction_is_open():
    made = states(from_producer(0, base_offset=0), from_producer(0, producer_id=8, base_offset=1, transactional=True))
    made.remove_expired(NOW + 999, 1000)
    assert set(made.entries) == {7, 8}
    made.remove_expired(NOW + 1000, 1000)
    assert set(made.entries) == {8}
