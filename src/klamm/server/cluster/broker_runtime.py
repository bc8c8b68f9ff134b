"""The broker of a node: its parts, and the order in which they join and leave the cluster."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from klamm.metadata.image import Endpoint, FeatureRange
from klamm.model.ids import TopicPartition
from klamm.server.cluster.directory_reports import DirectoryReports
from klamm.server.cluster.lifecycle import BrokerLifecycle
from klamm.server.cluster.move_service import MoveService
from klamm.server.cluster.publishers import BrokerPublisher
from klamm.server.cluster.replication_service import ReplicationService
from klamm.server.requests.access.audit_topic import AuditTopic
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.server.services import Services

log = get_logger("node")


class BrokerRuntime:
    """Registers with the controller, follows the metadata log, replicates, and hands leadership over at the end."""

    def __init__(
        self,
        services: "Services",
        lifecycle: BrokerLifecycle,
        publisher: BrokerPublisher,
        directory_reports: DirectoryReports,
    ) -> None:
        self._services = services
        self._publisher = publisher
        self._directory_reports = directory_reports
        self._replication = ReplicationService(services, lifecycle.epoch)
        self._moves = MoveService(services)
        self._audit_topic = _make_audit_topic(services)
        self.lifecycle = lifecycle

    async def join(
        self,
        endpoints: Mapping[str, Endpoint],
        features: Mapping[str, FeatureRange],
        *,
        on_following: Callable[[], None],
    ) -> None:
        """Register, follow the metadata, and return once the controller has unfenced this broker.

        `on_following` is called once it follows, before it has caught up: early listeners are served from then on.
        """
        services, logs, config = self._services, self._services.logs, self._services.config
        # First: the broker epoch fences requests of an earlier process with this id, and every later request carries
        # it.
        await self.lifecycle.register(
            endpoints,
            features,
            config.rack,
            [bytes(directory_id) for directory_id in logs.online_directory_ids(config.log_dirs)],
            # KIP-966: an epoch that is not the last one proves an unclean stop, after which this replica may lack
            # records.
            logs.previous_broker_epoch,
        )
        # Stray folders are renamed before the publisher makes replicas of folders.
        self._set_strays_aside()
        self._replication.start()
        # Before the publisher makes replicas: a move that a crash interrupted renames folders.
        self._moves.start()
        self._publisher.start(
            (
                self._replication.on_metadata,
                services.coordinators.on_metadata,
                self._directory_reports.on_metadata,
                self._moves.on_metadata,
            )
        )
        # Coordinators come first: their shards decide by an image before replicas have followed it.
        services.metadata.add_publisher(services.coordinators)
        services.metadata.add_publisher(self._publisher)
        on_following()
        # The controller unfences a broker only once its heartbeat shows that it has caught up with the metadata log.
        await self.lifecycle.become_ready()
        await self._publisher.wait_for(services.image.provenance.offset)
        # Last: a move copies from a replica, and all of them exist by now.
        services.moves.resume()
        if self._audit_topic is not None:
            self._audit_topic.start()

    def _set_strays_aside(self) -> None:
        """Rename the folders of partitions that the metadata does not assign to this broker; nothing is deleted."""
        services = self._services
        assigned = {
            TopicPartition(topic.name, index): topic.id
            for topic, index, partition in services.image.topics.partitions()
            if services.node_id in partition.replicas
        }
        for stray in services.logs.strays(assigned):
            log.warning("stray partition set aside: the metadata does not assign it here", partition=stray.name)
            services.logs.set_aside(stray)

    async def stop(self) -> None:
        """Stop following the metadata and other replicas; the heartbeats have ended before."""
        if self._audit_topic is not None:
            await self._audit_topic.stop()
        # First of the rest: it passes changes on to the parts below.
        await self._publisher.stop()
        await self._directory_reports.stop()
        await self._moves.stop()
        await self._replication.stop()


def _make_audit_topic(services: "Services") -> AuditTopic | None:
    topic = services.config.text("klamm.audit.topic")
    if not topic or services.access is None:
        return None
    services.access.audit_topic = AuditTopic(services, topic)
    return services.access.audit_topic
