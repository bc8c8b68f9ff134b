"""Assigns every replica that follows to a fetcher: one fetcher per leader and lane."""

import asyncio
from collections.abc import Callable

from klamm.model.clock import Clock
from klamm.model.ids import TopicIdPartition
from klamm.replication.manager import ReplicaManager
from klamm.replication.replica import Replica
from klamm.replication.replica_fetcher import Address, ReplicaFetcher

Lane = tuple[int, int]
"""Leader, and which of its fetchers."""


class Fetchers:
    """All fetchers of this node; `on_role` is called with every replica whose role may have changed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        replicas: ReplicaManager,
        *,
        address: Callable[[int], Address | None],
        broker_epoch: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._replicas = replicas
        self._address = address
        self._broker_epoch = broker_epoch
        self._lanes: dict[Lane, ReplicaFetcher] = {}
        self._where: dict[TopicIdPartition, tuple[Lane, Replica]] = {}
        self._closed = False
        self.per_leader = replicas.config.fetchers
        """Fetchers per leader; `spread` after a change."""

    def __len__(self) -> int:
        return len(self._lanes)

    def on_role(self, replica: Replica) -> None:
        """Begin, move or end the copying of a partition."""
        if self._closed:
            return
        key = (replica.topic_id, replica.index)
        wanted = self._lane(replica)
        known = self._where.get(key)
        # Another object for the same partition: it was deleted and created again, or removed and assigned again.
        if known is not None and (known[0] != wanted or known[1] is not replica):
            self._leave(key, *known)
        if wanted is not None:
            fetcher = self._lanes.get(wanted)
            if fetcher is None:
                fetcher = self._lanes[wanted] = ReplicaFetcher(
                    self._loop,
                    self._clock,
                    self._replicas,
                    wanted[0],
                    address=self._address,
                    broker_epoch=self._broker_epoch,
                    name=f"{wanted[0]}-{wanted[1]}",
                )
            self._where[key] = (wanted, replica)
            # Also when the fetcher has it already: under a new leader epoch the fetch must name it again.
            fetcher.add(replica)

    def _lane(self, replica: Replica) -> Lane | None:
        leader = replica.state.leader
        if replica.retired or leader < 0 or leader == self._replicas.node_id:
            return None
        return leader, replica.index % self.per_leader

    def spread(self, per_leader: int) -> None:
        """Use so many fetchers per leader from now on."""
        if per_leader != self.per_leader:
            self.per_leader = per_leader
            for _, replica in list(self._where.values()):
                self.on_role(replica)

    def _leave(self, key: TopicIdPartition, lane: Lane, replica: Replica) -> None:
        del self._where[key]
        fetcher = self._lanes[lane]
        fetcher.remove(replica)
        # An idle fetcher would keep a connection and a session at the leader.
        if not fetcher.plan.partitions:
            del self._lanes[lane]
            fetcher.close()

    def close(self) -> None:
        """Copy nothing more."""
        self._closed = True
        for fetcher in self._lanes.values():
            fetcher.close()
        self._lanes.clear()
        self._where.clear()
