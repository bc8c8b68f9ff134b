"""A plan moves what it must, no more, and leaves brokers, racks and leaders even."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.client.core.reassign_plan import Placement, TooFewBrokers, plan_moves

RACKS = {1: "a", 2: "b", 3: "c", 4: "a"}
PLAIN = dict.fromkeys(range(1, 5))


def after(placements, moves):
    changed = {(move.topic, move.partition): move.after for move in moves}
    return [changed.get((placement.topic, placement.partition), placement.replicas) for placement in placements]


def test_what_stands_well_stays():
    placements = [Placement("t", 0, (1, 2, 3)), Placement("t", 1, (2, 3, 1)), Placement("t", 2, (3, 1, 2))]
    assert plan_moves(placements, {1: None, 2: None, 3: None}) == []


def test_a_drained_broker_holds_nothing_and_others_stay():
    size_bytes = 10
    placements = [Placement("t", index, (1, 2, 3), size_bytes) for index in range(4)]
    moves = plan_moves(placements, {1: None, 2: None, 4: None}, balance=False)
    assert all(3 not in replicas and {1, 2} <= set(replicas) for replicas in after(placements, moves))
    assert sum(move.copied_bytes for move in moves) == len(placements) * size_bytes


def test_more_copies_go_to_other_racks():
    (move,) = plan_moves([Placement("t", 0, (1,))], RACKS, copies=3)
    assert {RACKS[broker] for broker in move.after} == {"a", "b", "c"}


def test_fewer_copies_keep_the_racks():
    (move,) = plan_moves([Placement("t", 0, (1, 4, 2))], RACKS, copies=2)
    assert {RACKS[broker] for broker in move.after} == {"a", "b"}
    assert move.copied_bytes == 0


def test_too_few_brokers_are_refused():
    with pytest.raises(TooFewBrokers, match="t-0 has 3 copies, and 2 brokers may hold them"):
        plan_moves([Placement("t", 0, (1, 2, 3))], {1: None, 2: None})


def test_leaders_are_spread_without_moving_data():
    placements = [Placement("t", index, (1, 2, 3), 5) for index in range(6)]
    moves = plan_moves(placements, {1: None, 2: None, 3: None})
    assert Counter(replicas[0] for replicas in after(placements, moves)) == {1: 2, 2: 2, 3: 2}
    assert sum(move.copied_bytes for move in moves) == 0


@st.composite
def clusters(draw):
    brokers = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6, unique=True))
    racks = {broker: draw(st.sampled_from([None, "a", "b", "c"])) for broker in brokers}
    copies = draw(st.integers(1, len(brokers)))
    sizes = st.integers(0, 100)
    placements = [
        Placement(
            "t", index, tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True))), draw(sizes)
        )
        for index in range(draw(st.integers(0, 12)))
    ]
    return racks, copies, placements


@given(clusters())
def test_any_plan_is_whole_and_even(cluster):
    racks, copies, placements = cluster
    placed = after(placements, plan_moves(placements, racks, copies=copies))
    load = Counter(dict.fromkeys(racks, 0))
    for replicas in placed:
        assert len(replicas) == copies == len(set(replicas))
        assert set(replicas) <= set(racks)
        load.update(replicas)
    if all(rack is None for rack in racks.values()) and placed:
        assert max(load.values()) - min(load.values()) <= 1


@given(clusters())
def test_planning_again_moves_no_data(cluster):
    racks, copies, placements = cluster
    placed = after(placements, plan_moves(placements, racks, copies=copies))
    again = [
        Placement("t", placement.partition, now, placement.size_bytes)
        for placement, now in zip(placements, placed, strict=True)
    ]
    assert sum(move.copied_bytes for move in plan_moves(again, racks, copies=copies)) == 0
