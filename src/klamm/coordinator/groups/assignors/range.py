"""The range assignor: contiguous ranges of every topic, the same ones for topics that belong together.

Topics with the same number of partitions and the same subscribers give member n the same partition numbers, so that
they can be joined. Members are ordered by instance id, then by member id. Where racks are known and differ, a member
first takes from its share what has a replica in its rack (in every topic that belongs together), then the rest.
"""

from collections.abc import Mapping

from klamm.coordinator.groups.assignors.spec import MemberAssignment, MemberSpec, TopicSpec, subscribers


def assign(members: Mapping[str, MemberSpec], topics: Mapping[bytes, TopicSpec]) -> dict[str, MemberAssignment]:
    """What every member should have."""
    co_partitioned: dict[tuple[int, tuple[str, ...]], list[bytes]] = {}
    for topic, member_ids in subscribers(members, topics).items():
        co_partitioned.setdefault((topics[topic].partitions, member_ids), []).append(topic)
    assignments: dict[str, dict[bytes, frozenset[int]]] = {member: {} for member in members}
    for (partitions, member_ids), ids in co_partitioned.items():
        shares = _shares(partitions, len(member_ids))
        racks = [members[member].rack for member in member_ids]
        for member, numbers in zip(
            member_ids, _share_out(shares, racks, [topics[topic] for topic in ids]), strict=True
        ):
            if numbers:
                for topic in ids:
                    assignments[member][topic] = numbers
    # Unchanged assignments stay the same objects: a large target is not held twice.
    return {
        member: members[member].current if assignment == members[member].current else assignment
        for member, assignment in assignments.items()
    }


def _shares(partitions: int, members: int) -> list[int]:
    least, extra = divmod(partitions, members)
    return [least + (index < extra) for index in range(members)]


def _share_out(shares: list[int], racks: list[str | None], topics: list[TopicSpec]) -> list[frozenset[int]]:
    """The partition numbers of each member."""
    partitions = sum(shares)
    if not _racks_matter(partitions, racks, topics):
        starts = [0]
        for share in shares:
            starts.append(starts[-1] + share)
        return [frozenset(range(start, start + share)) for start, share in zip(starts, shares, strict=False)]
    left = dict.fromkeys(range(partitions))
    taken: list[set[int]] = []
    for share, rack in zip(shares, racks, strict=True):
        # A number is near only if every topic has it in the rack: joins need equal numbers at one member (KIP-881).
        near = [number for number in left if all(topic.has(number, rack) for topic in topics)][:share]
        for number in near:
            del left[number]
        taken.append(set(near))
    rest = iter(left)
    for share, mine in zip(shares, taken, strict=True):
        while len(mine) < share:
            mine.add(next(rest))
    return [frozenset(mine) for mine in taken]


def _racks_matter(partitions: int, racks: list[str | None], topics: list[TopicSpec]) -> bool:
    """Return whether a member's rack holds some of the partitions but not all of them."""
    for rack in {rack for rack in racks if rack is not None}:
        near = sum(topic.has(number, rack) for topic in topics for number in range(partitions))
        if 0 < near < partitions * len(topics):
            return True
    return False
