"""The uniform assignor: as even as subscriptions allow, with as few moves as evenness allows.

1. Every member keeps what it has and still subscribes to.
2. Partitions without an owner go to a member of a replica's rack with less than its share, else to the least loaded.
3. Partitions move from members that have most to members that have least until no single move would help.

Priorities: balance, then few moves, then the rack: a partition is never moved for its rack alone, but when one has
to go, it is one that was far from its reader. Topics with the same subscribers are levelled together (a *pool*), so the
work grows with partitions and with distinct sets of subscribers, not with topics times members.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace

from klamm.coordinator.groups.assignors.spec import MemberAssignment, MemberSpec, TopicSpec, by_identity, subscribers

_ROUNDS = 64
"""Passes over the pools; one settles pools that share no member, more are needed only where they overlap."""

_PartitionAndTopic = tuple[int, bytes]
"""(partition, topic id): in this order a list of several topics mixes them."""


def assign(members: Mapping[str, MemberSpec], topics: Mapping[bytes, TopicSpec]) -> dict[str, MemberAssignment]:
    """What every member should have."""
    pools: dict[tuple[str, ...], list[bytes]] = {}
    for topic, member_ids in subscribers(members, topics).items():
        pools.setdefault(member_ids, []).append(topic)
    work = _Levelling(members, topics)
    # Small pools first: their topics have fewer members to go to.
    levelled = [
        _Pool(member_ids, pools[member_ids])
        for _, member_ids in sorted((len(member_ids), member_ids) for member_ids in pools)
    ]
    for pool in levelled:
        work.keep(pool)
    for pool in levelled:
        work.hand_out(pool)
    for _ in range(_ROUNDS):
        if not sum(work.level(pool) for pool in levelled) or len(levelled) == 1:
            break
    return work.result(levelled)


class _Pool:
    """The topics of one set of subscribers, and who has which of their partitions."""

    def __init__(self, member_ids: tuple[str, ...], topics: list[bytes]) -> None:
        self.member_ids = member_ids
        self.topics = topics
        self.owned: dict[str, list[_PartitionAndTopic]] = {member: [] for member in member_ids}
        """What to give away first stands last."""
        self.free: list[_PartitionAndTopic] = []


class _Levelling:
    """Loads of all members while they are evened out."""

    def __init__(self, members: Mapping[str, MemberSpec], topics: Mapping[bytes, TopicSpec]) -> None:
        self._members = members
        self._topics = topics
        self._order = {member: index for index, member in enumerate(by_identity(members))}
        self._load = dict.fromkeys(members, 0)
        self._racks = {spec.rack for spec in members.values() if spec.rack is not None}
        # Racks of members decide nothing while the racks of replicas are unknown.
        if not any(topic.racks for topic in topics.values()):
            self._racks = set()

    def keep(self, pool: _Pool) -> None:
        """Leave with every member what it may keep; partitions without an owner are free."""
        free = {topic: set(range(self._topics[topic].partitions)) for topic in pool.topics}
        for member in pool.member_ids:
            current = self._members[member].current
            kept: list[_PartitionAndTopic] = []
            for topic, partitions in current.items():
                if topic in free:
                    mine = free[topic].intersection(partitions)
                    free[topic] -= mine
                    kept += [(partition, topic) for partition in mine]
            kept.sort()
            if self._racks:
                # A stable sort: what is in the member's rack comes first, so that the rest is given away before it.
                kept.sort(key=partial(self._is_far, member))
            pool.owned[member] = kept
            self._load[member] += len(kept)
        pool.free = sorted((partition, topic) for topic, left in free.items() for partition in left)

    def hand_out(self, pool: _Pool) -> None:
        """Give an owner to every free partition of a pool."""
        left = self._hand_out_nearby(pool) if self._racks else pool.free
        heap = self._heap(pool.member_ids)
        for held in left:
            self._give(pool, self._least(heap), held)
        pool.free = []

    def _hand_out_nearby(self, pool: _Pool) -> list[_PartitionAndTopic]:
        loads = sum(self._load[member] for member in pool.member_ids) + len(pool.free)
        share, extra = divmod(loads, len(pool.member_ids))
        # Some may have one more than the share; those who have it already come first, or they would have to give.
        extra -= sum(self._load[member] > share for member in pool.member_ids)
        heaps = {
            rack: self._heap(m for m in pool.member_ids if self._members[m].rack == rack)
            for rack in sorted(self._racks)
        }
        left: list[_PartitionAndTopic] = []
        for held in pool.free:
            partition, topic = held
            racks = self._topics[topic].racks
            best: str | None = None
            for rack in racks[partition] if partition < len(racks) else ():
                if heaps.get(rack):
                    candidate = self._least(heaps[rack])
                    if best is None or self._rank(candidate) < self._rank(best):
                        best = candidate
            if best is not None and (self._load[best] < share or (self._load[best] == share and extra > 0)):
                extra -= self._load[best] == share
                self._give(pool, best, held)
            else:
                left.append(held)
        return left

    def level(self, pool: _Pool) -> int:
        """Move partitions within a pool until no move helps; how many moved."""
        load, order, owned = self._load, self._order, pool.owned
        least = self._heap(pool.member_ids)
        most = [(-load[member], order[member], member) for member in pool.member_ids if owned[member]]
        heapify(most)
        moved = 0
        while most:
            high, _, giver = most[0]
            # Heap entries are not updated when loads change; outdated ones are dropped when they come up.
            if -high != load[giver] or not owned[giver]:
                heappop(most)
                continue
            low, _, taker = least[0]
            if low != load[taker]:
                heappop(least)
                continue
            # With a difference of one a move would only swap the two loads, for ever.
            if -high - low < 2:
                break
            self._give(pool, taker, self._take(pool, giver, taker))
            load[giver] -= 1
            moved += 1
            for member in (giver, taker):
                heappush(least, (load[member], order[member], member))
                heappush(most, (-load[member], order[member], member))
        return moved

    def _take(self, pool: _Pool, giver: str, taker: str) -> _PartitionAndTopic:
        owned = pool.owned[giver]
        if self._racks and not self._near(taker, owned[-1]):
            # Balance costs one move whichever partition goes: one that only the taker has in its rack is the best
            # choice.
            away = next(
                (held for held in reversed(owned) if not self._near(giver, held) and self._near(taker, held)), None
            )
            if away is not None:
                owned.remove(away)
                return away
        return owned.pop()

    def result(self, pools: list[_Pool]) -> dict[str, MemberAssignment]:
        """Return every member's assignment; one that did not change is the same object that came in."""
        gathered: dict[str, dict[bytes, list[int]]] = {member: {} for member in self._members}
        for pool in pools:
            for member, owned in pool.owned.items():
                mine = gathered[member]
                for partition, topic in owned:
                    mine.setdefault(topic, []).append(partition)
        assignments: dict[str, MemberAssignment] = {}
        for member, mine in gathered.items():
            assignment = {topic: frozenset(partitions) for topic, partitions in mine.items()}
            current = self._members[member].current
            assignments[member] = current if assignment == current else assignment
        return assignments

    def _give(self, pool: _Pool, member: str, held: _PartitionAndTopic) -> None:
        pool.owned[member].append(held)
        self._load[member] += 1

    def _near(self, member: str, held: _PartitionAndTopic) -> bool:
        return bool(self._racks) and self._topics[held[1]].has(held[0], self._members[member].rack)

    def _is_far(self, member: str, held: _PartitionAndTopic) -> bool:
        return not self._near(member, held)

    def _rank(self, member: str) -> tuple[int, int]:
        return self._load[member], self._order[member]

    def _heap(self, members: Iterable[str]) -> list[tuple[int, int, str]]:
        heap = [(self._load[member], self._order[member], member) for member in members]
        heapify(heap)
        return heap

    def _least(self, heap: list[tuple[int, int, str]]) -> str:
        """Return the member with the smallest load; loads only grow meanwhile, so outdated entries sink."""
        while True:
            load, order, member = heap[0]
            if load == self._load[member]:
                return member
            heapreplace(heap, (self._load[member], order, member))
