"""Connections to other brokers, for transaction markers and requests to other coordinators."""

from typing import TYPE_CHECKING, Any

from klamm.model.errors import ErrorCode, KlammError
from klamm.net.peer import Peers

if TYPE_CHECKING:
    from klamm.server.services import Services

TIMEOUT_MS = 10_000
"""A broken connection may give no sign of it, so requests time out soon."""


class BrokerPeers:
    """Connections to other brokers by their id; addresses come from the metadata."""

    def __init__(self, services: "Services", purpose: str) -> None:
        self._services = services
        client_id = f"broker-{services.node_id}-{purpose}"
        self._peers = Peers(
            services.loop,
            client_id=client_id,
            security=services.replicas.config.security,
            request_timeout_ms=TIMEOUT_MS,
        )

    async def ask(self, broker_id: int, request: Any, version: int) -> Any:
        """Return the broker's response; KlammError NETWORK_EXCEPTION when it cannot be reached."""
        broker = self._services.image.cluster.get(broker_id)
        if broker is None or not broker.endpoints:
            raise KlammError(ErrorCode.NETWORK_EXCEPTION, f"broker {broker_id} has no known endpoint")
        name = self._services.config.inter_broker_listener_name
        # Another listener name is possible while listeners are renamed broker by broker.
        endpoint = broker.endpoints.get(name) or next(iter(broker.endpoints.values()))
        peer = self._peers.get(broker_id, endpoint.host, endpoint.port, name)
        try:
            return await peer.ask(request, version)
        except OSError as error:
            raise KlammError(ErrorCode.NETWORK_EXCEPTION, str(error)) from error

    def close(self) -> None:
        """Close all connections."""
        self._peers.close()
