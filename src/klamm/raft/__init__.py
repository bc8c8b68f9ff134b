"""The controller quorum: elects the active controller and replicates the metadata log to a majority of voters.

Owns elections, replication, snapshots and the files of `__cluster_metadata-0`. The meaning of records is not known
here: values are bytes, and a RaftListener applies them. `core` is pure and decides; `codec` encodes its messages and
log entries; `driver` acts on the loop and the disk.
"""

from klamm.raft.config import RaftConfig
from klamm.raft.core.report import QuorumReport, ReplicaReport
from klamm.raft.driver import RaftDriver
from klamm.raft.interfaces import RaftListener, Transport

__all__ = ["QuorumReport", "RaftConfig", "RaftDriver", "RaftListener", "ReplicaReport", "Transport"]
