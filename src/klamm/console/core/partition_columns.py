"""Partitions of a topic in a third of the memory of one object each: a console keeps 100,000 of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, overload

_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class PartitionSample:
    """One partition; offsets and size are None where no broker reported them."""

    index: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    start: int | None = None
    end: int | None = None
    size_bytes: int | None = None
    """Of the leader's replica."""

    @property
    def records(self) -> int | None:
        """Offsets between start and end, which counts markers and compacted records too."""
        return None if self.start is None or self.end is None else self.end - self.start

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica is out of sync."""
        return len(self.isr) < len(self.replicas)


class PartitionColumns(Sequence[PartitionSample]):
    """Partitions that never change; each is made when it is read."""

    __slots__ = ("_members", "_numbers")

    def __init__(self, partitions: Sequence[PartitionSample]) -> None:
        # Two columns for all fields: an empty array alone takes 80 bytes.
        self._members = tuple(part for partition in partitions for part in (partition.replicas, partition.isr))
        self._numbers = array("q")
        for partition in partitions:
            self._numbers.extend((partition.index, partition.leader))
            self._numbers.extend(
                _UNKNOWN if value is None else value for value in (partition.start, partition.end, partition.size_bytes)
            )

    def layouts(self) -> Iterator[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
        """Yield index, leader, replicas and ISR of each partition, without an object for each."""
        return zip(self._numbers[::5], self._numbers[1::5], self._members[::2], self._members[1::2], strict=True)

    def in_sync_replicas(self) -> tuple[tuple[int, ...], ...]:
        """Return the ISR of each partition."""
        return self._members[1::2]

    def __len__(self) -> int:
        return len(self._members) // 2

    def __iter__(self) -> Iterator[PartitionSample]:
        return map(self._make, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> PartitionSample: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PartitionSample]: ...
    def __getitem__(self, index: int | slice) -> PartitionSample | Sequence[PartitionSample]:
        positions = range(len(self))[index]
        return tuple(map(self._make, positions)) if isinstance(positions, range) else self._make(positions)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PartitionColumns) and self._numbers == other._numbers and self._members == other._members
        )

    def __hash__(self) -> int:
        return hash((self._members, self._numbers.tobytes()))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def _make(self, position: int) -> PartitionSample:
        index, leader, *reported = self._numbers[position * 5 : position * 5 + 5]
        replicas, isr = self._members[position * 2 : position * 2 + 2]
        start, end, size = (None if value == _UNKNOWN else value for value in reported)
        return PartitionSample(index, leader, replicas, isr, start, end, size)
