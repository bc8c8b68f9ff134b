"""This broker in the cluster's eyes: it registers, beats, is unfenced, and says goodbye.

    starting ──registered──▶ fenced ──caught up──▶ running ──▶ stopping

Requests go to the active controller like any other broker's; here it may be in the same process.
"""

import asyncio
from collections.abc import Mapping
from enum import Enum, auto

from klamm.metadata.image import Endpoint, FeatureRange
from klamm.metadata.publisher import MetadataLoader
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from klamm.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from klamm.server.controller_runtime import ControllerRuntime
from klamm.telemetry.log import get_logger

log = get_logger("lifecycle")


class BrokerState(Enum):
    """How far a broker has come."""

    STARTING = auto()
    FENCED = auto()
    RUNNING = auto()
    STOPPING = auto()


class BrokerLifecycle:
    """Registers the broker and keeps its session with the controller alive."""

    def __init__(
        self,
        node_id: int,
        cluster_id: str,
        incarnation_id: bytes,
        controller: ControllerRuntime,
        metadata: MetadataLoader,
        *,
        heartbeat_interval_ms: int,
    ) -> None:
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._incarnation_id = incarnation_id
        self._controller = controller
        self._metadata = metadata
        self._interval = heartbeat_interval_ms / 1000
        self._task: asyncio.Task[None] | None = None
        self.state = BrokerState.STARTING
        self.broker_epoch = -1

    async def register(
        self,
        endpoints: Mapping[str, Endpoint],
        features: Mapping[str, FeatureRange],
        rack: str | None,
        log_dirs: list[bytes],
        previous_epoch: int = -1,
    ) -> int:
        """Become known to the cluster; returns the broker epoch."""
        request = BrokerRegistrationRequest(
            broker_id=self._node_id,
            cluster_id=self._cluster_id,
            incarnation_id=self._incarnation_id,
            listeners=[
                Listener(name=name, host=e.host, port=e.port, security_protocol=e.security_protocol)
                for name, e in endpoints.items()
            ],
            features=[
                Feature(name=name, min_supported_version=f.min_level, max_supported_version=f.max_level)
                for name, f in features.items()
            ],
            rack=rack,
            log_dirs=log_dirs,
            previous_broker_epoch=previous_epoch,
        )
        response = await self._controller.register_broker(request)
        if response.error_code:
            code = ErrorCode(response.error_code)
            raise KlammError(code, f"the controller refused to register this broker: {code.name}")
        self.broker_epoch = response.broker_epoch
        self.state = BrokerState.FENCED
        log.info("broker registered", node=self._node_id, epoch=self.broker_epoch)
        return self.broker_epoch

    async def become_ready(self) -> None:
        """Beat until the controller lets clients in, then keep beating."""
        while self.state is BrokerState.FENCED:
            if not await self._beat():
                await asyncio.sleep(0.05)
        self._task = asyncio.get_running_loop().create_task(self._keep_beating(), name="broker heartbeat")

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self._beat()
            except KlammError as error:
                log.warning("heartbeat failed", reason=error)

    async def _beat(self) -> bool:
        request = BrokerHeartbeatRequest(
            broker_id=self._node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._metadata.image.provenance.offset,
            want_fence=False,
        )
        response = await self._controller.broker_heartbeat(request)
        if response.error_code:
            raise KlammError(ErrorCode(response.error_code), "the controller refused a heartbeat")
        if response.is_fenced:
            return False
        if self.state is BrokerState.FENCED:
            self.state = BrokerState.RUNNING
            log.info("broker unfenced", node=self._node_id)
        return True

    async def stop(self) -> None:
        """End the heartbeats. With no other broker alive there is nobody to hand leadership to."""
        self.state = BrokerState.STOPPING
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
