"""Notices at once that a broker's process is dead, so that its leaders move without waiting for a session timeout.

A broker beats over one connection. When that ends and nobody listens at the broker's own address any more, no process
is there: fencing it is safe, as it always is. A broker that is paused or cut off still has its session. A controller
that has just taken over looks once at every broker it was told of, because the one before it may have died with one.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from klamm.controller import Controller
from klamm.metadata.image import BrokerImage, Endpoint
from klamm.model.errors import KlammError
from klamm.server.controller.runtime import ControllerRuntime
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.server.requests.context import ConnectionState

log = get_logger("controller")

AFTER_A_LOSS_S = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""When a broker is looked for after its connection ended: a dying process closes its sockets one by one."""
AFTER_TAKING_OVER_S = (0.0, 0.1, 0.4)
CONNECT_S = 1.0
_EVERY_INTERFACE = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, never bound


class BrokerWatch:
    """Connections of brokers to this controller, and what their end may mean."""

    def __init__(self, loop: asyncio.AbstractEventLoop, runtime: ControllerRuntime, node_id: int) -> None:
        self._loop = loop
        self._runtime = runtime
        self._node_id = node_id
        self._connections: dict[int, ConnectionState] = {}
        self._looking: set[int] = set()
        runtime.add_activation_watcher(self._on_active)

    def on_heartbeat(self, broker_id: int, connection: "ConnectionState") -> None:
        """A broker beat over this connection."""
        if self._connections.get(broker_id) is not connection:
            self._connections[broker_id] = connection
            connection.on_close.append(lambda: self._lost(broker_id, connection))

    def _lost(self, broker_id: int, connection: "ConnectionState") -> None:
        if self._connections.get(broker_id) is not connection:
            return
        del self._connections[broker_id]
        controller = self._runtime.active
        if controller is not None:
            controller.on_broker_disconnected(broker_id)
            self._look(broker_id, AFTER_A_LOSS_S)

    def _on_active(self, controller: Controller) -> None:
        self._connections.clear()
        for broker in controller.image.cluster.brokers.values():
            if not broker.fenced and broker.id != self._node_id:
                self._look(broker.id, AFTER_TAKING_OVER_S)

    def _look(self, broker_id: int, pauses_s: Sequence[float]) -> None:
        if broker_id not in self._looking:
            self._looking.add(broker_id)
            self._runtime.spawn(self._look_for(broker_id, pauses_s), f"look for broker {broker_id}")

    async def _look_for(self, broker_id: int, pauses_s: Sequence[float]) -> None:
        try:
            for pause in pauses_s:
                await asyncio.sleep(pause)
                broker = self._expected(broker_id)
                if broker is None:
                    return
                endpoint = next(iter(broker.endpoints.values()), None)
                if endpoint is None or endpoint.host in _EVERY_INTERFACE:
                    return
                if await self._is_refused(endpoint):
                    await self._fence(broker)
                    return
        finally:
            self._looking.discard(broker_id)

    def _expected(self, broker_id: int) -> BrokerImage | None:
        """The broker, while it should be alive and has not come back by itself."""
        controller = self._runtime.active
        broker = controller.image.cluster.get(broker_id) if controller is not None else None
        return None if broker is None or broker.fenced or broker_id in self._connections else broker

    async def _is_refused(self, endpoint: Endpoint) -> bool:
        try:
            async with asyncio.timeout(CONNECT_S):
                transport, _ = await self._loop.create_connection(asyncio.Protocol, endpoint.host, endpoint.port)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        transport.abort()
        return False

    async def _fence(self, broker: BrokerImage) -> None:
        try:
            outcome = await self._runtime.submit(lambda c: c.fence_dead_broker(broker.id, broker.epoch))
        except KlammError as error:
            log.debug("a dead broker was not fenced", broker=broker.id, reason=error)
            return
        if outcome.response:
            log.warning("broker fenced: its process is gone", broker=broker.id, epoch=broker.epoch)
