"""Coordinators: groups of consumers and transactions of producers, kept in partitions of internal topics.

A shard is the state of one partition. It decides (`core.shard.Decision`) and replays, and has no clock, socket or
file. `runtime` is the only impure package: it appends what a shard decides, replays it, sends the replies once the
records are committed, and loads a shard from its partition on the node that leads it. What the records mean is in
`groups` and `transactions`; which partition is led where is known to the server.
"""

from klamm.coordinator.core.shard import CoordinatorRecord, Decision, LoggedEvent, Now, ReplyTo, Shard
from klamm.coordinator.runtime.coordinator_runtime import CoordinatorRuntime, PartitionLog

__all__ = [
    "CoordinatorRecord",
    "CoordinatorRuntime",
    "Decision",
    "LoggedEvent",
    "Now",
    "PartitionLog",
    "ReplyTo",
    "Shard",
]
