"""Metadata, v0-13: brokers, topics, partitions and their leaders.

v0 takes an empty list as all topics; from v1 null means all and empty means none. A named topic that does not exist is
created when both the broker (auto.create.topics.enable) and the request (v4) allow it; that request is answered
with UNKNOWN_TOPIC_OR_PARTITION or, once created, LEADER_NOT_AVAILABLE, and the client retries.
v10 and v11 return ids but do not accept them: a null name or an id is INVALID_REQUEST.
v9 flexible · v10 topic ids in responses · v12 topics by id · v13 top-level error
"""

from klamm.metadata.image import TopicImage
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode
from klamm.model.ids import ZERO_UUID, Uuid
from klamm.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from klamm.server.cluster.topics import auto_create, is_internal, name_complaint, offline_replicas
from klamm.server.requests.access.checks import cluster_denied, topic_denied
from klamm.server.requests.access.operations import NOT_REQUESTED, cluster_operations, topic_operations
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import forwarded_client
from klamm.server.requests.slices import SliceSteps, run_in_slices
from klamm.server.services import Services

IDS_SINCE = 12


def handle(services: Services, context: RequestContext, request: MetadataRequest) -> SliceSteps[object]:
    """Answer from the image; only a topic that must be created takes longer."""
    if request.topics is None or (context.version == 0 and not request.topics):
        return (yield from _describe_all(services, context, request))
    if context.version < IDS_SINCE and any(
        topic.name is None or topic.topic_id != ZERO_UUID for topic in request.topics
    ):
        return _refuse(request, ErrorCode.INVALID_REQUEST)
    known = services.image.topics.by_name
    missing = [topic.name for topic in request.topics if topic.name is not None and topic.name not in known]
    denied: frozenset[str] = frozenset()
    # Before v4 the request has no such field, and its default allows it.
    if missing and services.config.auto_create_topics_enable and request.allow_auto_topic_creation:
        # What the client may not describe is not created for it either, and is refused like a topic that exists.
        missing = [name for name in missing if not topic_denied(services, context, AclOperation.DESCRIBE, name)]
        denied = _find_uncreatable(services, context, missing)
        missing = [name for name in missing if name not in denied]
        if missing:
            # As a coroutine: the controller has to commit the topics before this is answered.
            return _create_and_describe(services, context, request, missing, denied)
    return (yield from _describe_named(services, context, request, denied))


def _find_uncreatable(services: Services, context: RequestContext, names: list[str]) -> frozenset[str]:
    """Return the topics that the client may not create; the right on the cluster or that on the topic suffices."""
    if not cluster_denied(services, context, AclOperation.CREATE, audit=False):
        return frozenset()
    return frozenset(name for name in names if topic_denied(services, context, AclOperation.CREATE, name))


async def _create_and_describe(
    services: Services, context: RequestContext, request: MetadataRequest, missing: list[str], denied: frozenset[str]
) -> MetadataResponse:
    await auto_create(services, [name for name in missing if not name_complaint(name)], forwarded_client(context))
    return await run_in_slices(_describe_named(services, context, request, denied))


def _describe_all(
    services: Services, context: RequestContext, request: MetadataRequest
) -> SliceSteps[MetadataResponse]:
    image = services.image
    topics = []
    for topic in image.topics.by_name.values():
        if topic_denied(services, context, AclOperation.DESCRIBE, topic.name, audit=False):
            continue
        topics.append(_describe_topic(services, context, topic, request))
        yield 1 + len(topic.partitions)
    return _build_response(services, context, request, topics)


def _describe_named(
    services: Services, context: RequestContext, request: MetadataRequest, denied: frozenset[str]
) -> SliceSteps[MetadataResponse]:
    topics = []
    # Once each: a request could name a topic of a thousand partitions again and again, for three bytes each time.
    requested = {(topic.name, topic.topic_id): topic for topic in request.topics or ()}
    for requested_topic in requested.values():
        if requested_topic.name in denied:
            topic = _deny_topic(requested_topic.name, ZERO_UUID)
        else:
            topic = _find_topic(services, context, requested_topic, request)
        topics.append(topic)
        yield 1 + len(topic.partitions)
    return _build_response(services, context, request, topics)


