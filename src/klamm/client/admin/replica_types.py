"""Values about replicas, log dirs and reassignments."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from klamm.client.types import TopicPartition


class ElectionType(IntEnum):
    """Which replica becomes the leader."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A reassignment in progress."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """One replica in a log dir."""

    size: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """One log dir of a broker; `error_code` is not 0 when it has failed."""

    path: str
    error_code: int
    total_bytes: int
    usable_bytes: int
    replicas: Mapping[TopicPartition, ReplicaInfo]
    cordoned: bool = False
