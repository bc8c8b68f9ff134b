"""Everything between this node and the active controller: its own controller, and a channel for each purpose."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping

from klamm.metadata.image import Endpoint, FeatureRange
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.controller_registration import ControllerRegistrationRequest, Feature, Listener
from klamm.raft import RaftDriver
from klamm.server.cluster.broker_watch import BrokerWatch
from klamm.server.controller.channel import ControllerChannel, ForwardedClient
from klamm.server.controller.raft_transport import RaftTransport
from klamm.server.controller.runtime import ControllerRuntime
from klamm.telemetry.log import get_logger

log = get_logger("controller")

REGISTER_AGAIN_S = 1.0


class ControllerLink:
    """This node's own controller and its channels to the active one."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        raft: RaftDriver,
        runtime: ControllerRuntime,
        transport: RaftTransport,
        *,
        wait_applied: Callable[[int], Awaitable[None]],
        on_heartbeat_lost: Callable[[], None],
        own_client: ForwardedClient | None = None,
    ) -> None:
        connect = functools.partial(
            ControllerChannel,
            loop,
            raft,
            runtime,
            address=transport.address,
            security=transport.security,
            own_client=own_client,
        )
        self.runtime = runtime
        """This node's own controller; never active on a node without the controller role."""
        self.watch = BrokerWatch(loop, runtime, raft.config.node_id)
        self.admin = connect(purpose="forwarding", wait_applied=wait_applied)
        """For requests of clients."""
        self.heartbeat = connect(purpose="heartbeat", on_lost=on_heartbeat_lost)
        """For registration and heartbeats alone: its end is a sign that this process may be dead."""
        self.isr = connect(purpose="alter-partition")
        """For AlterPartition, AssignReplicasToDirs and AllocateProducerIds."""

    def register_controller(
        self,
        node_id: int,
        incarnation_id: bytes,
        endpoints: Mapping[str, Endpoint],
        features: Mapping[str, FeatureRange],
    ) -> None:
        """Register endpoints and feature levels of this node's controller, as soon as there is an active one."""
        request = ControllerRegistrationRequest(
            controller_id=node_id,
            incarnation_id=incarnation_id,
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
        )
        # In the background: the registration needs an active controller, and this node may have to become it first.
        self.runtime.spawn(self._register(request), "controller registration")

    async def _register(self, request: ControllerRegistrationRequest) -> None:
        while True:
            try:
                response = await self.isr.ask(request)
                code = ErrorCode(response.error_code)
                if code is ErrorCode.NONE:
                    log.info("controller registered", node=request.controller_id)
                    return
                reason = code.name
            except KlammError as error:
                reason = str(error)
            log.warning("controller registration failed", reason=reason)
            await asyncio.sleep(REGISTER_AGAIN_S)

    def on_leader_change(self, _leader_id: int | None, _epoch: int) -> None:
        """Activate or deactivate this node's controller; waiting requests go to the new one."""
        # Before the channels: their waiting requests find this node's controller active, if it is.
        self.runtime.on_leader_change()
        for channel in (self.admin, self.heartbeat, self.isr):
            channel.on_leader_change()

    async def stop(self) -> None:
        """Stop the controller and close the channels."""
        await self.runtime.stop()
        for channel in (self.admin, self.heartbeat, self.isr):
            channel.close()
