"""Placement of new replicas: spread over racks first, then over the brokers of each rack, leaders evenly.

Racks lead in rotation, and so do the brokers inside a rack. The rotation starts at random, so that many small topics
spread as well as one large topic. A fenced broker may hold replicas but is never the first leader.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from klamm.controller.context import RandomSource
from klamm.model.errors import ErrorCode, KlammError


class UsableBroker(NamedTuple):
    """A broker that may get new replicas."""

    id: int
    rack: str | None
    fenced: bool


@dataclass(slots=True)
class _Rack:
    """The brokers of a rack: those that can lead, and fenced ones."""

    live: list[int]
    fenced: list[int]

    def order(self, turn: int) -> list[int]:
        """All brokers of the rack, rotated by `turn`; fenced ones last."""
        return _rotate(self.live, turn) + _rotate(self.fenced, turn)


def place_replicas(
    partitions: int, replication_factor: int, brokers: Iterable[UsableBroker], random: RandomSource
) -> list[list[int]]:
    """The replicas of `partitions` new partitions, preferred leader first."""
    usable = sorted(brokers, key=_by_rack_and_id)
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
    # Racks that can lead come first, so that the rotation among them is a remainder.
    leading_racks = [rack for rack in racks.values() if rack.live]
    ordered = leading_racks + [rack for rack in racks.values() if not rack.live]
    leading = len(leading_racks)
    start = random.randrange(leading * max(len(rack.live) for rack in ordered))
    return [_replicas(ordered, leading, start + index, replication_factor) for index in range(partitions)]


def _replicas(racks: list[_Rack], leading: int, turn: int, count: int) -> list[int]:
    """The replicas of a partition: a broker of each rack in turn, again from the first while more are needed.

    The rotation inside a rack advances by one for each time it led and for each rank behind the leading rack, so that
    leaders and followers both rotate over all its brokers.
    """
    first = turn % leading
    columns = []
    for rank in [*range(first, leading), *range(first), *range(leading, len(racks))]:
        rounds, distance = divmod(turn - rank, leading)
        columns.append(racks[rank].order(rounds + distance))
    replicas: list[int] = []
    depth = 0
    while len(replicas) < count:
        for column in columns:
            if depth < len(column) and len(replicas) < count:
                replicas.append(column[depth])
        depth += 1
    return replicas


def _by_rack_and_id(broker: UsableBroker) -> tuple[str, int]:
    return broker.rack or "", broker.id


def _rotate(brokers: list[int], turn: int) -> list[int]:
    if not brokers:
        return []
    cut = turn % len(brokers)
    return brokers[cut:] + brokers[:cut]
