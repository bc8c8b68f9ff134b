"""The broker's registration and heartbeats, from its start to its controlled shutdown.

    starting ──registered──▶ fenced ──caught up──▶ running ──leaders moved──▶ stopped

A running broker that sends no heartbeat for a session is fenced, and unfenced by its next heartbeats. One that stops
requests it first: its leaders move to other brokers, and it stops when those have applied the change.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto

from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import Endpoint, FeatureRange, MetadataImage
from klamm.metadata.loader import MetadataLoader
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from klamm.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from klamm.server.controller.channel import ControllerChannel
from klamm.telemetry.log import get_logger

log = get_logger("lifecycle")

EAGER_S = 0.05
"""The pause between heartbeats of a broker that waits to be unfenced or to shut down."""
SHUTDOWN_S = 30.0
"""How long a controlled shutdown may take."""
SHUTDOWN_HEARTBEAT_MS = 1_500
"""The timeout of its heartbeats: without a controller no leader can move."""
_RETRIED = frozenset({ErrorCode.DUPLICATE_BROKER_REGISTRATION, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER})
"""Refusals of a registration that is retried: the previous process of this broker still has its session."""


class BrokerState(Enum):
    """The state of a broker between start and stop."""

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
        new_uuid: Callable[[], uuid.UUID],
        channel: ControllerChannel,
        metadata: MetadataLoader,
        *,
        heartbeat_due: asyncio.Event,
        offline_log_dirs: Callable[[], Sequence[bytes]],
        on_replaced: Callable[[BaseException], None],
        heartbeat_interval_ms: int,
        session_timeout_ms: int = 9_000,
        registration_timeout_ms: int = 60_000,
    ) -> None:
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._new_uuid = new_uuid
        self._incarnation_id = b""
        self._channel = channel
        self._metadata = metadata
        self._interval = heartbeat_interval_ms / 1000
        self._session_timeout_ms = session_timeout_ms
        self._registration_timeout = registration_timeout_ms / 1000
        self._task: asyncio.Task[None] | None = None
        self._wake = heartbeat_due
        self._moved = asyncio.Event()
        self._logged_refusal: str | None = None
        self.state = BrokerState.STARTING
        self.broker_epoch = -1
        self._offline_log_dirs = offline_log_dirs
        self._on_replaced = on_replaced
        """Called when another process has registered with this broker's id and replaces it: this one must stop."""

    # Registration

    async def register(
        self,
        endpoints: Mapping[str, Endpoint],
        features: Mapping[str, FeatureRange],
        rack: str | None,
        log_dirs: list[bytes],
        previous_epoch: int = -1,
    ) -> int:
        """Register the broker; return its epoch once this node's metadata has the registration."""
        # A new id per process: by it the controller distinguishes a retry from another process with the same broker id.
        self._incarnation_id = self._new_uuid().bytes
        # Before the request: its record may be applied before the response arrives.
        self._metadata.add_publisher(self)
        request = BrokerRegistrationRequest(
            broker_id=self._node_id,
            cluster_id=self._cluster_id,
            incarnation_id=self._incarnation_id,
            listeners=[
                Listener(
                    name=name,
                    host=endpoint.host,
                    port=endpoint.port,
                    security_protocol=endpoint.security_protocol,
                )
                for name, endpoint in endpoints.items()
            ],
            features=[
                Feature(name=name, min_supported_version=levels.min_level, max_supported_version=levels.max_level)
                for name, levels in features.items()
            ],
            rack=rack,
            log_dirs=log_dirs,
            previous_broker_epoch=previous_epoch,
        )
        self.broker_epoch = await self._send_registration(request)
        self.state = BrokerState.FENCED
        log.info("broker registered", node=self._node_id, epoch=self.broker_epoch)
        # The broker epoch is the offset of the registration's record.
        while self._metadata.image.provenance.offset < self.broker_epoch:
            self._moved.clear()
            await self._moved.wait()
        return self.broker_epoch

    async def _send_registration(self, request: BrokerRegistrationRequest) -> int:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._registration_timeout
        while True:
            left_ms = max(int((deadline - loop.time()) * 1000), 1)
            response = await self._channel.ask(request, timeout_ms=left_ms)
            code = ErrorCode(response.error_code)
            if code is ErrorCode.NONE:
                return int(response.broker_epoch)
            if code not in _RETRIED or loop.time() >= deadline:
                raise KlammError(code, f"the controller refused to register this broker: {code.name}")
            if self._logged_refusal != code.name:
                self._logged_refusal = code.name
                log.warning("broker registration refused, retrying", reason=code.name)
            await asyncio.sleep(EAGER_S)

    async def become_ready(self) -> None:
        """Send heartbeats until the controller unfences the broker, then keep sending them."""
        while self.state is BrokerState.FENCED:
            try:
                if not (await self._send_heartbeat()).is_fenced:
                    break
            except KlammError as error:
                log.warning("heartbeat failed", reason=error)
            await asyncio.sleep(EAGER_S)
        self._task = asyncio.get_running_loop().create_task(self._keep_sending(), name="broker heartbeat")

    # Heartbeats

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """React to other brokers that stop, and to another process that registers with this broker's id."""
        self._moved.set()
        for broker_id in delta.brokers_changed:
            broker = image.cluster.get(broker_id)
            if broker is None:
                continue
            if broker_id != self._node_id:
                # It stops once the heartbeats of all brokers show that they have applied this.
                if broker.in_controlled_shutdown:
                    self._wake.set()
            # Epochs only grow: a higher one of another incarnation replaces this process, a lower one was replaced by
            # it.
            elif 0 <= self.broker_epoch < broker.epoch and broker.incarnation_id != self._incarnation_id:
                where = ", ".join(f"{e.host}:{e.port}" for e in broker.endpoints.values())
                self._on_replaced(
                    KlammError(
                        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                        f"another process at {where} has registered as broker {broker_id} while this one had no"
                        " session; give every broker its own node.id",
                    )
                )

    def epoch(self) -> int:
        """Return the broker epoch; -1 before the registration."""
        return self.broker_epoch

    def on_leader_change(self, _leader_id: int | None, _epoch: int) -> None:
        """Send a heartbeat to the new controller at once."""
        self._wake.set()

    async def _keep_sending(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._interval):
                    await self._wake.wait()
            except TimeoutError:
                pass
            # Cleared before the heartbeat: an event during it must cause another one.
            self._wake.clear()
            try:
                await self._send_heartbeat()
            except KlammError as error:
                log.warning("heartbeat failed", reason=error)

    async def _send_heartbeat(
        self, *, want_shut_down: bool = False, timeout_ms: int | None = None
    ) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=self._node_id,
            broker_epoch=self.broker_epoch,
            # The controller unfences, and lets others shut down, by this offset.
            current_metadata_offset=self._metadata.image.provenance.offset,
            want_fence=False,
            want_shut_down=want_shut_down,
            offline_log_dirs=[bytes(directory_id) for directory_id in self._offline_log_dirs()],
        )
        response: BrokerHeartbeatResponse = await self._channel.ask(
            request, timeout_ms=timeout_ms or self._session_timeout_ms
        )
        if response.error_code:
            code = ErrorCode(response.error_code)
            raise KlammError(code, f"the controller refused a heartbeat: {code.name}")
        if not response.is_fenced and self.state is BrokerState.FENCED:
            self.state = BrokerState.RUNNING
            log.info("broker state changed", node=self._node_id, state="running")
        elif response.is_fenced and self.state is BrokerState.RUNNING and not want_shut_down:
            self.state = BrokerState.FENCED
            log.warning("broker state changed", node=self._node_id, state="fenced")
        return response

    # Controlled shutdown

    async def leave(self) -> None:
        """Move leadership to other brokers and wait until they have applied it; does nothing when there are none."""
        was_running, self.state = self.state is BrokerState.RUNNING, BrokerState.STOPPING
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        # Without another live broker leadership cannot move, and waiting for it would only delay the stop.
        others = [broker for broker in self._metadata.image.cluster.alive() if broker.id != self._node_id]
        if not was_running or not others:
            return
        try:
            # Bounded: without a quorum leader nothing moves, and the node has to stop all the same.
            async with asyncio.timeout(SHUTDOWN_S):
                await self._request_shutdown()
            log.info("controlled shutdown complete", node=self._node_id)
        except (TimeoutError, KlammError) as error:
            log.warning("controlled shutdown failed", reason=str(error) or "timed out")

    async def _request_shutdown(self) -> None:
        while True:
            response = await self._send_heartbeat(want_shut_down=True, timeout_ms=SHUTDOWN_HEARTBEAT_MS)
            if response.should_shut_down:
                return
            await asyncio.sleep(EAGER_S)

    async def stop(self) -> None:
        """Stop the heartbeats."""
        self.state = BrokerState.STOPPING
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
