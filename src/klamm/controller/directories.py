"""The log directory of each replica, as its broker reports it (KIP-858)."""

from dataclasses import replace

from klamm.controller.context import ControllerContext, ControllerDecision
from klamm.controller.partitions import change_partition, leader_rule
from klamm.metadata.image import NO_LEADER, BrokerImage, TopicImage
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import Uuid
from klamm.protocol.messages import assign_replicas_to_dirs as ard
from klamm.protocol.messages.metadata_records import MetadataRecord, PartitionChangeRecord


def assign_replicas_to_dirs(
    context: ControllerContext, request: ard.AssignReplicasToDirsRequest
) -> ControllerDecision[ard.AssignReplicasToDirsResponse]:
    """Record the directories of replicas; a replica in a failed directory leaves the ISR at once."""
    broker = context.image.cluster.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        return ControllerDecision((), ard.AssignReplicasToDirsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    response = ard.AssignReplicasToDirsResponse()
    records: list[MetadataRecord] = []
    for directory in request.directories:
        topics = []
        for topic_data in directory.topics:
            topic = context.image.topics.by_id.get(Uuid(topic_data.topic_id))
            results = []
            for partition_data in topic_data.partitions:
                index = partition_data.partition_index
                code = ErrorCode.NONE
                try:
                    record = _assign(context, broker, topic, index, Uuid(directory.id))
                    records += [] if record is None else [record]
                except KlammError as error:
                    code = error.code
                results.append(ard.PartitionDataResponse(partition_index=index, error_code=code))
            topics.append(ard.TopicDataResponse(topic_id=topic_data.topic_id, partitions=results))
        response.directories.append(ard.DirectoryDataResponse(id=directory.id, topics=topics))
    return ControllerDecision(tuple(records), response)


def _assign(
    context: ControllerContext, broker: BrokerImage, topic: TopicImage | None, index: int, directory: Uuid
) -> PartitionChangeRecord | None:
    if topic is None:
        raise KlammError(ErrorCode.UNKNOWN_TOPIC_ID)
    partition = topic.partitions.get(index)
    if partition is None:
        raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if broker.id not in partition.replicas:
        raise KlammError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if partition.directory(broker.id) == directory:
        return None
    directories = tuple(
        directory if replica == broker.id else partition.directory(replica) for replica in partition.replicas
    )
    moved = replace(partition, directories=directories)
    online = broker.has_directory(directory)
    record = change_partition(
        context,
        topic,
        index,
        moved,
        acceptable=leader_rule(context, moved, never=NO_LEADER if online else broker.id),
        isr=None if online else [replica for replica in partition.isr if replica != broker.id],
    )
    # change_partition sees no difference when only the directory changed.
    record = record or PartitionChangeRecord(topic_id=topic.id, partition_id=index)
    record.directories = list(directories)
    return record
