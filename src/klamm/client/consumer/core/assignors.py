"""Partition assignors of classic groups, run by the member that leads the group. Pure.

Every assignor takes the members' subscriptions and the partition counts of the topics, and returns the partitions of
each member. `cooperative-sticky` (KIP-429) never assigns a partition in the round in which another member revokes it:
the owner gives it up first, and rejoins; the next round assigns it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from klamm.model.errors import ConfigError
from klamm.model.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What a member sends with JoinGroup."""

    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    instance_id: str | None = None
    rack: str | None = None


Members = Mapping[str, MemberSubscription]
Counts = Mapping[str, int]
GroupAssignment = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class Assignor:
    """An assignor, by the name that JoinGroup carries."""

    name: str
    assign: Callable[[Members, Counts], GroupAssignment]
    cooperative: bool = False
    """Whether members keep what they hold while the group rebalances."""
    sticky: bool = False


def assignors(names: tuple[str, ...]) -> list[Assignor]:
    """Assignors by name, preferred first; Java's class names are accepted."""
    chosen = []
    for name in names:
        short = _JAVA.get(name.rpartition(".")[2], name)
        if short not in ASSIGNORS:
            raise ConfigError(f"partition.assignment.strategy={name} is not known: write {', '.join(ASSIGNORS)}")
        chosen.append(ASSIGNORS[short])
    return chosen


def _order(members: Members) -> list[str]:
    """Members in an order that static ones keep over restarts."""
    # As Java's MemberInfo.compareTo: a static member sorts by its instance id, since its member id is new every time.
    return sorted(members, key=lambda member_id: (members[member_id].instance_id or member_id, member_id))


def _topic_partitions(members: Members, counts: Counts) -> list[TopicPartition]:
    topics = sorted({topic for member in members.values() for topic in member.topics if topic in counts})
    return [TopicPartition(topic, index) for topic in topics for index in range(counts[topic])]


def range_assign(members: Members, counts: Counts) -> GroupAssignment:
    """Topic by topic, neighbouring partitions to each member; topics of equal size fall to the same members."""
    assignment: GroupAssignment = {member: [] for member in members}
    ordered = _order(members)
    for topic in sorted({topic for member in members.values() for topic in member.topics}):
        takers = [member for member in ordered if topic in members[member].topics]
        count = counts.get(topic, 0)
        # The first `extra` members get one more, for every topic: that is why range is uneven over many topics.
        share, extra = divmod(count, len(takers))
        start = 0
        for index, member in enumerate(takers):
            size = share + (index < extra)
            assignment[member] += [TopicPartition(topic, index) for index in range(start, start + size)]
            start += size
    return assignment


def round_robin_assign(members: Members, counts: Counts) -> GroupAssignment:
    """All partitions one by one to the members in order, skipping those that do not subscribe to the topic."""
    assignment: GroupAssignment = {member: [] for member in members}
    ordered = _order(members)
    turn = 0
    for where in _topic_partitions(members, counts):
        while where.topic not in members[ordered[turn % len(ordered)]].topics:
            turn += 1
        assignment[ordered[turn % len(ordered)]].append(where)
        turn += 1
    return assignment


def sticky_assign(members: Members, counts: Counts) -> GroupAssignment:
    """As balanced as subscriptions allow, moving as few partitions as possible (KIP-54)."""
    everything = _topic_partitions(members, counts)
    held = _find_held(members, set(everything))
    ordered = _order(members)
    wanted = {topic for member in members.values() for topic in member.topics if topic in counts}
    # Equal subscriptions are the normal case and need one pass; unequal ones need rounds of moves.
    same = all({topic for topic in member.topics if topic in counts} == wanted for member in members.values())
    if same:
        return _balance_equal(everything, held, ordered)
    return _balance_unequal(everything, held, ordered, members)


def _find_held(members: Members, existing: set[TopicPartition]) -> GroupAssignment:
    """What members own: a claim of an older generation loses, two of the same generation are both dropped."""
    claims: dict[TopicPartition, list[tuple[int, str]]] = defaultdict(list)
    for name, member in members.items():
        for where in member.owned:
            if where in existing and where.topic in member.topics:
                claims[where].append((member.generation, name))
    held: GroupAssignment = {member: [] for member in members}
    for where, claimants in claims.items():
        # A member that missed a rebalance still claims what was given to another since (KIP-792).
        newest = max(generation for generation, _ in claimants)
        owners = [name for generation, name in claimants if generation == newest]
        if len(owners) == 1:
            held[owners[0]].append(where)
    for partitions in held.values():
        partitions.sort()
    return held


def _balance_equal(everything: list[TopicPartition], held: GroupAssignment, ordered: list[str]) -> GroupAssignment:
    least, extra = divmod(len(everything), len(ordered))
    assignment: GroupAssignment = {}
    # Members that own most go first: the `extra` members with one partition more are then those that have it already.
    for member in sorted(ordered, key=lambda member: -len(held[member])):
        more = len(held[member]) > least and extra > 0
        quota = least + more
        extra -= more
        assignment[member] = held[member][:quota]
    taken = {where for partitions in assignment.values() for where in partitions}
    free = [where for where in everything if where not in taken]
    free.reverse()  # pop() takes from the end: partitions are given out in order
    for member in ordered:
        while free and len(assignment[member]) < least:
            assignment[member].append(free.pop())
    for member in ordered:
        if free and len(assignment[member]) == least:
            assignment[member].append(free.pop())
    return assignment


def _balance_unequal(
    everything: list[TopicPartition], held: GroupAssignment, ordered: list[str], members: Members
) -> GroupAssignment:
    assignment = {member: list(held[member]) for member in ordered}
    owner = {where: name for name, places in assignment.items() for where in places}
    rank = {name: index for index, name in enumerate(ordered)}

    def lightest(topic: str) -> str | None:
        able = [member for member in ordered if topic in members[member].topics]
        return min(able, key=lambda member: (len(assignment[member]), rank[member])) if able else None

    for where in everything:
        if where not in owner:
            taker = lightest(where.topic)
            if taker is not None:
                assignment[taker].append(where)
                owner[where] = taker
    moved = True
    # A move makes the spread smaller, so this ends by itself; the limit guards a leader against an endless loop here.
    rounds = len(everything) + 1
    while moved and rounds:
        moved = False
        rounds -= 1
        for where in everything:
            giver = owner.get(where)
            taker = lightest(where.topic)
            # A difference of one is balanced: moving it would only swap the two.
            if giver is None or taker is None or len(assignment[giver]) <= len(assignment[taker]) + 1:
                continue
            assignment[giver].remove(where)
            assignment[taker].append(where)
            owner[where] = taker
            moved = True
    return assignment


def cooperative_sticky_assign(members: Members, counts: Counts) -> GroupAssignment:
    """As sticky; a partition that another member still owns is left out until that member revoked it."""
    assignment = sticky_assign(members, counts)
    held = _find_held(members, set(_topic_partitions(members, counts)))
    holder = {where: name for name, places in held.items() for where in places}
    return {name: [where for where in places if holder.get(where, name) == name] for name, places in assignment.items()}


ASSIGNORS: dict[str, Assignor] = {
    "range": Assignor("range", range_assign),
    "roundrobin": Assignor("roundrobin", round_robin_assign),
    "sticky": Assignor("sticky", sticky_assign, sticky=True),
    "cooperative-sticky": Assignor("cooperative-sticky", cooperative_sticky_assign, cooperative=True, sticky=True),
}

_JAVA = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}
