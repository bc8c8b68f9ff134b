"""Which partition a record goes to: pure choices over counts and loads.

    default            murmur2 of the key as Java's producer; sticky and adaptive without a key
    murmur2            the same hash also of no key (as of an empty one)
    murmur2_random     murmur2 of the key, any partition without one (librdkafka's of that name)
    consistent         crc32 of the key, that of an empty one without (librdkafka)
    consistent_random  crc32 of the key, any partition without one or with an empty one (librdkafka's default)
    round_robin        one after another, key or not
    a function         (topic, key, partitions) -> partition, or with `available` as the fourth

A partition named with the record goes before all of these.
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
    """Where random choices come from."""

    def randrange(self, stop: int, /) -> int:
        """A number below `stop`."""


Partitioner = Callable[[str, bytes | None, int], int]
"""Topic, key bytes, number of partitions -> partition; -1 leaves it to the sticky choice."""


def by_murmur2(key: bytes, partitions: int) -> int:
    """Kafka's place for a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def by_crc32(key: bytes, partitions: int) -> int:
    """Librdkafka's `consistent` place for a key."""
    return zlib.crc32(key) % partitions


def partitioner(given: object, chance: Chance, *, ignore_keys: bool = False) -> Partitioner:
    """What the setting `partitioner` means."""
    if callable(given):
        return _checked(given)

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


def _checked(function: Callable[..., object]) -> Partitioner:
    def choose(topic: str, key: bytes | None, partitions: int) -> int:
        chosen = function(topic, key, partitions)
        if not isinstance(chosen, int) or not -1 <= chosen < partitions:
            raise ValueError(f"the partitioner chose {chosen!r} of the {partitions} partitions of {topic}")
        return chosen

    return choose


class RoundRobin:
    """Partitions one after another, for each topic by itself."""

    def __init__(self) -> None:
        self._turns: dict[str, itertools.count[int]] = {}

    def __call__(self, topic: str, key: bytes | None, partitions: int) -> int:  # noqa: ARG002 - a partitioner's form
        """The next one."""
        return next(self._turns.setdefault(topic, itertools.count())) % partitions


class Sticky:
    """One partition until a batch's worth of bytes went to it, then another (KIP-794).

    Adaptive: the less is queued for a partition, the likelier it is next; one without a leader is passed over while
    others have one.
    """

    __slots__ = ("_bytes", "_chance", "_limit", "partition")

    def __init__(self, limit_bytes: int, chance: Chance) -> None:
        self.partition = -1
        self._bytes = 0
        self._limit = max(limit_bytes, 1)
        self._chance = chance

    def took(self, size: int) -> bool:
        """So many bytes went to the current partition; True when it is time for another."""
        self._bytes += size
        return self._bytes >= self._limit

    def switch(self, partitions: int, queued: Sequence[int] | None = None) -> int:
        """Choose the next partition; `queued` are batches waiting per partition, -1 for one out of reach."""
        self._bytes = 0
        self.partition = self._choose(partitions, queued)
        return self.partition

    def _choose(self, partitions: int, queued: Sequence[int] | None) -> int:
        if queued is None:
            return self._chance.randrange(partitions)
        reachable = [index for index, waiting in enumerate(queued) if waiting >= 0]
        if not reachable:
            return self._chance.randrange(partitions)
        most = max(queued[index] for index in reachable)
        weights = list(itertools.accumulate(most + 1 - queued[index] for index in reachable))
        return reachable[bisect.bisect_right(weights, self._chance.randrange(weights[-1]))]
