"""An image as records: the content of a snapshot of the metadata log."""

from collections.abc import Iterator

from klamm.metadata.image import BrokerImage, MetadataImage, PartitionImage
from klamm.model.ids import Uuid
from klamm.protocol.messages import metadata_records as r


def image_records(image: MetadataImage) -> Iterator[r.MetadataRecord]:
    """The records that rebuild `image` from the empty one, in an order in which they can be replayed.

    Feature levels come first, because the format of other records may depend on them.
    """
    for name, level in sorted(image.features.items(), key=_metadata_version_first):
        yield r.FeatureLevelRecord(name=name, feature_level=level)
    for broker in image.cluster.brokers.values():
        yield broker_record(broker)
    yield from image.cluster.controllers.values()
    for topic in image.topics.by_id.values():
        yield r.TopicRecord(name=topic.name, topic_id=topic.id)
        for index, partition in topic.partitions.items():
            yield partition_record(topic.id, index, partition)
    # Behind the topics, because configs of a topic that does not exist contradict the image.
    for resource, configs in image.configs.items():
        for name, value in configs.items():
            yield r.ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)
    for entity, quotas in image.client_quotas.items():
        for key, limit in quotas.items():
            parts = [r.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts]
            yield r.ClientQuotaRecord(entity=parts, key=key, value=limit)
    # The broker of the last block does not matter any more: only the next id is state.
    if image.next_producer_id:
        yield r.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)
    yield from image.acls.values()
    yield from image.scram.values()
    yield from image.delegation_tokens.values()


def broker_record(broker: BrokerImage) -> r.RegisterBrokerRecord:
    """The registration record of `broker`."""
    cordoned = broker.cordoned_directories
    return r.RegisterBrokerRecord(
        broker_id=broker.id,
        broker_epoch=broker.epoch,
        incarnation_id=broker.incarnation_id,
        end_points=[
            r.BrokerEndpoint(
                name=name, host=endpoint.host, port=endpoint.port, security_protocol=endpoint.security_protocol
            )
            for name, endpoint in broker.endpoints.items()
        ],
        features=[
            r.BrokerFeature(name=name, min_supported_version=span.min_level, max_supported_version=span.max_level)
            for name, span in broker.features.items()
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.directories),
        cordoned_log_dirs=None if cordoned is None else list(cordoned),
    )


def partition_record(topic_id: Uuid, index: int, partition: PartitionImage) -> r.PartitionRecord:
    """The record that creates `partition` in its present state."""
    return r.PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.elr) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )


def _metadata_version_first(feature: tuple[str, int]) -> tuple[bool, str]:
    return feature[0] != "metadata.version", feature[0]
