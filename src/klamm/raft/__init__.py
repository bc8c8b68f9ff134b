"""The controller quorum: who leads it, and one replicated log of metadata that a majority holds.

Owns elections, replication, snapshots and the files of `__cluster_metadata-0`. Does not know what the records mean:
values are bytes, and a Listener makes state of them. `core` and what it stands on (`member`, `elections`, `state`,
`quorum`, `configuration`, `membership`, `positions`, `messages`, `events`) are pure and decide; `wire` dresses messages
for the network; `driver` acts on the loop and the disk.
"""

from klamm.raft.config import RaftConfig
from klamm.raft.core.report import QuorumReport, ReplicaReport
from klamm.raft.driver import RaftDriver
from klamm.raft.interfaces import Listener, Transport

__all__ = ["Listener", "QuorumReport", "RaftConfig", "RaftDriver", "ReplicaReport", "Transport"]
