"""Topic look-ups that several handlers share, and the creation of topics on demand."""

from klamm.metadata.image import MetadataImage, PartitionImage
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.topic_names import INTERNAL_TOPICS, name_complaint
from klamm.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from klamm.replication import Replica
from klamm.server.boot.descriptors import check_capacity
from klamm.server.controller.channel import ForwardedClient
from klamm.server.services import Services
from klamm.telemetry.log import get_logger

log = get_logger("server")

AUTO_CREATE_MS = 15_000

__all__ = ["auto_create", "is_internal", "leading_replica", "name_complaint", "offline_replicas"]


def is_internal(topic: str) -> bool:
    """Whether `topic` is internal: the cluster keeps its own records there."""
    return topic in INTERNAL_TOPICS


def offline_replicas(image: MetadataImage, partition: PartitionImage) -> list[int]:
    """Return the replicas of a partition whose broker is fenced or whose log directory is offline."""
    offline = []
    for replica in partition.replicas:
        broker = image.cluster.get(replica)
        if broker is None or broker.fenced or not broker.has_directory(partition.directory(replica)):
            offline.append(replica)
    return offline


def leading_replica(services: Services, topic: str, index: int, current_leader_epoch: int) -> Replica:
    """Return the replica with which this node leads a partition; KlammError says why it does not."""
    replica = services.replicas.find(topic, index)
    if replica is None or not replica.leads:
        image = services.image.topics.get(topic)
        if image is None or index not in image.partitions:
            raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        # Not always NOT_LEADER_OR_FOLLOWER: a replica whose log dir failed is KAFKA_STORAGE_ERROR.
        raise KlammError(services.replicas.not_leader_error(image.id, index))
    error = replica.state.check_leader_epoch(current_leader_epoch)
    if error:
        raise KlammError(error)
    return replica


async def auto_create(services: Services, names: list[str], client: ForwardedClient) -> None:
    """Create topics with the broker's defaults because a Metadata request named them; failures are logged."""
    if not names:
        return
    # Checked here, too: this request goes to the controller without `forward_to_controller`.
    complaint = check_capacity(len(names) * services.config.num_partitions)
    if complaint:
        log.warning("topics not auto-created", topics=names, reason=complaint)
        return
    request = CreateTopicsRequest(
        # -1: the active controller applies its defaults, as for clients.
        topics=[CreatableTopic(name=name, num_partitions=-1, replication_factor=-1) for name in names]
    )
    try:
        response = await services.controller.ask(request, timeout_ms=AUTO_CREATE_MS, client=client)
    except KlammError as error:
        log.warning("topics not auto-created", topics=names, reason=error)
        return
    for topic in response.topics:
        if topic.error_code == ErrorCode.NONE:
            log.info("topic auto-created", topic=topic.name)
        # Another client may have created it at the same time.
        elif topic.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
            log.warning("topic not auto-created", topic=topic.name, reason=topic.error_message)
