"""Everything between this node and the active controller: its own controller, and a channel for each purpose."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping

from klamm.metadata.image import Endpoint, FeatureRange
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.controller_registration import ControllerRegistrationRequest, Feature, Listener
from klamm.raft import RaftDriver
from klamm.server.cluster.broker_watch import BrokerWatch
from klamm.server.controller.channel import ControllerChannel
from klamm.server.controller.raft_transport import RaftTransport
from klamm.server.controller.runtime import ControllerRuntime
from klamm.telemetry.log import get_logger

log = get_logger("controller")

REGISTER_AGAIN_S = 1.0


class ControllerLink:
    """Made once per node; told of every leader of the quorum."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        raft: RaftDriver,
        runtime: ControllerRuntime,
        transport: RaftTransport,
        *,
        wait_applied: Callable[[int], Awaitable[None]],
        on_heartbeat_lost: Callable[[], None],
    ) -> None:
        connect = functools.partial(ControllerChannel, loop, raft, runtime, address=transport.address)
        self.runtime = runtime
        """This node's own controller; never active on a node that is none."""
        self.watch = BrokerWatch(loop, runtime, raft.config.node_id)
        self.admin = connect(purpose="forwarding", wait_applied=wait_applied)
        """For requests of clients."""
        self.heartbeat = connect(purpose="heartbeat", on_lost=on_heartbeat_lost)
        """For registration and heartbeats alone: this connection's end means something."""
        self.isr = connect(purpose="alter-partition")
        """For what brokers have to say about partitions, and for producer ids."""

    def register_controller(
        self,
        node_id: int,
        incarnation_id: bytes,
        endpoints: Mapping[str, Endpoint],
        features: Mapping[str, FeatureRange],
    ) -> None:
        """Let the active controller know, as soon as there is one, where this one listens and what it can run."""
        request = ControllerRegistrationRequest(
            controller_id=node_id,
            incarnation_id=incarnation_id,
            listeners=[
                Listener(name=name, host=e.host, port=e.port, security_protocol=e.security_protocol)
                for name, e in endpoints.items()
            ],
            features=[
                Feature(name=name, min_supported_version=f.min_level, max_supported_version=f.max_level)
                for name, f in features.items()
            ],
        )
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
            log.warning("the active controller did not register this one", reason=reason)
            await asyncio.sleep(REGISTER_AGAIN_S)

    def on_leader_change(self, _leader_id: int | None, _epoch: int) -> None:
        """Take over or step back; whoever waits for a controller asks the new one."""
        self.runtime.on_leader_change()
        for channel in (self.admin, self.heartbeat, self.isr):
            channel.on_leader_change()

    async def stop(self) -> None:
        """Decide and ask nothing more."""
        await self.runtime.stop()
        for channel in (self.admin, self.heartbeat, self.isr):
            channel.close()
