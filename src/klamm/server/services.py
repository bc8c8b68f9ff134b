"""The parts of a node that handlers and coordinators use, in one typed object."""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from klamm.metadata.image import BrokerImage, FeatureRange, MetadataImage
from klamm.metadata.loader import MetadataLoader
from klamm.model.clock import Clock
from klamm.protocol.apis import APIS
from klamm.replication import FetchSessions, ReplicaManager
from klamm.server.cluster.listed_brokers import ListedBrokers
from klamm.server.coordinators.local_coordinators import LocalCoordinators
from klamm.server.settings.broker_settings import BrokerSettings
from klamm.storage import LogManager
from klamm.telemetry.request_times import RequestTimes

if TYPE_CHECKING:
    from klamm.raft import RaftDriver
    from klamm.replication.log_dir_moves import LogDirMoves
    from klamm.server.boot.config import NodeConfig
    from klamm.server.controller.channel import ControllerChannel
    from klamm.server.controller.link import ControllerLink
    from klamm.server.controller.quorum_membership import QuorumMembership
    from klamm.server.controller.raft_transport import RaftTransport
    from klamm.server.coordinators.producer_ids import ProducerIds
    from klamm.server.requests.access.control import AccessControl
    from klamm.server.requests.access.quotas import BrokerQuotas
    from klamm.server.requests.context import RequestContext
    from klamm.server.requests.record_checks import RecordChecks
    from klamm.server.settings.store_changes import StoreChanges


@dataclass(slots=True)
class Services:
    """The parts of the node that handlers may use."""

    loop: asyncio.AbstractEventLoop
    node_id: int
    cluster_id: str
    config: "NodeConfig"
    """The settings this node started with."""
    settings: BrokerSettings
    """The effective configs, which may change while the node runs."""
    clock: Clock
    random: Random
    new_uuid: Callable[[], uuid.UUID]
    logs: LogManager
    replicas: ReplicaManager
    sessions: FetchSessions
    metadata: MetadataLoader
    listed_brokers: ListedBrokers
    raft: "RaftDriver"
    quorum: "RaftTransport"
    membership: "QuorumMembership"
    controllers: "ControllerLink"
    producer_ids: "ProducerIds"
    checks: "RecordChecks"
    """Validates producers' records in threads."""
    moves: "LogDirMoves"
    """Replicas on their way between the log dirs of this broker."""
    supported_features: Mapping[str, FeatureRange]
    access: "AccessControl | None"
    """The authorizer; None allows every client everything."""
    stores: "StoreChanges"
    """The key and trust stores of listeners, which may change while the node runs."""
    quotas: "BrokerQuotas"
    """The quotas of clients."""
    controller_address: tuple[str, int] | None
    """The bound address of this node's controller listener; None on a node without the controller role."""
    coordinators: LocalCoordinators = field(init=False)
    request_times: RequestTimes = field(init=False)
    """How long requests take, and the errors in their responses, by API."""

    def __post_init__(self) -> None:
        # Coordinators use the other services, and handlers of markers use the coordinators: they share this object.
        self.coordinators = LocalCoordinators(self)
        self.request_times = RequestTimes({key: api.name for key, api in APIS.items()})

    @property
    def image(self) -> MetadataImage:
        """The newest committed metadata."""
        return self.metadata.image

    @property
    def controller(self) -> "ControllerChannel":
        """The active controller, wherever it is."""
        return self.controllers.admin

    def endpoint(self, broker: BrokerImage, context: "RequestContext") -> tuple[str, int]:
        """Return the address of `broker` for a client: that of the listener the client is connected to.

        A listener without an advertised address returns the address the client connected to, which it can reach.
        """
        name = context.listener.name
        if broker.id == self.node_id and not self.config.advertises(name):
            return context.channel.local_address
        endpoint = broker.endpoints.get(name)
        if endpoint is None:
            # Brokers may have different listeners: an address that may fail is better for the client than none.
            endpoint = next(iter(broker.endpoints.values()))
        return endpoint.host, endpoint.port

    def controller_endpoints(self) -> dict[int, tuple[str, int]]:
        """Return the addresses of the voters of the quorum, as far as they are known here."""
        known = self.quorum.endpoints()
        return {voter_id: known[voter_id] for voter_id in self.raft.core.voters.ids if voter_id in known}
