"""Detects that a broker's process is dead, so that its leaders move without waiting for the session timeout.

A broker sends heartbeats over one connection. When that ends and its own address refuses connections, the process is
dead: fencing it is safe, as it always is. A broker that is paused or partitioned off keeps its session. A new active
controller probes every broker once, because one may have died together with the previous controller.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from klamm.controller import Controller, ControllerDecision
from klamm.metadata.image import BrokerImage, Endpoint
from klamm.model.errors import KlammError
from klamm.server.controller.runtime import ControllerRuntime
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.server.requests.context import ConnectionState

log = get_logger("controller")

AFTER_LOSS_S = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""Pauses between probes after a connection ended: a dying process closes its sockets one by one."""
AFTER_ACTIVATION_S = (0.0, 0.1, 0.4)
CONNECT_S = 1.0
_EVERY_INTERFACE = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, never bound


class BrokerWatch:
    """Probes brokers whose heartbeat connections end, and fences those that are dead."""

    def __init__(self, loop: asyncio.AbstractEventLoop, runtime: ControllerRuntime, node_id: int) -> None:
        self._loop = loop
        self._runtime = runtime
        self._node_id = node_id
        self._connections: dict[int, ConnectionState] = {}
        self._probing: set[int] = set()
        runtime.add_activation_watcher(self._on_active)

    def on_heartbeat(self, broker_id: int, connection: "ConnectionState") -> None:
        """Watch the connection that a broker sends its heartbeats over."""
        if self._connections.get(broker_id) is not connection:
            self._connections[broker_id] = connection
            connection.on_close.append(partial(self._on_connection_lost, broker_id, connection))

    def _on_connection_lost(self, broker_id: int, connection: "ConnectionState") -> None:
        # The broker has reconnected already; the end of its old connection means nothing.
        if self._connections.get(broker_id) is not connection:
            return
        del self._connections[broker_id]
        controller = self._runtime.active
        if controller is not None:
            controller.on_broker_disconnected(broker_id)
            self._start_probing(broker_id, AFTER_LOSS_S)

    def _on_active(self, controller: Controller) -> None:
        # Connections from an earlier activation belong to a controller that no longer counts their heartbeats.
        self._connections.clear()
        for broker in controller.image.cluster.brokers.values():
            if not broker.fenced and broker.id != self._node_id:
                self._start_probing(broker.id, AFTER_ACTIVATION_S)

    def _start_probing(self, broker_id: int, pauses_s: Sequence[float]) -> None:
        if broker_id not in self._probing:
            self._probing.add(broker_id)
            self._runtime.spawn(self._probe(broker_id, pauses_s), f"probe broker {broker_id}")

    async def _probe(self, broker_id: int, pauses_s: Sequence[float]) -> None:
        try:
            for pause in pauses_s:
                await asyncio.sleep(pause)
                broker = self._find_disconnected(broker_id)
                if broker is None:
                    return
                endpoint = next(iter(broker.endpoints.values()), None)
                if endpoint is None or endpoint.host in _EVERY_INTERFACE:
                    return  # a wildcard address does not say which host to probe
                if await self._is_refused(endpoint):
                    await self._fence(broker)
                    return
        finally:
            self._probing.discard(broker_id)

    def _find_disconnected(self, broker_id: int) -> BrokerImage | None:
        """Return the broker if it is not fenced and has not reconnected; else None."""
        controller = self._runtime.active
        broker = controller.image.cluster.get(broker_id) if controller is not None else None
        return None if broker is None or broker.fenced or broker_id in self._connections else broker

    async def _is_refused(self, endpoint: Endpoint) -> bool:
        try:
            async with asyncio.timeout(CONNECT_S):
                transport, _ = await self._loop.create_connection(asyncio.Protocol, endpoint.host, endpoint.port)
        except ConnectionRefusedError:
            return True
        # No answer proves nothing: the broker may be paused or partitioned off, and its session decides.
        except (OSError, TimeoutError):
            return False
        # The process runs: a connection that is accepted needs no request.
        transport.abort()
        return False

    async def _fence(self, broker: BrokerImage) -> None:
        def decide(controller: Controller) -> ControllerDecision[bool]:
            # With its epoch: a new process may have registered under the id since the probe.
            return controller.fence_dead_broker(broker.id, broker.epoch)

        try:
            outcome = await self._runtime.submit(decide)
        except KlammError as error:
            log.debug("dead broker not fenced", broker=broker.id, reason=error)
            return
        if outcome.response:
            # The controller logs the fencing itself; this line is its reason.
            log.warning("broker process dead: its address refuses connections", broker=broker.id, epoch=broker.epoch)