def _deny_topic(name: str | None, topic_id: bytes) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name, topic_id=topic_id)


def _find_topic(
    services: Services, context: RequestContext, requested: MetadataRequestTopic, request: MetadataRequest
) -> MetadataResponseTopic:
    image = services.image
    if requested.name is None or (not requested.name and requested.topic_id != ZERO_UUID):
        # A Java consumer with a pattern requests the ids it was assigned, with empty names beside them.
        by_id = image.topics.by_id.get(Uuid(requested.topic_id))
        if by_id is None:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=requested.topic_id)
        if topic_denied(services, context, AclOperation.DESCRIBE, by_id.name):
            return _deny_topic(None, requested.topic_id)
        return _describe_topic(services, context, by_id, request)
    if topic_denied(services, context, AclOperation.DESCRIBE, requested.name):
        return _deny_topic(requested.name, ZERO_UUID)
    topic = image.topics.by_name.get(requested.name)
    if topic is not None:
        return _describe_topic(services, context, topic, request)
    error = (
        ErrorCode.INVALID_TOPIC_EXCEPTION if name_complaint(requested.name) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    return MetadataResponseTopic(
        error_code=error,
        name=requested.name,
        topic_id=ZERO_UUID,
        topic_authorized_operations=_list_operations(services, context, requested.name, request),
    )


def _refuse(request: MetadataRequest, code: ErrorCode) -> MetadataResponse:
    """Refuse a request: every topic gets the error, and neither brokers nor the cluster id are returned."""
    topics = [
        MetadataResponseTopic(error_code=code, name=topic.name or "", topic_id=topic.topic_id)
        for topic in request.topics or ()
    ]
    return MetadataResponse(topics=topics)


def _describe_topic(
    services: Services, context: RequestContext, topic: TopicImage, request: MetadataRequest
) -> MetadataResponseTopic:
    image = services.image
    partitions = []
    for index, partition in topic.partitions.items():
        # A broker that is stopping leads until another does.
        broker = image.cluster.get(partition.leader)
        leader = partition.leader if broker is not None and not broker.fenced else -1
        partitions.append(
            MetadataResponsePartition(
                error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader < 0 else ErrorCode.NONE,
                partition_index=index,
                leader_id=leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                offline_replicas=offline_replicas(image, partition),
            )
        )
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=is_internal(topic.name),
        partitions=partitions,
        topic_authorized_operations=_list_operations(services, context, topic.name, request),
    )


def _list_operations(services: Services, context: RequestContext, topic: str, request: MetadataRequest) -> int:
    return topic_operations(services, context, topic) if request.include_topic_authorized_operations else NOT_REQUESTED


def _build_response(
    services: Services, context: RequestContext, request: MetadataRequest, topics: list[MetadataResponseTopic]
) -> MetadataResponse:
    brokers = []
    cluster = services.image.cluster
    for broker in services.listed_brokers.list_brokers(cluster):
        host, port = services.endpoint(broker, context)
        brokers.append(MetadataResponseBroker(node_id=broker.id, host=host, port=port, rack=broker.rack))
    # Clients send admin requests to the "controller"; any broker forwards them, so any live one may be named.
    live = [broker.node_id for broker in brokers if not cluster.brokers[broker.node_id].fenced]
    candidates = live or [broker.node_id for broker in brokers]
    controller = services.random.choice(candidates) if candidates else -1
    requested = request.include_cluster_authorized_operations
    operations = cluster_operations(services, context) if requested else NOT_REQUESTED
    return MetadataResponse(
        brokers=brokers,
        cluster_id=services.cluster_id,
        controller_id=controller,
        topics=topics,
        cluster_authorized_operations=operations,
    )
