"""The times of records of another node's partition, found by lookups in its time index."""

import os
import random
from bisect import bisect_left

import pytest

from klamm.server.metrics.lag.record_times import TOLERANCE_MS, TOLERANCE_SHARE, UNKNOWN, RecordTimes

SEED = int(os.environ.get("KLAMM_SEED", random.SystemRandom().randrange(2**32)))
NOW = 1_800_000_000_000
STEPS_MAX = 24


class Partition:
    """A log with the given times, which answers lookups as ListOffsets does."""

    def __init__(self, times):
        self.times = sorted(times)
        self.lookups = 0

    def look_up(self, records, target_ms):
        self.lookups += 1
        offset = bisect_left(self.times, target_ms)
        if offset < len(self.times):
            records.add(target_ms, offset, self.times[offset])
        else:
            records.add(target_ms, -1, -1)

    def narrow(self, records, offset, now_ms=NOW):
        for step in range(STEPS_MAX):
            target_ms = records.next_lookup(offset, now_ms, step)
            if target_ms is None:
                return
            self.look_up(records, target_ms)
        raise AssertionError(f"not within {STEPS_MAX} lookups at {offset}")


def spread_times(kind, generator):
    day = 86_400_000
    if kind == "even":
        return [NOW - 7 * day + number * 60_000 for number in range(10_000)]
    if kind == "bursts":
        return [NOW - burst * day + generator.randrange(1_000) for burst in range(1, 8) for _ in range(1_000)]
    if kind == "once":
        return [NOW - 3 * day] * 5_000
    return [NOW - int(2 ** generator.uniform(5, 29)) for _ in range(5_000)]


@pytest.mark.parametrize("kind", ["even", "bursts", "once", "recent"])
def test_a_few_lookups_find_the_time_of_any_record(kind):
    print(f"KLAMM_SEED={SEED}")
    generator = random.Random(SEED)
    partition = Partition(spread_times(kind, generator))
    for _ in range(200):
        records = RecordTimes()
        records.set_end(len(partition.times), NOW)
        offset = generator.randrange(len(partition.times))
        partition.narrow(records, offset)
        time_ms = partition.times[offset]
        assert abs(records.estimate(offset) - time_ms) <= max(TOLERANCE_MS, TOLERANCE_SHARE * (NOW - time_ms) * 1.1)
    assert partition.lookups / 200 <= 14


def test_nothing_is_known_before_the_first_lookup():
    records = RecordTimes()
    records.set_end(100, NOW)
    assert records.estimate(5) == UNKNOWN
    assert records.next_lookup(5, NOW, 0) == 0


def test_a_group_that_moves_on_has_a_time_without_another_lookup():
    partition = Partition([NOW - 100_000 + number * 1_000 for number in range(100)])
    records = RecordTimes()
    records.set_end(100, NOW)
    partition.narrow(records, 20)
    for offset in range(20, 100):
        assert abs(records.estimate(offset) - partition.times[offset]) <= 3_000


def test_a_group_behind_the_start_of_the_log_waits_for_its_first_record():
    records = RecordTimes()
    records.set_end(100, NOW)
    records.add(0, 50, NOW - 9_000)
    assert records.estimate(10) == NOW - 9_000
    assert records.next_lookup(10, NOW, 0) is None


def test_records_of_old_times_that_came_after_an_empty_lookup_are_not_taken_for_new_ones():
    """No record was later than a minute ago; those that follow have the times of an import."""
    records = RecordTimes()
    records.set_end(100, NOW)
    records.add(0, 0, NOW - 900_000)
    records.add(NOW - 60_000, -1, -1)
    records.set_end(200, NOW)
    assert records.estimate(150) < NOW - 60_000


def test_only_the_cuts_around_groups_are_kept():
    partition = Partition([NOW - 100_000 + number * 10 for number in range(10_000)])
    records = RecordTimes()
    records.set_end(10_000, NOW)
    for offset in range(0, 10_000, 500):
        partition.narrow(records, offset)
    before = records.estimate(5_100)
    records.prune([5_100])
    assert records.estimate(5_100) == before
    assert len(records._cuts) <= 3


def test_a_log_that_got_shorter_is_another_one():
    records = RecordTimes()
    records.set_end(100, NOW)
    records.add(0, 0, NOW - 5_000)
    records.set_end(20, NOW)
    assert records.estimate(5) == UNKNOWN
