"""The controller's shell: one decision at a time becomes records, the records go through the quorum, then the answer.

A decision is replayed as soon as its records are proposed, so the next one sees it and many can wait for one fsync. The
answer waits until the records are committed and have taken effect on this broker. A controller that loses leadership
forgets what was not committed and starts again from the committed image.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from klamm.controller import Controller, Decision
from klamm.metadata.publisher import MetadataLoader
from klamm.metadata.records import encode_record
from klamm.model.clock import Clock
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from klamm.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from klamm.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from klamm.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from klamm.raft import RaftDriver
from klamm.telemetry.log import get_logger

log = get_logger("controller")

R = TypeVar("R")

TICK_SECONDS = 1.0
"""How often sessions of brokers are looked at."""


class ControllerRuntime:
    """Runs the active controller of a quorum; on another node every call is refused with NOT_CONTROLLER."""

    def __init__(
        self, make_controller: Callable[[], Controller], raft: RaftDriver, metadata: MetadataLoader, clock: Clock
    ) -> None:
        self._make_controller = make_controller
        self._raft = raft
        self._metadata = metadata
        self._clock = clock
        self._controller: Controller | None = None
        self._epoch = -1
        self._first: Decision[None] = Decision((), None)
        self._ticker: asyncio.Task[None] | None = None
        self.applied: Callable[[int], Any] | None = None
        """Awaited with an offset before an answer goes out: its changes have then taken effect on this broker."""

    async def start(self) -> None:
        """Begin to decide where this node leads; an empty log gets its first records."""
        controller = self._active()
        if self._first.records:
            await self._propose(controller, self._first)
        self._ticker = asyncio.get_running_loop().create_task(self._tick(), name="controller tick")

    async def stop(self) -> None:
        """Decide nothing more."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        self._controller = None

    def _take_over(self) -> None:
        leader, epoch = self._raft.leader
        if leader != self._raft.config.node_id:
            self._controller = None
        elif epoch != self._epoch:
            controller = self._make_controller()
            self._first = controller.take_over(self._metadata.image, self._clock.monotonic_ms())
            self._controller, self._epoch = controller, epoch

    def _active(self) -> Controller:
        self._take_over()
        if self._controller is None:
            raise KlammError(ErrorCode.NOT_CONTROLLER, f"the active controller is {self._raft.leader[0]}")
        return self._controller

    async def _submit(self, decide: Callable[[Controller, int], Decision[R]]) -> R:
        controller = self._active()
        decision = decide(controller, self._clock.monotonic_ms())
        if decision.records:
            offset = await self._propose(controller, decision)
            if self.applied is not None:
                await self.applied(offset)
        return decision.response

    async def _propose(self, controller: Controller, decision: Decision[Any]) -> int:
        future = self._raft.append([encode_record(record) for record in decision.records])
        controller.replay(decision.records)
        try:
            return await future
        except KlammError:
            self._controller, self._epoch = None, -1
            raise

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                while await self._submit(lambda controller, now: controller.tick(now)):
                    pass
            except KlammError as error:
                log.debug("controller tick skipped", reason=error)

    async def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        """Create topics."""
        return await self._submit(lambda controller, _: controller.create_topics(request))

    async def delete_topics(self, request: DeleteTopicsRequest, version: int) -> DeleteTopicsResponse:
        """Delete topics by name or id."""
        return await self._submit(lambda controller, _: controller.delete_topics(request, version))

    async def create_partitions(self, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
        """Add partitions to topics."""
        return await self._submit(lambda controller, _: controller.create_partitions(request))

    async def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        """Change single settings."""
        return await self._submit(lambda controller, _: controller.incremental_alter_configs(request))

    async def alter_configs(self, request: AlterConfigsRequest) -> AlterConfigsResponse:
        """Replace all settings of a resource."""
        return await self._submit(lambda controller, _: controller.alter_configs(request))

    async def update_features(self, request: UpdateFeaturesRequest, version: int) -> UpdateFeaturesResponse:
        """Move feature levels."""
        return await self._submit(lambda controller, _: controller.update_features(request, version))

    async def register_broker(self, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
        """Make a broker known."""
        return await self._submit(
            lambda c, now: c.register_broker(request, next_offset=self._raft.log_end_offset, now_ms=now)
        )

    async def broker_heartbeat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        """Keep a broker's session, fence or unfence it."""
        return await self._submit(
            lambda c, now: c.broker_heartbeat(request, next_offset=self._raft.log_end_offset, now_ms=now)
        )

    async def allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
        """Reserve a block of producer ids."""
        return await self._submit(lambda controller, _: controller.allocate_producer_ids(request))
