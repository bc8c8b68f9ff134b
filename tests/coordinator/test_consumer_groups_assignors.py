"""Assignors: every partition has one reader, loads are even, and few partitions move."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.coordinator.groups.assignors import ASSIGNORS, MemberSpec, TopicSpec

uniform, range_ = ASSIGNORS["uniform"], ASSIGNORS["range"]


def topic(number: int) -> bytes:
    return number.to_bytes(16, "big")


def loads(assignment):
    return {member: sum(map(len, mine.values())) for member, mine in assignment.items()}


def moves(members, assignment):
    return sum(
        len(partitions - assignment[member].get(topic, frozenset()))
        for member, spec in members.items()
        for topic, partitions in spec.current.items()
    )


def check_once(members, topics, assignment):
    assert assignment.keys() == members.keys()
    wanted = {topic for spec in members.values() for topic in spec.topics} & topics.keys()
    expected = [(topic, number) for topic in wanted for number in range(topics[topic].partitions)]
    given = [(topic, number) for mine in assignment.values() for topic, numbers in mine.items() for number in numbers]
    assert sorted(given) == sorted(expected)
    for member, mine in assignment.items():
        assert mine.keys() <= members[member].topics
        assert all(mine.values())


RACKS = ["a", "b", "c", None]


@st.composite
def groups(draw, same_topics=False, with_racks=True):
    topics = {}
    for number in range(draw(st.integers(0, 5))):
        count = draw(st.integers(1, 12))
        racks = st.frozensets(st.sampled_from("abc"), max_size=3)
        known = with_racks and draw(st.booleans())
        topics[topic(number)] = TopicSpec(count, tuple(draw(racks) for _ in range(count)) if known else ())
    shared = draw(st.frozensets(st.sampled_from(sorted(topics)))) if topics else frozenset()
    members = {}
    owned = set()
    for number in range(draw(st.integers(1, 7))):
        mine = shared if same_topics or not topics else draw(st.frozensets(st.sampled_from(sorted(topics))))
        current = {}
        for id_ in [*sorted(topics), topic(99)]:
            held = draw(st.frozensets(st.integers(0, 13), max_size=6)) - {p for t, p in owned if t == id_}
            owned |= {(id_, p) for p in held}
            if held:
                current[id_] = held
        rack = draw(st.sampled_from(RACKS)) if with_racks else None
        instance = f"i{9 - number}" if draw(st.booleans()) else None
        members[f"m{number}"] = MemberSpec(mine, current, instance, rack)
    return members, topics


@given(groups(), st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_of_a_subscribed_topic_has_one_owner(group, name):
    members, topics = group
    check_once(members, topics, ASSIGNORS[name](members, topics))


@given(groups(same_topics=True))
def test_uniform_is_balanced_within_one_and_moves_no_more_than_balance_needs(group):
    members, topics = group
    assignment = uniform(members, topics)
    load = sorted(loads(assignment).values())
    assert load[-1] - load[0] <= 1
    shared = next(iter(members.values())).topics & topics.keys()
    kept = sorted(
        (
            sum(len(held & set(range(topics[id_].partitions))) for id_, held in spec.current.items() if id_ in shared)
            for spec in members.values()
        ),
        reverse=True,
    )
    total = sum(topics[id_].partitions for id_ in shared)
    share, extra = divmod(total, len(members))
    must_move = sum(max(0, have - share - (index < extra)) for index, have in enumerate(kept))
    obsolete = sum(len(held) for spec in members.values() for held in spec.current.values()) - sum(kept)
    assert moves(members, assignment) == must_move + obsolete


@given(groups())
def test_no_single_move_would_make_a_uniform_assignment_more_even(group):
    members, topics = group
    assignment = uniform(members, topics)
    load = loads(assignment)
    for member, mine in assignment.items():
        for id_ in mine:
            for other, spec in members.items():
                if id_ in spec.topics:
                    assert load[member] - load[other] < 2, (member, other, id_)


@given(groups(), st.sampled_from(sorted(ASSIGNORS)))
def test_an_assignment_that_came_out_goes_in_and_stays(group, name):
    members, topics = group
    first = ASSIGNORS[name](members, topics)
    again = {m: MemberSpec(s.topics, first[m], s.instance_id, s.rack) for m, s in members.items()}
    second = ASSIGNORS[name](again, topics)
    assert second == first
    assert all(second[member] is again[member].current for member in again)


@given(groups(with_racks=False))
def test_range_gives_contiguous_ranges_and_the_same_ones_to_equal_topics(group):
    members, topics = group
    assignment = range_(members, topics)
    for mine in assignment.values():
        for numbers in mine.values():
            assert sorted(numbers) == list(range(min(numbers), min(numbers) + len(numbers)))
    for first in topics:
        for second in topics:
            same = topics[first].partitions == topics[second].partitions
            if same and all((first in s.topics) == (second in s.topics) for s in members.values()):
                assert all(mine.get(first) == mine.get(second) for mine in assignment.values())


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_members_read_from_their_own_rack_where_balance_allows(name):
    racks = tuple(frozenset("ab"[number >= 6]) for number in range(12))
    topics = {topic(1): TopicSpec(12, racks)}
    members = {f"m{n}": MemberSpec(frozenset(topics), rack="ba"[n % 2]) for n in range(4)}
    assignment = ASSIGNORS[name](members, topics)
    assert set(loads(assignment).values()) == {3}
    for member, mine in assignment.items():
        assert all(members[member].rack in racks[number] for number in mine[topic(1)])


def test_a_second_member_of_another_rack_gets_the_partitions_of_its_rack():
    racks = tuple(frozenset("ab"[number % 2]) for number in range(10))
    topics = {topic(1): TopicSpec(10, racks)}
    alone = {"first": MemberSpec(frozenset(topics), rack="a")}
    held = uniform(alone, topics)["first"]
    both = {"first": MemberSpec(frozenset(topics), held, rack="a"), "other": MemberSpec(frozenset(topics), rack="b")}
    assert uniform(both, topics)["other"] == {topic(1): frozenset({1, 3, 5, 7, 9})}


def test_range_prefers_static_members_in_the_order_of_their_instances():
    topics = {topic(1): TopicSpec(6)}
    members = {
        "z": MemberSpec(frozenset(topics), instance_id="one"),
        "a": MemberSpec(frozenset(topics), instance_id="two"),
        "b": MemberSpec(frozenset(topics)),
    }
    assert range_(members, topics) == {
        "z": {topic(1): frozenset({0, 1})},
        "a": {topic(1): frozenset({2, 3})},
        "b": {topic(1): frozenset({4, 5})},
    }


def test_one_member_of_three_leaves_and_only_its_partitions_move():
    topics = {topic(1): TopicSpec(9), topic(2): TopicSpec(3)}
    three = {f"m{n}": MemberSpec(frozenset(topics)) for n in range(3)}
    before = uniform(three, topics)
    two = {m: MemberSpec(frozenset(topics), before[m]) for m in ("m0", "m2")}
    after = uniform(two, topics)
    assert moves(two, after) == 0
    assert loads(after) == {"m0": 6, "m2": 6}


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@pytest.mark.parametrize("racks", [False, True])
def test_a_thousand_members_and_ten_thousand_partitions_take_a_moment(name, racks):
    spread = tuple(frozenset({"abc"[n % 3], "abc"[(n + 1) % 3]}) for n in range(100)) if racks else ()
    topics = {topic(n): TopicSpec(100, spread) for n in range(100)}
    assign = ASSIGNORS[name]
    members = {f"m{n:04}": MemberSpec(frozenset(topics), rack="abc"[n % 3] if racks else None) for n in range(1000)}
    began = time.process_time()
    first = assign(members, topics)
    spent = time.process_time() - began
    check_once(members, topics, first)
    grown = {m: MemberSpec(s.topics, first[m], rack=s.rack) for m, s in members.items()} | {
        f"n{n}": MemberSpec(frozenset(topics), rack="a") for n in range(10)
    }
    began = time.process_time()
    second = assign(grown, topics)
    spent = max(spent, time.process_time() - began)
    check_once(grown, topics, second)
    assert spent < 5, f"{spent:.2f} s"  # generous: a busy machine is no failure; about 0.1 s is usual
    print(f"{name} racks={racks}: {spent:.3f} s, moved {moves(grown, second)}")


@settings(max_examples=20)
@given(groups())
def test_the_order_in_which_members_are_named_does_not_matter(group):
    members, topics = group
    backwards = dict(reversed(members.items()))
    for assign in ASSIGNORS.values():
        assert assign(backwards, topics) == assign(members, topics)


def test_a_member_that_may_keep_one_more_keeps_it_although_others_are_nearer_to_what_is_free():
    racks = {id_: (frozenset(),) * near + (frozenset({"a"}),) * (count - near) for id_, near, count in NEAR}
    topics = {id_: TopicSpec(count, racks[id_]) for id_, _, count in NEAR}
    both = frozenset(topics)
    members = {f"m{i}": MemberSpec(both, {}, None, "a" if i < 4 else "b") for i in range(7)}
    members["m0"] = MemberSpec(both, {NEAR[1][0]: frozenset({0, 1, 2})}, None, "a")
    members["m1"] = MemberSpec(both, {NEAR[0][0]: frozenset({0})}, None, "a")
    assignment = uniform(members, topics)
    assert moves(members, assignment) == 0
    assert sorted(loads(assignment).values()) == [2] * 6 + [3]


NEAR = ((bytes(16), 3, 7), (bytes(15) + b"\1", 6, 8))
"""Topic, how many of its partitions are in no member's rack, and how many there are."""
