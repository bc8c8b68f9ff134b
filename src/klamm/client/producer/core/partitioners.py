"""Partitioners. Pure.

    default            murmur2 of the key as Java's producer; sticky and adaptive without a key
    murmur2            the same hash, of no key as of an empty one (librdkafka)
    murmur2_random     murmur2 of the key, a random partition without one (librdkafka)
    consistent         crc32 of the key, of no key as of an empty one (librdkafka)
    consistent_random  crc32 of the key, a random partition without one or with an empty one (librdkafka's default)
    round_robin        one after another, with or without key
    a function         (topic, key, partition count) -> partition

The partition of a record, if it is set, takes precedence.
"""

from __future__ import annotations

import bisect
import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import Protocol

from klamm.model.errors import ConfigError
from klamm.records.kernels.partitioning import murmur2


class Chance(Protocol):
    """A source of random numbers."""

    def randrange(self, stop: int, /) -> int:
        """A number below `stop`."""


Partitioner = Callable[[str, bytes | None, int], int]
"""Topic, key bytes, number of partitions -> partition; -1 leaves it to the sticky choice."""


def by_murmur2(key: bytes, partitions: int) -> int:
    """The partition that Java's producer chooses for a key."""
    # Java's Utils.toPositive: the sign bit is cleared, not the absolute value taken.
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def by_crc32(key: bytes, partitions: int) -> int:
    """The partition that librdkafka's `consistent` chooses for a key."""
    return zlib.crc32(key) % partitions


def partitioner(given: object, chance: Chance, *, ignore_keys: bool = False) -> Partitioner:
    """The function for the setting `partitioner`."""
    if callable(given):
        return _check_choices(given)

    # -1 leaves the choice to the sticky partitioner, which fills one batch before it goes on.
    def sticky(_topic: str, _key: bytes | None, _count: int) -> int:
        return -1

    def default(_topic: str, key: bytes | None, count: int) -> int:
        return -1 if key is None else by_murmur2(key, count)

    def murmur2(_topic: str, key: bytes | None, count: int) -> int:
        return by_murmur2(key or b"", count)

    def murmur2_random(_topic: str, key: bytes | None, count: int) -> int:
        return chance.randrange(count) if key is None else by_murmur2(key, count)

    def consistent(_topic: str, key: bytes | None, count: int) -> int:
        return by_crc32(key or b"", count)

    # librdkafka treats an empty key like none here, Java does not.
    def consistent_random(_topic: str, key: bytes | None, count: int) -> int:
        return by_crc32(key, count) if key else chance.randrange(count)

    def at_random(_topic: str, _key: bytes | None, count: int) -> int:
        return chance.randrange(count)

    names: dict[str, Partitioner] = {
        "default": sticky if ignore_keys else default,
        "murmur2": murmur2,
        "murmur2_random": murmur2_random,
        "consistent": consistent,
        "consistent_random": consistent_random,
        "random": at_random,
        "round_robin": RoundRobin(),
    }
    choose = names.get(str(given))
    if choose is None:
        raise ConfigError(f"partitioner={given} is not known: write one of {', '.join(names)} or give a function")
    return choose


def _check_choices(function: Callable[..., object]) -> Partitioner:
    def choose(topic: str, key: bytes | None, partitions: int) -> int:
        chosen = function(topic, key, partitions)
        if not isinstance(chosen, int) or not -1 <= chosen < partitions:
            raise ValueError(f"the partitioner chose {chosen!r} of the {partitions} partitions of {topic}")
        return chosen

    return choose


class RoundRobin:
    """Partitions one after another, per topic."""

    def __init__(self) -> None:
        self._turns: dict[str, itertools.count[int]] = {}

    def __call__(self, topic: str, key: bytes | None, partitions: int) -> int:  # noqa: ARG002 - a partitioner's form
        """The next one."""
        return next(self._turns.setdefault(topic, itertools.count())) % partitions


class Sticky:
    """One partition until batch.size bytes went to it, then another (KIP-794).

    Adaptive: the shorter the queue of a partition, the more likely it is chosen; one without a leader is skipped while
    others have one.
    """

    __slots__ = ("_bytes", "_chance", "_limit", "partition")

    def __init__(self, limit_bytes: int, chance: Chance) -> None:
        self.partition = -1
        self._bytes = 0
        self._limit = max(limit_bytes, 1)
        self._chance = chance

    def add(self, size: int) -> bool:
        """Count bytes of the current partition; True when another one is due."""
        self._bytes += size
        return self._bytes >= self._limit

    def switch(self, partitions: int, queued: Sequence[int] | None = None) -> int:
        """Choose the next partition; `queued` has the waiting batches per partition, -1 for one without leader."""
        self._bytes = 0
        self.partition = self._choose(partitions, queued)
        return self.partition

    def _choose(self, partitions: int, queued: Sequence[int] | None) -> int:
        if queued is None:
            return self._chance.randrange(partitions)
        reachable = [index for index, waiting in enumerate(queued) if waiting >= 0]
        if not reachable:
            return self._chance.randrange(partitions)
        # KIP-794: the weight is the longest queue plus one, minus the own queue; bisect draws by cumulated weights.
        most = max(queued[index] for index in reachable)
        weights = list(itertools.accumulate(most + 1 - queued[index] for index in reachable))
        return reachable[bisect.bisect_right(weights, self._chance.randrange(weights[-1]))]
