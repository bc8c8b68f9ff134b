"""Values about the cluster itself: brokers, the controller quorum, feature levels."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

from klamm.model.acls import AclOperation


class EndpointType(IntEnum):
    """Which nodes DescribeCluster lists; a node answers for the kind of listener that the request arrived on."""

    BROKER = 1
    CONTROLLER = 2


class Node(NamedTuple):
    """A broker and its address."""

    id: int
    host: str
    port: int
    rack: str | None = None
    fenced: bool = False

    def __str__(self) -> str:
        return f"{self.id} ({self.host}:{self.port})"


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers of the cluster."""

    cluster_id: str
    controller_id: int
    brokers: tuple[Node, ...]
    authorized_operations: frozenset[AclOperation] | None = None


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """The replication state of one node of the quorum."""

    replica_id: int
    directory_id: bytes
    log_end_offset: int
    last_fetch_timestamp: int | None
    last_caught_up_timestamp: int | None


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The controller quorum as its leader sees it."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    nodes: Mapping[int, tuple[tuple[str, str, int], ...]]
    """Listeners of the voters: name, host, port."""


@dataclass(frozen=True, slots=True)
class FeatureDescription:
    """The finalized levels of the cluster, and the levels that the broker supports."""

    finalized: Mapping[str, int]
    supported: Mapping[str, tuple[int, int]]
    epoch: int


class UpgradeType(Enum):
    """Which changes of a level are allowed; an unsafe downgrade may lose metadata."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3
