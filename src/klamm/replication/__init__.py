"""Replicas of partitions on this node: leadership, the high watermark, and the requests that wait for it.

Owns the bridge between a partition's log and its place in the cluster: leadership and epochs, the high watermark, fetch
sessions, and requests that wait for data or for acknowledgement. Does not know the wire or the sockets.
"""

from klamm.replication.delayed_fetch import DelayedFetch
from klamm.replication.fetch_sessions import FetchSessions
from klamm.replication.manager import ReplicaManager
from klamm.replication.replica import Replica

__all__ = ["DelayedFetch", "FetchSessions", "Replica", "ReplicaManager"]
