"""What several handlers ask about topics: is the name allowed, is it internal, who leads here, create it if allowed."""

from klamm.metadata.image import MetadataImage, PartitionImage
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.topic_names import INTERNAL_TOPICS, name_complaint
from klamm.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from klamm.replication import Replica
from klamm.server.boot.descriptors import check_room
from klamm.server.services import Services
from klamm.telemetry.log import get_logger

log = get_logger("server")

AUTO_CREATE_MS = 15_000

__all__ = ["auto_create", "is_internal", "leading_replica", "name_complaint", "offline_replicas"]


def is_internal(topic: str) -> bool:
    """Whether the cluster keeps its own records there."""
    return topic in INTERNAL_TOPICS


def offline_replicas(image: MetadataImage, partition: PartitionImage) -> list[int]:
    """The replicas nobody can reach: their broker is gone, or the disk below them."""
    found = []
    for replica in partition.replicas:
        broker = image.cluster.get(replica)
        if broker is None or broker.fenced or not broker.has_directory(partition.directory(replica)):
            found.append(replica)
    return found


def leading_replica(services: Services, topic: str, index: int, current_leader_epoch: int) -> Replica:
    """The replica that may answer for a partition; KlammError says why this node may not."""
    replica = services.replicas.find(topic, index)
    if replica is None or not replica.leads:
        known = services.image.topics.get(topic)
        if known is None or index not in known.partitions:
            raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        raise KlammError(services.replicas.absence(known.id, index))
    error = replica.state.check_leader_epoch(current_leader_epoch)
    if error:
        raise KlammError(error)
    return replica


async def auto_create(services: Services, names: list[str]) -> None:
    """Create topics with the broker's defaults because a client asked for them; what fails shows in the answer."""
    if not names:
        return
    complaint = check_room(len(names) * services.config.num_partitions)
    if complaint:
        log.warning("topics were not created on demand", topics=names, reason=complaint)
        return
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=-1, replication_factor=-1) for name in names]
    )
    try:
        response = await services.controller.ask(request, timeout_ms=AUTO_CREATE_MS)
    except KlammError as error:
        log.warning("topics were not created on demand", topics=names, reason=error)
        return
    for topic in response.topics:
        if topic.error_code == ErrorCode.NONE:
            log.info("topic created on demand", topic=topic.name)
        elif topic.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
            log.warning("topic not created on demand", topic=topic.name, reason=topic.error_message)
