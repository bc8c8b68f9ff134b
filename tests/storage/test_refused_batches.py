"""What was sent behind a refused batch is refused alike until that one comes again, so that no producer sees a gap."""

import pytest

from klamm.model.errors import ErrorCode, KlammError, StorageFailure
from klamm.records.batch import BatchView
from klamm.storage.producer_state import MAX_SEQUENCE
from klamm.storage.refused_batches import MEMORY_MS, PRODUCERS_MAX, RefusedBatches

from .conftest import NOW, FullSoon, Home, from_producer, no_space, read_all

FULL = ErrorCode.KAFKA_STORAGE_ERROR
FEW = ErrorCode.NOT_ENOUGH_REPLICAS
GAP = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def answer(log, sequence: int, *, now: int = NOW, **fields) -> ErrorCode | int:
    """Where a batch went, or why it did not."""
    try:
        return log.append_as_leader(from_producer(sequence, **fields), 0, now)
    except KlammError as error:
        return error.code


def fill(home: Home, log, *sequences: int) -> None:
    """A turn whose write finds no room."""
    home.disk.fail["pwritev"] = no_space
    for sequence in sequences:
        log.stage(from_producer(sequence), 0, NOW)
    with pytest.raises(StorageFailure):
        log.write_staged()
    home.disk.fail.clear()


@pytest.mark.parametrize("begins", [0, 1], ids=["unknown producer", "known producer"])
def test_what_follows_a_batch_that_found_no_room_waits_for_it(home: Home, begins: int):
    log = home.open()
    for sequence in range(begins):
        answer(log, sequence)
    fill(home, log, begins, begins + 1)
    assert [answer(log, begins + ahead) for ahead in (2, 3, 1)] == [FULL] * 3
    assert [answer(log, sequence) for sequence in range(begins, begins + 4)] == list(range(begins, begins + 4))
    assert [offset for offset, _ in read_all(log)] == list(range(begins + 4))


def test_a_later_one_may_be_refused_too(home: Home):
    """A batch that was stored since then is not waited for any more."""
    log = home.open()
    answer(log, 0)
    for first in (1, 3, 5):
        fill(home, log, first)
        assert [answer(log, first + 1), answer(log, first), answer(log, first + 1)] == [FULL, first, first + 1]


def test_it_may_fail_again_and_still_nothing_overtakes_it(home: Home):
    log = home.open()
    for _ in range(3):
        fill(home, log, 0)
        assert answer(log, 1) is FULL
    assert [answer(log, sequence) for sequence in (0, 1)] == [0, 1]


def test_a_group_that_is_taken_back_after_a_roll_begins_with_its_first(home: Home):
    log = home.open(segment_bytes=500)
    log.append_as_leader(from_producer(0), 0, NOW)
    writes = home.disk.fail["pwritev"] = FullSoon(after=2)
    for sequence in range(1, 20):
        log.stage(from_producer(sequence), 0, NOW)
    with pytest.raises(StorageFailure):
        log.write_staged()
    home.disk.fail.clear()
    assert writes.calls == 3
    assert answer(log, 20) is FULL
    assert [answer(log, sequence) for sequence in (1, 2)] == [1, 2]


def test_a_refusal_is_told_as_it_was(home: Home):
    log = home.open()
    log.note_refused(from_producer(0), FEW, NOW)
    assert answer(log, 1) is FEW
    assert [answer(log, sequence) for sequence in (0, 1)] == [0, 1]


def test_repeating_what_is_there_is_not_waiting_for_anything(home: Home):
    """A batch that was appended and is refused when it comes again, because too few are in sync by now."""
    log = home.open()
    answer(log, 0)
    log.note_refused(from_producer(0), FEW, NOW)
    assert answer(log, 1) == 1


