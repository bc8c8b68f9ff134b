"""Replication as a running part of the node: fetchers, ISR checks, high-watermark checkpoints, throttles.

The replicas get their roles from the metadata; here are the timers, addresses and configs around them.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import MetadataImage
from klamm.model.config_resources import ResourceType
from klamm.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from klamm.replication.fetcher_manager import Fetchers
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.server.services import Services

log = get_logger("replication")

TICK_S = 0.5
ALTER_PARTITION_VERSION = 3
LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
FETCHERS = "num.replica.fetchers"


class ReplicationService:
    """Runs fetchers, ISR checks and checkpoints; started once the broker is registered."""

    def __init__(self, services: "Services", broker_epoch: Callable[[], int]) -> None:
        self._services = services
        replicas = services.replicas
        self.fetchers = Fetchers(
            services.loop, services.clock, replicas, address=self._address, broker_epoch=broker_epoch
        )
        replicas.on_role.append(self.fetchers.on_role)
        self._broker_epoch = broker_epoch
        self._task: asyncio.Task[None] | None = None
        self._checkpointed = -1

    def start(self) -> None:
        """Start the timers and send proposals of ISR changes."""
        self._services.replicas.isr.start(self._alter_partition, self._broker_epoch)
        self._set_rates(self._services.image)
        self._task = self._services.loop.create_task(self._run(), name="replication")

    async def stop(self) -> None:
        """Stop fetching, ISR changes and the timers."""
        self.fetchers.close()
        self._services.replicas.isr.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # Requests and metadata

    def _address(self, broker_id: int) -> tuple[str, int] | None:
        broker = self._services.image.cluster.get(broker_id)
        if broker is None:
            return None
        endpoint = broker.endpoints.get(self._services.config.inter_broker_listener_name)
        if endpoint is None:
            # As for clients: brokers may have different listeners while a cluster is reconfigured.
            endpoint = next(iter(broker.endpoints.values()), None)
        return (endpoint.host, endpoint.port) if endpoint is not None else None

    async def _alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        response: AlterPartitionResponse = await self._services.controllers.isr.ask(request, ALTER_PARTITION_VERSION)
        return response

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply changed brokers and configs; called once the replicas have followed the image."""
        replicas = self._services.replicas
        # Before anything below reads it: eligibility for the ISR depends on fenced brokers.
        replicas.image = image
        if delta.brokers_changed:
            self._on_brokers_changed()
        if any(resource.type == ResourceType.BROKER for resource in delta.configs_changed):
            self._set_rates(image)
            # num.replica.fetchers is dynamic, as in Kafka: partitions are dealt out again among the new number.
            self.fetchers.spread(self._services.settings.integer(image, FETCHERS))

    def _on_brokers_changed(self) -> None:
        """Reconsider ISRs and high watermarks: a broker was registered, fenced, unfenced or removed."""
        replicas = self._services.replicas
        now_ms = self._services.clock.monotonic_ms()
        replicas.isr.reconsider_candidates()
        for replica in replicas:
            state = replica.state
            # Only a leader with replicas outside its ISR can gain or lose by a change of brokers.
            if not replica.leads or len(state.replicas) == len(state.isr):
                continue
            if state.reconsider(replica.log.log_end_offset, now_ms, replicas.isr.eligible):
                replica.refresh()
                replicas.update_leader_high_watermark(replica)

    def _set_rates(self, image: MetadataImage) -> None:
        replicas = self._services.replicas
        replicas.leader_throttle.rate = self._services.settings.integer(image, LEADER_RATE)
        replicas.follower_throttle.rate = self._services.settings.integer(image, FOLLOWER_RATE)

    # Timers

    async def _run(self) -> None:
        services, config = self._services, self._services.replicas.config
        # Kafka, too, checks at half of replica.lag.time.max.ms; the bounds are for extreme values of it.
        lag_check_s = max(min(config.lag_time_max_ms / 2000, 3600.0), 0.05)
        checkpoint_s = config.checkpoint_interval_ms / 1000
        now = services.loop.time()
        next_lag, next_checkpoint = now + lag_check_s, now + checkpoint_s
        while True:
            await asyncio.sleep(min(TICK_S, lag_check_s))
            now = services.loop.time()
            try:
                services.replicas.tick()
                services.replicas.isr.reconsider_candidates()
                if now >= next_lag:
                    next_lag = now + lag_check_s
                    services.replicas.isr.check_lag(services.clock.monotonic_ms())
                if now >= next_checkpoint:
                    next_checkpoint = now + checkpoint_s
                    self._checkpoint()
            except Exception as error:  # noqa: BLE001 - a failure of one partition must not stop the checks of all others
                log.failure("ISR check failed", error)

    def _checkpoint(self) -> None:
        """Write the high watermarks if one of them has moved."""
        # Comparing sums is cheap; a movement they hide is written with the next one.
        total = sum(replica.log.high_watermark for replica in self._services.replicas)
        if total != self._checkpointed:
            self._checkpointed = total
            self._services.logs.checkpoint(wait=False)
