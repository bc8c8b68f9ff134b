"""What a batch of a rebuilt query does, by the positions of its checkpoint."""

import pytest

from klamm.pipeline.core.batch_ledger import BatchPosition
from klamm.pipeline.sql.core.rebuild_steps import RebuildStep, RebuildTarget

STAGE, SWITCH, WRITE = RebuildStep.STAGE, RebuildStep.SWITCH, RebuildStep.WRITE


def position(*offsets):
    return BatchPosition.of([{"in": {str(part): offset for part, offset in enumerate(offsets)}, "#ids": {"in": "x"}}])


def steps(target, ends):
    """The steps of batches with these ends."""
    positions = [None, None, *ends]
    return [
        target.step(start, end, before)
        for before, start, end in zip(positions, positions[1:], positions[2:], strict=False)
    ]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([position(5, 3)], [SWITCH]),
        ([position(9, 9), position(9, 10)], [SWITCH, WRITE]),
        ([position(2, 3), position(5, 2), position(5, 3), position(6, 3)], [STAGE, STAGE, SWITCH, WRITE]),
        ([position(5)], [STAGE]),
    ],
)
def test_one_batch_switches_when_all_partitions_have_caught_up(ends, expected):
    assert steps(RebuildTarget({("in", 0): 5, ("in", 1): 3}), ends) == expected


def test_rows_that_the_watermark_emits_are_awaited():
    target = RebuildTarget({("in", 0): 5}, emits_later=True)
    ends = [position(3), position(5), position(5), position(7)]
    assert steps(target, ends) == [STAGE, STAGE, SWITCH, WRITE]
    assert steps(target, [position(5), position(6), position(6)]) == [STAGE, SWITCH, WRITE]


def test_without_records_the_first_batch_switches():
    assert steps(RebuildTarget({}), [position(1), position(2)]) == [SWITCH, WRITE]


def test_of_a_topic_that_is_read_twice_the_slower_source_counts():
    both = BatchPosition.of([{"in": {"0": 5}}, {"in": {"0": 4}}])
    assert not RebuildTarget({("in", 0): 5}).is_reached(both)
    assert RebuildTarget({("in", 0): 4}).is_reached(both)


def test_what_is_left_to_read():
    target = RebuildTarget({("in", 0): 5, ("in", 1): 3})
    assert [target.unread(offsets) for offsets in ({}, {("in", 0): 9, ("in", 1): 1}, {("in", 0): 5, ("in", 1): 3})] == [
        8,
        2,
        0,
    ]


def test_the_target_is_kept_as_text():
    target = RebuildTarget({("a.b", 0): 5, ("c", 12): 1}, emits_later=True)
    assert RebuildTarget.decode(target.encode()) == target
