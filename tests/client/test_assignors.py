"""Who reads what: examples in words, and what must hold of any group."""

import random

import pytest

from klamm.client.consumer.classic_protocol import decode_assignment, decode_subscription, encode_assignment
from klamm.client.consumer.core.assignors import ASSIGNORS, MemberSubscription, assignors
from klamm.model.errors import ConfigError
from klamm.model.ids import TopicPartition as T


def members(*names, topics=("t",), **owned):
    return {name: MemberSubscription(frozenset(topics), tuple(owned.get(name, ())), 1) for name in names}


def test_range_gives_neighbours_topic_by_topic():
    assignment = ASSIGNORS["range"].assign(members("a", "b", topics=("t", "u")), {"t": 3, "u": 3})
    assert assignment == {"a": [T("t", 0), T("t", 1), T("u", 0), T("u", 1)], "b": [T("t", 2), T("u", 2)]}


def test_round_robin_deals_out():
    assignment = ASSIGNORS["roundrobin"].assign(members("a", "b", topics=("t", "u")), {"t": 3, "u": 3})
    assert assignment == {"a": [T("t", 0), T("t", 2), T("u", 1)], "b": [T("t", 1), T("u", 0), T("u", 2)]}


def test_static_members_keep_their_order_over_restarts():
    group = {
        "x": MemberSubscription(frozenset({"t"}), instance_id="b"),
        "y": MemberSubscription(frozenset({"t"}), instance_id="a"),
    }
    assert ASSIGNORS["range"].assign(group, {"t": 2}) == {"y": [T("t", 0)], "x": [T("t", 1)]}


def test_sticky_moves_as_little_as_possible():
    held = {"a": [T("t", index) for index in range(4)], "b": [T("t", index) for index in range(4, 6)]}
    assignment = ASSIGNORS["sticky"].assign(members("a", "b", "c", **held), {"t": 6})
    assert {name: len(partitions) for name, partitions in assignment.items()} == {"a": 2, "b": 2, "c": 2}
    assert set(assignment["a"]) <= set(held["a"])
    assert assignment["b"] == held["b"]


def test_of_two_claims_the_newer_generation_counts():
    group = {
        "old": MemberSubscription(frozenset({"t"}), (T("t", 0),), 1),
        "new": MemberSubscription(frozenset({"t"}), (T("t", 0),), 2),
    }
    assert ASSIGNORS["sticky"].assign(group, {"t": 2}) == {"new": [T("t", 0)], "old": [T("t", 1)]}


def test_cooperative_gives_nothing_that_another_still_holds():
    held = [T("t", index) for index in range(4)]
    assign = ASSIGNORS["cooperative-sticky"].assign
    first = assign(members("a", "b", a=held), {"t": 4})
    assert len(first["a"]) == 2
    assert first["b"] == []
    second = assign(members("a", "b", a=first["a"]), {"t": 4})
    assert second["a"] == first["a"]
    assert sorted(second["a"] + second["b"]) == held


@pytest.mark.parametrize("name", ASSIGNORS)
def test_any_group_shares_everything_exactly_once(name):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(150):
        topics = [f"t{index}" for index in range(chance.randrange(1, 5))]
        counts = {topic: chance.randrange(0, 8) for topic in topics}
        counts = {topic: count for topic, count in counts.items() if count}
        same = chance.random() < 0.5
        group = {}
        for number in range(chance.randrange(1, 7)):
            wanted = topics if same else chance.sample(topics, chance.randrange(1, len(topics) + 1))
            owned = [T(topic, chance.randrange(0, 9)) for topic in wanted if chance.random() < 0.5]
            group[f"m{number}"] = MemberSubscription(frozenset(wanted), tuple(owned), chance.randrange(3))
        assignor = ASSIGNORS[name]
        assignment = assignor.assign(group, counts)
        for _ in range(3 if assignor.cooperative else 0):  # what was let go is handed out in a later round
            group = {member: MemberSubscription(group[member].topics, tuple(assignment[member]), 9) for member in group}
            assignment = assignor.assign(group, counts)
        wanted = {
            T(t, p) for t in counts if any(t in member.topics for member in group.values()) for p in range(counts[t])
        }
        given = [partition for partitions in assignment.values() for partition in partitions]
        assert set(assignment) == set(group)
        assert sorted(given) == sorted(wanted)
        assert all(
            partition.topic in group[member].topics
            for member, partitions in assignment.items()
            for partition in partitions
        )
        if same and name != "range":
            sizes = [len(partitions) for partitions in assignment.values()]
            assert max(sizes) - min(sizes) <= 1
        if assignor.sticky:
            again = {member: MemberSubscription(group[member].topics, tuple(assignment[member]), 9) for member in group}
            repeated = assignor.assign(again, counts)
            assert {member: sorted(partitions) for member, partitions in repeated.items()} == {
                member: sorted(partitions) for member, partitions in assignment.items()
            }


def test_names_are_kafkas_and_javas():
    assert [assignor.name for assignor in assignors(("range", "org.apache.kafka.clients.consumer.StickyAssignor"))] == [
        "range",
        "sticky",
    ]
    with pytest.raises(ConfigError, match="cooperative-sticky"):
        assignors(("best",))


def test_assignments_travel():
    partitions = [T("a", 0), T("a", 3), T("b", 1)]
    assert decode_assignment(encode_assignment(partitions)) == partitions
    assert decode_assignment(b"") == []
    assert decode_subscription(b"", "x").topics == frozenset()
