"""This broker in the cluster's eyes: it registers, beats, is unfenced, and says goodbye.

    starting ──registered──▶ fenced ──caught up──▶ running ──leaders moved──▶ stopped

A running broker that was silent for a session is fenced and comes back with its next heartbeats. One that stops asks
first: its leaders move to others, and it goes when everybody has heard of that.
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
"""The pause between heartbeats of a broker that waits to be let in or out."""
FAREWELL_S = 30.0
"""How long a stopping broker waits until its leaders have moved."""
FAREWELL_ANSWER_MS = 1_500
"""How long it looks for a controller that could move them."""
_MAY_PASS = frozenset({ErrorCode.DUPLICATE_BROKER_REGISTRATION, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER})
"""Refusals of a registration that time may heal: the process before this one still has its session."""


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
        self._said: str | None = None
        self.state = BrokerState.STARTING
        self.broker_epoch = -1
        self._offline_log_dirs = offline_log_dirs
        self._on_replaced = on_replaced
        """Called when another process has registered with this broker's id and replaces it: this one must stop."""

    # Coming

    async def register(
        self,
        endpoints: Mapping[str, Endpoint],
        features: Mapping[str, FeatureRange],
        rack: str | None,
        log_dirs: list[bytes],
        previous_epoch: int = -1,
    ) -> int:
        """Become known to the cluster; returns the broker epoch once this node's metadata holds the registration."""
        self._incarnation_id = self._new_uuid().bytes
        self._metadata.add_publisher(self)
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
        self.broker_epoch = await self._registered(request)
        self.state = BrokerState.FENCED
        log.info("broker registered", node=self._node_id, epoch=self.broker_epoch)
        while self._metadata.image.provenance.offset < self.broker_epoch:
            self._moved.clear()
            await self._moved.wait()
        return self.broker_epoch

    async def _registered(self, request: BrokerRegistrationRequest) -> int:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._registration_timeout
        while True:
            left_ms = max(int((deadline - loop.time()) * 1000), 1)
            response = await self._channel.ask(request, timeout_ms=left_ms)
            code = ErrorCode(response.error_code)
            if code is ErrorCode.NONE:
                return int(response.broker_epoch)
            if code not in _MAY_PASS or loop.time() >= deadline:
                raise KlammError(code, f"the controller refused to register this broker: {code.name}")
            if self._said != code.name:
                self._said = code.name
                log.warning("the controller does not take this broker yet", reason=code.name)
            await asyncio.sleep(EAGER_S)

    async def become_ready(self) -> None:
        """Beat until the controller lets clients in, then keep beating."""
        while self.state is BrokerState.FENCED:
            try:
                if not (await self._beat()).is_fenced:
                    break
            except KlammError as error:
                log.warning("heartbeat failed", reason=error)
            await asyncio.sleep(EAGER_S)
        self._task = asyncio.get_running_loop().create_task(self._keep_beating(), name="broker heartbeat")

    # Living

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Whoever stops waits until everybody has read of it: say so at once. Notice who takes this broker's place."""
        self._moved.set()
        for broker_id in delta.brokers_changed:
            broker = image.cluster.get(broker_id)
            if broker is None:
                continue
            if broker_id != self._node_id:
                if broker.in_controlled_shutdown:
                    self._wake.set()
            elif 0 <= self.broker_epoch < broker.epoch and broker.incarnation_id != self._incarnation_id:
                where = ", ".join(f"{e.host}:{e.port}" for e in broker.endpoints.values())
                self._on_replaced(
                    KlammError(
                        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                        f"another process at {where} has registered as broker {broker_id} while this one was out of"
                        " sight; give every broker its own node.id",
                    )
                )

    def epoch(self) -> int:
        """Return the broker epoch; -1 before the registration."""
        return self.broker_epoch

    def on_leader_change(self, _leader_id: int | None, _epoch: int) -> None:
        """Send a heartbeat to the new controller at once."""
        self._wake.set()

    async def _keep_beating(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._interval):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self._beat()
            except KlammError as error:
                log.warning("heartbeat failed", reason=error)

    async def _beat(self, *, want_shut_down: bool = False, timeout_ms: int | None = None) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=self._node_id,
            broker_epoch=self.broker_epoch,
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
            log.info("broker unfenced", node=self._node_id)
        elif response.is_fenced and self.state is BrokerState.RUNNING and not want_shut_down:
            self.state = BrokerState.FENCED
            log.warning("broker fenced by the controller", node=self._node_id)
        return response

    # Going

    async def leave(self) -> None:
        """Hand leadership over and wait until everybody knows; with no other broker alive there is nobody to."""
        was_running, self.state = self.state is BrokerState.RUNNING, BrokerState.STOPPING
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        others = [broker for broker in self._metadata.image.cluster.alive() if broker.id != self._node_id]
        if not was_running or not others:
            return
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._say_goodbye()
            log.info("broker stopped leading", node=self._node_id)
        except (TimeoutError, KlammError) as error:
            log.warning("the broker stops without having handed over", reason=str(error) or "it took too long")

    async def _say_goodbye(self) -> None:
        while True:
            response = await self._beat(want_shut_down=True, timeout_ms=FAREWELL_ANSWER_MS)
            if response.should_shut_down:
                return
            await asyncio.sleep(EAGER_S)

    async def stop(self) -> None:
        """End the heartbeats."""
        self.state = BrokerState.STOPPING
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
