"""Replicas spread over racks and brokers; leaders spread too."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.controller.placement import UsableBroker, place_replicas
from klamm.model.errors import ErrorCode, KlammError


def brokers(*racks, fenced=()):
    return [UsableBroker(i, rack, i in fenced) for i, rack in enumerate(racks, 1)]


def spread(placed):
    leaders = Counter(replicas[0] for replicas in placed)
    everyone = Counter(replica for replicas in placed for replica in replicas)
    return leaders, everyone


def test_leaders_and_replicas_are_even_without_racks():
    leaders, everyone = spread(place_replicas(30, 3, brokers(*[None] * 5), Random(1)))
    assert set(leaders.values()) == {6}
    assert set(everyone.values()) == {18}


def test_leaders_and_replicas_are_even_over_racks():
    usable = brokers("a", "a", "a", "b", "b", "b", "c", "c", "c")
    placed = place_replicas(27, 3, usable, Random(2))
    rack = {broker.id: broker.rack for broker in usable}
    assert all({rack[replica] for replica in replicas} == {"a", "b", "c"} for replicas in placed)
    leaders, everyone = spread(placed)
    assert set(leaders.values()) == {3}
    assert set(everyone.values()) == {9}


def test_more_replicas_than_racks_still_use_every_rack():
    usable = brokers("a", "a", "b", "b")
    placed = place_replicas(8, 3, usable, Random(3))
    rack = {broker.id: broker.rack for broker in usable}
    assert all({rack[replica] for replica in replicas} == {"a", "b"} for replicas in placed)


def test_many_topics_of_one_partition_do_not_all_land_on_the_first_broker():
    random = Random(4)
    topics, share = 300, 100
    leaders = Counter(place_replicas(1, 1, brokers(None, None, None), random)[0][0] for _ in range(topics))
    assert set(leaders) == {1, 2, 3}
    assert min(leaders.values()) > 0.6 * share


def test_a_fenced_broker_may_hold_replicas_but_not_lead():
    partitions = 12
    placed = place_replicas(partitions, 3, brokers("a", "a", "b", fenced=(3,)), Random(5))
    leaders, replicas = spread(placed)
    assert set(leaders) == {1, 2}
    assert replicas[3] == partitions


@pytest.mark.parametrize(("factor", "fenced"), [(4, ()), (1, (1, 2, 3))])
def test_what_cannot_be_placed(factor, fenced):
    with pytest.raises(KlammError) as caught:
        place_replicas(1, factor, brokers(None, None, None, fenced=fenced), Random(6))
    assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


@given(
    st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 12),
    st.integers(1, 40),
    st.integers(0, 2**32),
)
def test_every_placement_is_legal(cluster, factor, partitions, seed):
    usable = [UsableBroker(i, rack, fenced) for i, (rack, fenced) in enumerate(cluster)]
    if factor > len(usable) or all(broker.fenced for broker in usable):
        return
    placed = place_replicas(partitions, factor, usable, Random(seed))
    assert len(placed) == partitions
    fenced = {broker.id for broker in usable if broker.fenced}
    rack = {broker.id: broker.rack for broker in usable}
    racks = len(set(rack.values()))
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert replicas[0] not in fenced
        assert len({rack[replica] for replica in replicas}) == min(racks, factor)
