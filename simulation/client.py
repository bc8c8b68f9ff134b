"""A client process: asks brokers over the simulated network, finds leaders and coordinators, asks again."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from klamm.model.errors import ErrorCode, KlammError
from klamm.net.outbound import OutboundSecurity
from klamm.net.peer import Peer
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from simulation.cluster import SimCluster
from simulation.loop import Process
from simulation.threads import SimThreads
from simulation.users import LOAD, first_password, login_as

TIMEOUT_MS = 4_000
BACKOFF_S = 0.1

GONE = (OSError, KlammError, asyncio.TimeoutError)
"""What a request can end with that says nothing about whether it was carried out."""

LATER = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_CONTROLLER,
}
"""What a client tries again."""


class Client(ABC):
    """One client process with its connections. `run` is its main coroutine; a restart makes another one."""

    def __init__(self, cluster: SimCluster, name: str, user: str = LOAD) -> None:
        self.cluster = cluster
        self.name = name
        self.user = user
        """Who it logs in as, where nodes require a login."""
        self.password = first_password(user)
        self.random: Random = cluster.chance(name)
        self.process = Process(name, name)
        self.stopping = False
        self.brokers: dict[int, tuple[str, int]] = {}
        self.leaders: dict[tuple[str, int], tuple[int, int]] = {}
        """(topic, partition) -> (leader, epoch)"""
        self.topic_ids: dict[str, bytes] = {}
        self._peers: dict[tuple[str, int], Peer] = {}

    @property
    def loop(self) -> Any:
        """The simulation's loop."""
        return self.cluster.loop

    def grow(self, partitions: int) -> None:  # noqa: B027 - most clients have nothing to do
        """Use the new partitions of the client's topic; clients that count them override this."""

    def start(self) -> None:
        """Begin, in a new process after a kill."""
        if self.cluster.layout.secured:
            self.process.default_threads = SimThreads(self.loop, self.process, 1, self._salting_time)
        self.cluster.loop.spawn(self.process, self._main(), name=self.name)

    def _salting_time(self) -> float:
        return 0.001 + self.random.random() * 0.003

    async def _main(self) -> None:
        try:
            await self.run()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - a client that breaks is a finding
            self.cluster.loop.fail(f"{self.name} broke", error)

    @abstractmethod
    async def run(self) -> None:
        """What this client does."""

    def kill(self) -> None:
        """End the process; connections are reset."""
        self.cluster.loop.kill(self.process)
        self.cluster.net.on_process_ended(self.process, notify_peer=True)
        self._peers = {}

    def restart(self) -> None:
        """Begin again with nothing in memory but the name."""
        self.process = Process(self.name, self.name)
        self.brokers, self.leaders = {}, {}
        self.start()

    # --- asking ------------------------------------------------------------------------------------------------------

    def peer(self, address: tuple[str, int]) -> Peer:
        """The connection to an address."""
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = Peer(
                self.loop,
                *address,
                client_id=self.name,
                request_timeout_ms=TIMEOUT_MS,
                connect_timeout_ms=2_000,
                security=self._security(),
            )
        return peer

    def _security(self) -> OutboundSecurity | None:
        layout = self.cluster.layout
        return login_as(self.user, self.password, tls=layout.tls) if layout.secured else None

    def forget_peers(self) -> None:
        """Connect anew for what is sent from now on; connections with requests in flight end with their answers."""
        self._peers = {}

    async def ask(self, node: int | None, request: Any, version: int, timeout_ms: int = TIMEOUT_MS) -> Any:
        """Ask one broker, or any."""
        if node is None or node not in self.brokers:
            address = self.random.choice(sorted(self.brokers.values()) or self.cluster.bootstrap)
        else:
            address = self.brokers[node]
        return await self.peer(address).ask(request, version, timeout_ms=timeout_ms)

    async def pause(self, seconds: float = BACKOFF_S) -> None:
        """Wait a little, not always the same."""
        await asyncio.sleep(seconds * (0.5 + self.random.random()))

    async def retry(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Try until there is a result; KlammError and lost connections mean "not yet"."""
        while True:
            try:
                return await attempt()
            except GONE:
                await self.pause()

    # --- metadata ----------------------------------------------------------------------------------------------------

    async def refresh(self, *topics: str) -> None:
        """Ask any broker who leads what."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in topics], allow_auto_topic_creation=False
        )
        address = self.random.choice(self.cluster.bootstrap)
        response = await self.peer(address).ask(request, 12, timeout_ms=2_000)
        if response.brokers:
            self.brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        for topic in response.topics:
            if topic.error_code:
                for key in [key for key in self.leaders if key[0] == topic.name]:
                    del self.leaders[key]
                continue
            self.topic_ids[topic.name] = topic.topic_id
            for partition in topic.partitions:
                key = (topic.name, partition.partition_index)
                known = self.leaders.get(key)
                if known is None or partition.leader_epoch >= known[1]:
                    self.leaders[key] = (partition.leader_id, partition.leader_epoch)

    async def leader_of(self, topic: str, index: int) -> int:
        """The broker that leads a partition; waits until there is one."""
        while True:
            leader = self.leaders.get((topic, index))
            if leader is not None and leader[0] in self.brokers:
                return leader[0]
            try:
                await self.refresh(topic)
            except GONE:
                pass
            leader = self.leaders.get((topic, index))
            if leader is None or leader[0] not in self.brokers:
                await self.pause()

    def epoch_of(self, topic: str, index: int) -> int:
        """The leader epoch this client knows of."""
        return self.leaders.get((topic, index), (-1, -1))[1]

    def forget_leader(self, topic: str, index: int) -> None:
        """What was known is wrong."""
        known = self.leaders.get((topic, index))
        if known is not None:
            self.leaders[topic, index] = (-1, known[1])

    async def coordinator(self, kind: int, key: str) -> int:
        """The broker that looks after a group (0) or a transactional id (1); waits until there is one."""
        while True:
            try:
                response = await self.ask(None, FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 4)
                coordinator = response.coordinators[0]
                if coordinator.error_code == ErrorCode.NONE:
                    self.brokers[coordinator.node_id] = (coordinator.host, coordinator.port)
                    return int(coordinator.node_id)
            except GONE:
                pass
            await self.pause()
