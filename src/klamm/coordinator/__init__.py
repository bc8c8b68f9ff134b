"""Coordinators: groups of consumers and transactions of producers, kept in partitions of internal topics.

A shard is the state of one partition. It decides (`shard.Decision`) and replays, and knows no clock, socket or file;
`runtime` is the only impure file: it appends what a shard decides, replays it, lets the replies go once the records are
committed, and loads a shard again from its partition wherever that is led next. What the records mean is in `groups`
and `transactions`; which partition lives where is the server's business.
"""

from klamm.coordinator.core.shard import Decision, Event, Now, Record, ReplyTo, Shard
from klamm.coordinator.runtime.coordinator_runtime import CoordinatorRuntime, PartitionLog

__all__ = ["CoordinatorRuntime", "Decision", "Event", "Now", "PartitionLog", "Record", "ReplyTo", "Shard"]
