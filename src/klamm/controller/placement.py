"""Where new replicas go: spread over racks first, then over the brokers of each rack, leaders evenly.

Racks take turns at leading, and inside a rack the brokers take turns. Where the turn starts is chance, so that
many small topics spread as well as one large one. A fenced broker may hold replicas but never starts as leader.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from klamm.controller.context import RandomSource
from klamm.model.errors import ErrorCode, KlammError


class UsableBroker(NamedTuple):
    """A broker that may be given replicas."""

    id: int
    rack: str | None
    fenced: bool


@dataclass(slots=True)
class _Rack:
    """The brokers of one rack, those that can lead apart from those that cannot."""

    live: list[int]
    fenced: list[int]

    def order(self, turn: int) -> list[int]:
        """All brokers of the rack, starting with the one whose turn it is; fenced ones last."""
        return _rotated(self.live, turn) + _rotated(self.fenced, turn)


def place_replicas(
    partitions: int, replication_factor: int, brokers: Iterable[UsableBroker], random: RandomSource
) -> list[list[int]]:
    """The replicas of `partitions` new partitions, preferred leader first."""
    usable = sorted(brokers, key=lambda broker: (broker.rack or "", broker.id))
    if replication_factor > len(usable):
        raise KlammError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{replication_factor} replicas need as many brokers, and {len(usable)} broker(s) are registered.",
        )
    if all(broker.fenced for broker in usable):
        raise KlammError(ErrorCode.INVALID_REPLICATION_FACTOR, "No broker is in service.")
    racks: dict[str | None, _Rack] = {}
    for broker in usable:
        rack = racks.setdefault(broker.rack, _Rack([], []))
        (rack.fenced if broker.fenced else rack.live).append(broker.id)
    # Racks that can lead stand first, so that taking turns among them is counting.
    ordered = sorted(racks.values(), key=lambda rack: not rack.live)
    leading = sum(1 for rack in ordered if rack.live)
    start = random.randrange(leading * max(len(rack.live) for rack in ordered))
    return [_replicas(ordered, leading, start + index, replication_factor) for index in range(partitions)]


def _replicas(racks: list[_Rack], leading: int, turn: int, count: int) -> list[int]:
    """The replicas of one partition: one broker of each rack in turn, again from the first while more are needed.

    A rack's own turn moves by one whenever it has led and by one for every place it stands behind the leader, so
    leaders and followers both go round all its brokers.
    """
    first = turn % leading
    columns = []
    for rank in [*range(first, leading), *range(first), *range(leading, len(racks))]:
        rounds, place = divmod(turn - rank, leading)
        columns.append(racks[rank].order(rounds + place))
    replicas: list[int] = []
    depth = 0
    while len(replicas) < count:
        for column in columns:
            if depth < len(column) and len(replicas) < count:
                replicas.append(column[depth])
        depth += 1
    return replicas


def _rotated(brokers: list[int], turn: int) -> list[int]:
    if not brokers:
        return []
    cut = turn % len(brokers)
    return brokers[cut:] + brokers[:cut]
