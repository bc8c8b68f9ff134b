"""The transaction coordinator of this node: its shards, the writer of their markers, the gate of the partitions."""

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from klamm.coordinator import CoordinatorRuntime
from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.runtime.coordinator_runtime import PartitionLog
from klamm.coordinator.transactions import TransactionConfig, TransactionShard
from klamm.coordinator.transactions.state import PREPARED
from klamm.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig
from klamm.server.boot.config import NodeConfig
from klamm.server.coordinators.transaction_gate import TransactionGate
from klamm.server.coordinators.transaction_markers import MarkerWriter

if TYPE_CHECKING:
    from klamm.server.services import Services

TRANSACTION_STATE_TOPIC = "__transaction_state"
BRIEF_PAUSES_MS = (1, 2, 4, 8)
"""How a request waits for the markers of the previous transaction, which usually take a few milliseconds."""
TRANSACTION = 1
"""The coordinator type of transactional ids in FindCoordinator."""

DecideForTransaction = Callable[[TransactionShard, Now, ReplyTo], Decision]


class TransactionCoordinator:
    """Decides the requests of transactional producers whose ids this node coordinates."""

    def __init__(self, services: "Services", open_log: Callable[[int], PartitionLog | None]) -> None:
        config = _transaction_config(services.config)

        def make_shard(partition: int, epoch: int) -> TransactionShard:
            send_markers = functools.partial(self.markers.receive, partition)
            return TransactionShard(epoch, config, services.producer_ids.take, send_markers)

        # The shards are made when partitions are loaded, long after `markers` is set below.
        self._services = services
        self.runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            TRANSACTION_STATE_TOPIC, make_shard, open_log, loop=services.loop, clock=services.clock
        )
        self._completions: dict[str, asyncio.Task[None]] = {}
        """By transactional id: ends when its last transaction is complete, or has taken too long to wait for."""
        self.gate = TransactionGate(services, self.runtime)
        self.markers = MarkerWriter(services, self.runtime)

    async def submit_and_wait(self, transactional_id: str, decide: DecideForTransaction) -> Any:
        """Let the shard of a transactional id decide; KlammError when it refuses or is not led here.

        While requests of the same id wait for its last transaction to be completed, this one waits behind them: Kafka
        handles the requests of a connection one by one, and an EndTxn that overtook its AddPartitionsToTxn would be
        refused.
        """
        completion = self._completions.get(transactional_id)
        if completion is not None:
            # Shielded: others wait for it too, and one that gives up must not end it for them.
            await asyncio.shield(completion)
        return await self.runtime.submit_and_wait(self.runtime.partition_for(transactional_id), decide)

    async def submit_when_free(self, transactional_id: str, decide: DecideForTransaction) -> Any:
        """`submit_and_wait`, after waiting briefly for the previous transaction to be completed.

        The refusal CONCURRENT_TRANSACTIONS would make the client sleep for much longer than the markers take.
        """
        if transactional_id not in self._completions and self._is_completing(transactional_id):
            task = self._services.loop.create_task(self._await_completion(transactional_id))
            self._completions[transactional_id] = task
        return await self.submit_and_wait(transactional_id, decide)

    def _is_completing(self, transactional_id: str) -> bool:
        """Whether markers of the id's last transaction are still being written."""
        # None on a node that does not coordinate the id: `submit_and_wait` then raises NOT_COORDINATOR.
        active = self.runtime.serving(transactional_id)
        metadata = None if active is None else active.shard.find(transactional_id)
        return metadata is not None and metadata.state in PREPARED

    async def _await_completion(self, transactional_id: str) -> None:
        try:
            # Polling: markers are usually written within a few ms, and a client that is refused backs off for longer.
            for pause_ms in BRIEF_PAUSES_MS:
                await asyncio.sleep(pause_ms / 1000)
                if not self._is_completing(transactional_id):
                    return
        finally:
            # Before the requests that wait run on: the next one starts a wait of its own if markers are still missing.
            del self._completions[transactional_id]

    async def submit_with_ids(self, transactional_id: str, decide: DecideForTransaction) -> Any:
        """`submit_and_wait` for decisions that may need a new producer id, which is fetched first."""
        # Before the decision, which is pure and cannot wait for the controller.
        await self._services.producer_ids.ensure()
        return await self.submit_and_wait(transactional_id, decide)

    def stop(self) -> None:
        """Close the connections to other brokers and cancel what waits."""
        self.gate.stop()
        self.markers.stop()
        for completion in list(self._completions.values()):
            completion.cancel()


def transaction_topic(config: NodeConfig) -> CreatableTopic:
    """Return the internal topic: compacted, uncompressed, without unclean leader election."""
    settings = {
        # A lost record could commit a transaction in some partitions and abort it in others.
        "unclean.leader.election.enable": "false",
        "compression.type": "uncompressed",
        "cleanup.policy": "compact",
        "min.insync.replicas": str(config.integer("transaction.state.log.min.isr")),
        "segment.bytes": str(config.integer("transaction.state.log.segment.bytes")),
    }
    return CreatableTopic(
        name=TRANSACTION_STATE_TOPIC,
        num_partitions=config.integer("transaction.state.log.num.partitions"),
        replication_factor=config.integer("transaction.state.log.replication.factor"),
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in settings.items()],
    )


def _transaction_config(config: NodeConfig) -> TransactionConfig:
    return TransactionConfig(
        transaction_max_timeout_ms=config.integer("transaction.max.timeout.ms"),
        transactional_id_expiration_ms=config.integer("transactional.id.expiration.ms"),
        abort_timed_out_interval_ms=config.integer("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
        remove_expired_interval_ms=config.integer("transaction.remove.expired.transaction.cleanup.interval.ms"),
    )
