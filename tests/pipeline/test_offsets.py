"""Positions, ranges and limits: a whole plan of a batch without a broker or Spark."""

import itertools
import random

import pytest

from klamm.model.errors import ConfigError
from klamm.model.ids import TopicPartition
from klamm.pipeline.core.connector_options import EARLIEST, LATEST, ReadBound
from klamm.pipeline.core.offsets import (
    Position,
    Range,
    find_late_partitions,
    group_ranges,
    has_enough,
    limit_end,
    plan_ranges,
    split_lookups,
    split_ranges,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_a_position_is_written_as_the_connector_writes_it_with_ids_beside():
    position = Position({A1: 7, A0: 5, B0: 0}, {"a": "id-a"})
    written = position.to_json()
    assert written == {"a": {"0": 5, "1": 7}, "b": {"0": 0}, "#ids": {"a": "id-a"}}
    assert Position.from_json(written) == position


def test_a_position_of_the_connector_can_be_read():
    assert Position.from_json({"a": {"0": 5}}) == Position({A0: 5})


def test_the_end_of_a_first_batch_has_its_start():
    start = Position({A0: 5}, start={A0: 5})
    end = Position({A0: 9}, start={A0: 5})
    assert (start.is_initial(), end.is_initial(), Position({A0: 5}).is_initial()) == (True, False, False)
    assert end.to_json() == {"a": {"0": 9}, "#ids": {}, "#start": {"a": {"0": 5}}}
    assert Position.from_json(end.to_json()) == end
    # A pattern that no topic had matched.
    empty = Position({A0: 1}, start={})
    assert Position.from_json(empty.to_json()) == empty


def test_what_brokers_must_be_asked():
    assert split_lookups(ReadBound(everywhere=EARLIEST), [A0, A1], "startingOffsets") == (
        {},
        {A0: EARLIEST, A1: EARLIEST},
    )
    mixed = ReadBound(by_partition={A0: 5, A1: LATEST})
    assert split_lookups(mixed, [A0, A1], "startingOffsets") == ({A0: 5}, {A1: LATEST})
    assert split_lookups(ReadBound(everywhere=0, timed=True), [A0], "startingTimestamp") == ({}, {A0: 0})


@pytest.mark.parametrize(("given", "words"), [({A0: 1}, "lacks a-1"), ({A0: 1, A1: 1, B0: 1}, "names b-0")])
def test_offsets_by_partition_name_all_that_are_read_and_no_others(given, words):
    with pytest.raises(ConfigError, match=words):
        split_lookups(ReadBound(by_partition=given), [A0, A1], "startingOffsets")


def test_a_time_after_the_last_record_is_refused_or_the_end():
    assert find_late_partitions({A0: 5, A1: LATEST}, "x", latest=True) == [A1]
    with pytest.raises(ConfigError, match="a-1 has no record at or after"):
        find_late_partitions({A0: 5, A1: LATEST}, "x", latest=False)


def test_ranges_go_from_one_position_to_the_next():
    ranges, lost = plan_ranges(Position({A0: 5, A1: 3}), Position({A0: 9, A1: 3}, {"a": "i"}), {A0: 0, A1: 0})
    assert ranges == [Range("a", 0, 5, 9, "i")]
    assert lost == []


def test_a_new_partition_is_read_from_its_beginning():
    ranges, lost = plan_ranges(Position({A0: 5}), Position({A0: 5, B0: 4}), {A0: 0, B0: 0})
    assert ranges == [Range("b", 0, 0, 4)]
    assert not lost


@pytest.mark.parametrize(
    ("start", "end", "earliest", "ranges", "words"),
    [
        ({A0: 5}, {A0: 9}, {A0: 7}, [Range("a", 0, 7, 9)], "log start offset is 7"),
        ({A0: 5}, {A0: 3}, {A0: 0}, [], "end offset is 3"),
        ({A0: 5, A1: 1}, {A0: 5}, {A0: 0}, [], "a-1 was deleted"),
        ({A0: 5}, {A0: 5, B0: 9}, {A0: 0, B0: 6}, [Range("b", 0, 6, 9)], "before offset 6"),
    ],
)
def test_what_is_lost_is_said(start, end, earliest, ranges, words):
    planned, lost = plan_ranges(Position(start), Position(end), earliest)
    assert planned == ranges
    assert words in lost[0]
    assert len(lost) == 1


def test_a_topic_that_was_created_anew_is_read_from_its_beginning_and_said_once():
    start = Position({A0: 5, A1: 5}, {"a": "old"})
    end = Position({A0: 9, A1: 2}, {"a": "new"})
    ranges, lost = plan_ranges(start, end, {A0: 0, A1: 0})
    assert ranges == [Range("a", 0, 0, 9, "new"), Range("a", 1, 0, 2, "new")]
    assert len(lost) == 1
    assert "deleted and recreated" in lost[0]


def test_a_limit_is_shared_by_size_and_nobody_starves():
    limited = limit_end({A0: 0, A1: 0, B0: 0}, {A0: 900, A1: 99, B0: 1}, 100)
    assert limited == {A0: 90, A1: 9, B0: 1}


@pytest.mark.parametrize("seed", range(5))
def test_a_limit_always_moves_forward_and_never_past_the_end(seed):
    chance = random.Random(seed)
    print("seed", seed)
    start = {TopicPartition("t", number): chance.randrange(100) for number in range(chance.randrange(1, 9))}
    end = {where: offset + chance.randrange(200) for where, offset in start.items()}
    for _ in range(1000):
        if start == end:
            break
        limit = chance.randrange(1, 50)
        after = limit_end(start, end, limit)
        assert all(start[where] <= after[where] <= end[where] for where in end)
        moved = sum(after[where] - start[where] for where in end)
        assert 0 < moved <= limit + len(end)
        start = after
    assert start == end


def test_too_few_records_wait():
    assert not has_enough({A0: 0}, {A0: 9, A1: 5}, 10)
    assert has_enough({A0: 0, A1: 0}, {A0: 9, A1: 1}, 10)


def test_large_ranges_are_split_and_nothing_is_lost_between():
    whole = [Range("a", 0, 10, 1010, "i"), Range("a", 1, 0, 10, "i")]
    pieces = split_ranges(whole, 8, None)
    assert len(pieces) >= 8
    assert sum(piece.size for piece in pieces) == 1010
    assert all(one.end == two.start for one, two in itertools.pairwise(pieces) if one.partition == two.partition)
    assert {piece.topic_id for piece in pieces} == {"i"}


def test_no_task_gets_more_than_it_may():
    pieces = split_ranges([Range("a", 0, 0, 1001)], None, 100)
    assert len(pieces) == 11
    assert max(piece.size for piece in pieces) <= 100


def test_without_limits_a_partition_is_a_task_and_an_empty_one_is_none():
    assert split_ranges([Range("a", 0, 0, 5), Range("a", 1, 3, 3)], None, None) == [Range("a", 0, 0, 5)]


def test_ranges_of_a_few_rows_share_a_task():
    few = [Range("a", index, 0, 40) for index in range(5)]
    large = Range("b", 0, 0, 1000)
    assert group_ranges([], 100) == []
    assert group_ranges(few, 100) == [few[:3], few[3:]]
    assert group_ranges([large, *few[:2], large], 100) == [[large], [*few[:2], large]]
    assert group_ranges(few, 1) == [[range_] for range_ in few]
