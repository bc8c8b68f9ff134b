"""Where replicas should be: a plan of moves, computed without requests.

Pure. A replica moves only off a broker it must leave, to reach the requested replication factor, or to even out the
number of replicas per broker. Copies go to different racks as far as there are racks. Leaders, the first of each list,
are spread last, by changing the order of the list, which moves no data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from klamm.model.units import pluralize


@dataclass(frozen=True, slots=True)
class Placement:
    """One partition: its replicas, the preferred leader first, and the bytes one of them holds."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """A partition whose replica list changes."""

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    copied_bytes: int

    @property
    def name(self) -> str:
        """TOPIC-PARTITION."""
        return f"{self.topic}-{self.partition}"


class TooFewBrokers(ValueError):
    """There are fewer brokers than copies."""


def plan_moves(
    placements: Sequence[Placement],
    racks: Mapping[int, str | None],
    *,
    copies: int | None = None,
    balance: bool = True,
) -> list[ReplicaMove]:
    """The moves that bring every replica onto the brokers of `racks`, with `copies` of each partition.

    Without `balance` only what must move does.
    """
    plan = [_Plan(placement, racks, copies or len(placement.replicas)) for placement in placements]
    load = Counter(dict.fromkeys(racks, 0))
    # All partitions keep before any is filled: the load must count every replica that stays.
    for move in plan:
        move.keep()
        load.update(move.replicas)
    for move in plan:
        move.fill(load)
    if balance:
        _even_out(plan, load)
    # After the replicas are final: only their order changes here, which copies no bytes.
    _spread_leaders(plan, racks)
    return [move.move() for move in plan if tuple(move.replicas) != move.placement.replicas]


class _Plan:
    """One partition while it is being planned."""

    def __init__(self, placement: Placement, racks: Mapping[int, str | None], copies: int) -> None:
        if copies > len(racks):
            raise TooFewBrokers(
                f"{placement.topic}-{placement.partition} has {copies} {'copy' if copies == 1 else 'copies'},"
                f" and {pluralize(len(racks), 'broker')} may hold them"
            )
        self.placement = placement
        self.replicas: list[int] = []
        self._racks = racks
        self._copies = copies

    def keep(self) -> None:
        """Keep allowed replicas: first one copy per rack, then the rest, up to the replication factor."""
        allowed = [broker for broker in self.placement.replicas if broker in self._racks]
        chosen: list[int] = []
        seen: set[str] = set()
        for broker in allowed:
            rack = self._racks[broker]
            if rack is None or rack not in seen:
                chosen.append(broker)
                seen |= {rack} if rack is not None else set()
        chosen += [broker for broker in allowed if broker not in chosen]
        kept = set(chosen[: self._copies])
        # In the order of before: the first stays the preferred leader.
        self.replicas = [broker for broker in allowed if broker in kept]

    def fill(self, load: Counter[int]) -> None:
        """Add copies where they are missing, on brokers of new racks and with little to do."""
        while len(self.replicas) < self._copies:
            free = (broker for broker in self._racks if broker not in self.replicas)
            # The broker id is the last criterion, so that the same cluster always gives the same plan.
            _, _, broker = min((self._rack_taken(broker), load[broker], broker) for broker in free)
            self.replicas.append(broker)
            load[broker] += 1

    def _rack_taken(self, broker: int, without: int | None = None) -> bool:
        rack = self._racks[broker]
        return rack is not None and any(self._racks[replica] == rack for replica in self.replicas if replica != without)

    def may_swap(self, old: int, new: int) -> bool:
        """Whether a copy may go from one broker to another without crowding a rack."""
        if old not in self.replicas or new in self.replicas:
            return False
        # A swap within crowded racks makes nothing worse: the copy shared its rack before.
        return not self._rack_taken(new, without=old) or self._rack_taken(old, without=old)

    def swap(self, old: int, new: int) -> None:
        """Take one broker instead of another."""
        self.replicas[self.replicas.index(old)] = new

    def move(self) -> ReplicaMove:
        """What changes."""
        before, after = self.placement.replicas, tuple(self.replicas)
        # Only brokers that did not have a replica copy bytes.
        new = len(set(after) - set(before))
        return ReplicaMove(
            self.placement.topic, self.placement.partition, before, after, new * self.placement.size_bytes
        )


def _even_out(plan: Sequence[_Plan], load: Counter[int]) -> None:
    """Move copies from the fullest broker to the emptiest while that makes them more alike."""
    stuck: set[tuple[int, int]] = set()
    while True:
        pairs = sorted(
            ((load[full] - load[empty], full, empty) for full in load for empty in load if (full, empty) not in stuck),
            key=lambda pair: (-pair[0], pair[1], pair[2]),
        )
        # A difference of one cannot be evened out: the next move would only swap the two counts.
        if not pairs or pairs[0][0] <= 1:
            return
        _, full, empty = pairs[0]
        # The smallest partition first: the same evenness for fewer bytes; one that moves anyway costs nothing.
        candidates = [move for move in plan if move.may_swap(full, empty)]
        if not candidates:
            # No replica may go between these two (racks, or both hold the partition already); try the next pair.
            stuck.add((full, empty))
            continue
        chosen = min(
            candidates,
            key=lambda move: (full in move.placement.replicas, move.placement.size_bytes, move.placement.topic,
                              move.placement.partition),
        )  # fmt: skip
        chosen.swap(full, empty)
        load[full] -= 1
        load[empty] += 1


def _spread_leaders(plan: Sequence[_Plan], brokers: Collection[int]) -> None:
    """Let each broker be first in about as many lists as the others."""
    leads = Counter(dict.fromkeys(brokers, 0))
    leads.update(move.replicas[0] for move in plan if move.replicas)
    for move in sorted(plan, key=attrgetter("placement.topic", "placement.partition")):
        if not move.replicas:
            continue
        first = move.replicas[0]
        best = min(move.replicas, key=lambda broker: (leads[broker], move.replicas.index(broker)))
        # As with replicas: a difference of one would move back and forth.
        if leads[first] - leads[best] > 1:
            move.replicas.remove(best)
            move.replicas.insert(0, best)
            leads[first] -= 1
            leads[best] += 1