def test_others_and_newer_epochs_are_not_held_up(home: Home):
    log = home.open()
    answer(log, 0)
    fill(home, log, 1)
    assert answer(log, 5, producer_id=8) == 1
    assert answer(log, 0, epoch=1) == 2
    assert answer(log, 2) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_producer_that_never_sends_it_again_is_told_of_the_gap(home: Home):
    log = home.open()
    answer(log, 0)
    fill(home, log, 1)
    assert answer(log, 2, now=NOW + MEMORY_MS) is FULL
    assert answer(log, 2, now=NOW + MEMORY_MS + 1) is GAP
    assert answer(log, 2) is GAP, "and that is the end of it"


def test_a_clock_that_was_looked_at_before_does_not_matter(home: Home):
    """The moment of a turn is taken when it begins, and may lie before the one a refusal was noted at."""
    log = home.open()
    fill(home, log, 0)
    assert answer(log, 1, now=NOW - 5) is FULL
    assert answer(log, 1, now=NOW - MEMORY_MS - 1) == 0, "an hour back is another time"


def test_what_lies_behind_is_judged_as_ever(home: Home):
    log = home.open()
    for sequence in range(10):
        answer(log, sequence)
    fill(home, log, 10)
    assert answer(log, 3) is GAP
    assert answer(log, 9) == 9, "a duplicate"


def test_what_came_by_another_way_is_not_waited_for(home: Home):
    """The leader moved, took it, and the log got it as a follower."""
    log = home.open()
    log.note_refused(from_producer(0), ErrorCode.NOT_LEADER_OR_FOLLOWER, NOW)
    log.append_as_follower(from_producer(0, base_offset=0))
    assert answer(log, 1) == 1


def test_sequences_wrap(home: Home):
    log = home.open()
    answer(log, MAX_SEQUENCE - 1)
    fill(home, log, MAX_SEQUENCE)
    assert [answer(log, sequence) for sequence in (0, 1)] == [FULL, FULL]
    assert [answer(log, sequence) for sequence in (MAX_SEQUENCE, 0)] == [1, 2]


def test_only_so_many_producers_are_remembered():
    refusals = RefusedBatches()
    for producer_id in range(PRODUCERS_MAX + 10):
        refusals.note(from_producer(0, producer_id=producer_id), {}, FULL, NOW)
    assert len(refusals) == PRODUCERS_MAX
    refusals.check(BatchView(from_producer(1, producer_id=0)), {}, NOW)
    with pytest.raises(KlammError):
        refusals.check(BatchView(from_producer(1, producer_id=PRODUCERS_MAX)), {}, NOW)


@pytest.mark.parametrize(
    "data", [b"", b"x" * 30, bytes(from_producer(-1, producer_id=-1))], ids=["nothing", "a bit", "no producer"]
)
def test_what_has_no_sequence_is_not_remembered(data: bytes):
    refusals = RefusedBatches()
    refusals.note(memoryview(data), {}, FULL, NOW)
    assert len(refusals) == 0


def test_while_a_log_settles_a_producer_begins_at_its_beginning(home: Home):
    """After that it may begin anywhere, as in Kafka: what came before may have been deleted."""
    log = home.open()
    log.producers.gaps_refused_until_ms = NOW + 1
    assert [answer(log, sequence) for sequence in (2, 1)] == [FEW] * 2
    assert [answer(log, sequence) for sequence in range(4)] == list(range(4))
    assert answer(log, 7, producer_id=2) == FEW
    assert answer(log, 7, producer_id=2, now=NOW + 1) == 4
    assert answer(log, 0, producer_id=3) == 5


def test_while_a_log_settles_what_is_missing_may_still_come(home: Home):
    """librdkafka takes OUT_OF_ORDER for the end of its epoch and sends everything again, to all partitions."""
    log = home.open()
    assert [answer(log, sequence) for sequence in range(2)] == [0, 1]
    log.producers.gaps_refused_until_ms = NOW + 1
    assert [answer(log, sequence) for sequence in (4, 3)] == [FEW] * 2
    assert [answer(log, sequence) for sequence in range(1, 4)] == [1, 2, 3]
    assert answer(log, 5) == FEW
    assert answer(log, 5, now=NOW + 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
