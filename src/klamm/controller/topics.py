"""Creation and deletion of topics, and adding partitions to them."""

from collections import Counter
from collections.abc import Iterable, Sequence

from klamm.controller.configs import topic_creation_records
from klamm.controller.context import ControllerContext, ControllerDecision, refuse
from klamm.controller.placement import UsableBroker, place_replicas
from klamm.metadata.image import TopicImage
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import METADATA_TOPIC_ID, ZERO_UUID, Uuid, uuid_to_str
from klamm.model.topic_names import CLUSTER_METADATA_TOPIC, name_complaint
from klamm.protocol.messages import create_partitions as cp
from klamm.protocol.messages import create_topics as ct
from klamm.protocol.messages import delete_topics as dt
from klamm.protocol.messages.metadata_records import MetadataRecord, PartitionRecord, RemoveTopicRecord, TopicRecord

_TOO_MANY = "The request has more partitions than one request may create; split it."


def create_topics(
    context: ControllerContext, request: ct.CreateTopicsRequest
) -> ControllerDecision[ct.CreateTopicsResponse]:
    """Create topics; each succeeds or fails by itself, with all its partitions."""
    response = ct.CreateTopicsResponse()
    records: list[MetadataRecord] = []
    times = Counter(topic.name for topic in request.topics)
    # Counted first: a request above the limit must not cost the work of placing its replicas.
    total = sum(_partition_count(context, topic) for topic in request.topics)
    collisions = _CollisionCheck(context)
    # A name that is repeated gets one result, as in Kafka.
    for topic in {topic.name: topic for topic in request.topics}.values():
        try:
            if times[topic.name] > 1:
                refuse(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            if total > context.config.max_partitions_per_request:
                refuse(ErrorCode.POLICY_VIOLATION, _TOO_MANY)
            collisions.check(topic.name)
            created, result = _create_topic(context, topic)
            # Valid topics only, and also with validate_only, as in Kafka.
            context.charge(result.num_partitions)
        except KlammError as error:
            result = ct.CreatableTopicResult(name=topic.name, error_code=error.code, error_message=str(error))
        else:
            records += created
            collisions.add(topic.name)
        response.topics.append(result)
    response.throttle_time_ms = context.throttle_ms
    return ControllerDecision(() if request.validate_only else tuple(records), response)


def _partition_count(context: ControllerContext, topic: ct.CreatableTopic) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return context.config.num_partitions if topic.num_partitions == -1 else max(0, topic.num_partitions)


class _CollisionCheck:
    """Rejects names that exist, or differ from an existing one only in '.' and '_': they would share metric names."""

    def __init__(self, context: ControllerContext) -> None:
        self._existing = context.image.topics.by_name
        self._unified: dict[str, str] | None = None

    def add(self, name: str) -> None:
        if self._unified is not None:
            self._unified[_unify(name)] = name

    def check(self, name: str) -> None:
        if name == CLUSTER_METADATA_TOPIC:
            raise KlammError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
        problem = name_complaint(name)
        if problem:
            raise KlammError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")
        if name in self._existing:
            raise KlammError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if "." in name or "_" in name:
            # Built only when needed: most names have neither character, and there may be many topics.
            if self._unified is None:
                self._unified = {_unify(n): n for n in self._existing if "." in n or "_" in n}
            other = self._unified.get(_unify(name))
            if other is not None:
                message = f"Topic '{name}' collides with existing topic: {other}"
                raise KlammError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


def _unify(name: str) -> str:
    return name.replace(".", "_")


def _create_topic(
    context: ControllerContext, topic: ct.CreatableTopic
) -> tuple[list[MetadataRecord], ct.CreatableTopicResult]:
    configs = {config.name: config.value for config in topic.configs}
    config_records, own_configs = topic_creation_records(context, topic.name, configs)
    assign = _manual_assignments if topic.assignments else _automatic_assignments
    assignments = assign(context, topic)
    topic_id = _new_topic_id(context)
    records: list[MetadataRecord] = [TopicRecord(name=topic.name, topic_id=topic_id), *config_records]
    records += (_new_partition(context, topic_id, index, replicas) for index, replicas in enumerate(assignments))
    effective = context.validator.describe_topic(own_configs, context.broker_configs())
    return records, ct.CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=len(assignments),
        replication_factor=len(assignments[0]),
        configs=[
            ct.CreatableTopicConfigs(
                name=config.name,
                value=config.value,
                read_only=config.read_only,
                config_source=config.source,
                is_sensitive=config.sensitive,
            )
            for config in effective
        ],
    )


def _manual_assignments(context: ControllerContext, topic: ct.CreatableTopic) -> list[list[int]]:
    if topic.replication_factor != -1 or topic.num_partitions != -1:
        raise KlammError(
            ErrorCode.INVALID_REQUEST,
            "With a manual assignment, the number of partitions and the replication factor must both be -1.",
        )
    assignments: dict[int, list[int]] = {}
    for assignment in topic.assignments:
        if assignment.partition_index in assignments:
            raise KlammError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Partition {assignment.partition_index} has more than one manual assignment.",
            )
        assignments[assignment.partition_index] = assignment.broker_ids
    if sorted(assignments) != list(range(len(assignments))):
        raise KlammError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions must be numbered from 0 on, without a gap.")
    ordered = [assignments[index] for index in range(len(assignments))]
    check_assignments(context, ordered, len(ordered[0]), first_index=0)
    return ordered


def _automatic_assignments(context: ControllerContext, topic: ct.CreatableTopic) -> list[list[int]]:
    replication_factor, partitions = topic.replication_factor, topic.num_partitions
    if replication_factor < -1 or replication_factor == 0:
        raise KlammError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "A replication factor is at least 1; -1 takes the default.",
        )
    if partitions < -1 or partitions == 0:
        raise KlammError(ErrorCode.INVALID_PARTITIONS, "A topic has at least 1 partition; -1 takes the default.")
    if replication_factor == -1:
        replication_factor = context.config.default_replication_factor
    return _place(context, context.config.num_partitions if partitions == -1 else partitions, replication_factor)


def _place(context: ControllerContext, partitions: int, replication_factor: int) -> list[list[int]]:
    try:
        placed = place_replicas(partitions, replication_factor, usable_brokers(context), context.random)
    except KlammError as error:
        message = f"{replication_factor} replica(s) per partition cannot be placed: {error}"
        raise KlammError(error.code, message) from None
    return placed


def usable_brokers(context: ControllerContext) -> Iterable[UsableBroker]:
    """The brokers that may get new replicas: neither in controlled shutdown nor with all directories cordoned."""
    for broker in context.image.cluster.brokers.values():
        cordoned = broker.cordoned_directories
        # KIP-1066: a cordoned directory keeps its replicas but gets no new ones.
        closed = bool(broker.directories) and bool(cordoned) and set(broker.directories) <= set(cordoned or ())
        if not broker.in_controlled_shutdown and not closed:
            yield UsableBroker(broker.id, broker.rack, broker.fenced)


def check_assignments(
    context: ControllerContext,
    assignments: Sequence[Sequence[int]],
    replication_factor: int,
    first_index: int,
    *,
    must_lead: bool = True,
) -> None:
    """Reject invalid manual assignments; with `must_lead` one of the replicas has to be on an active broker."""
    for index, replicas in enumerate(assignments, first_index):
        if not replicas:
            problem = f"The manual assignment of partition {index} names no broker."
        elif len(set(replicas)) != len(replicas):
            problem = f"The manual assignment of partition {index} names a broker more than once."
        elif unknown := [replica for replica in replicas if replica not in context.image.cluster.brokers]:
            problem = f"The manual assignment of partition {index} names broker {unknown[0]}, which is not registered."
        elif len(replicas) != replication_factor:
            problem = (
                f"The manual assignment of partition {index} has {len(replicas)} replica(s), "
                f"other partitions have {replication_factor}."
            )
        elif must_lead and not any(context.image.cluster.is_active(replica) for replica in replicas):
            problem = f"No broker in the manual assignment of partition {index} is in service."
        else:
            continue
        raise KlammError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)


def _new_partition(context: ControllerContext, topic_id: Uuid, index: int, replicas: Sequence[int]) -> PartitionRecord:
    cluster = context.image.cluster
    # A new partition is empty, so every active replica is in sync with it.
    isr = [replica for replica in replicas if cluster.is_active(replica)]
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(replicas),
        isr=isr,
        # The placement or the check of a manual assignment has made sure that one replica is active.
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=[context.default_directory(replica) for replica in replicas],
    )


def _new_topic_id(context: ControllerContext) -> Uuid:
    """A random id that is unused, not reserved, and does not start with '-', which a command line takes for a flag."""
    while True:
        # The version and variant bits of a random UUID (RFC 9562, version 4).
        raw = bytearray(context.random.randbytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        topic_id = Uuid(bytes(raw))
        reserved = topic_id in (ZERO_UUID, METADATA_TOPIC_ID) or uuid_to_str(topic_id).startswith("-")
        if not reserved and topic_id not in context.image.topics.by_id:
            return topic_id


def create_partitions(
    context: ControllerContext, request: cp.CreatePartitionsRequest
) -> ControllerDecision[cp.CreatePartitionsResponse]:
    """Add partitions at the end; existing ones stay where they are."""
    response = cp.CreatePartitionsResponse()
    records: list[MetadataRecord] = []
    times = Counter(topic.name for topic in request.topics)
    # A negative count must not compensate for a huge one.
    total = sum(max(topic.count, 0) for topic in request.topics)
    for topic in {topic.name: topic for topic in request.topics}.values():
        code, message = ErrorCode.NONE, None
        try:
            if times[topic.name] > 1:
                refuse(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            if total > context.config.max_partitions_per_request:
                refuse(ErrorCode.POLICY_VIOLATION, _TOO_MANY)
            added = _add_partitions(context, topic)
            context.charge(len(added))
            records += added
        except KlammError as error:
            code, message = error.code, str(error)
        response.results.append(cp.CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=message))
    response.throttle_time_ms = context.throttle_ms
    return ControllerDecision(() if request.validate_only else tuple(records), response)


def _add_partitions(context: ControllerContext, request: cp.CreatePartitionsTopic) -> list[MetadataRecord]:
    topic = context.image.topics.get(request.name)
    if topic is None:
        raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{request.name}' does not exist.")
    existing = len(topic.partitions)
    if request.count == existing:
        raise KlammError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {existing} partition(s).")
    if request.count < existing:
        raise KlammError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {request.name} has {existing} partition(s) and cannot shrink to {request.count}.",
        )
    additional = request.count - existing
    replication_factor = len(topic.partitions[0].replicas)
    if request.assignments is None:
        assignments = _place(context, additional, replication_factor)
    else:
        assignments = [assignment.broker_ids for assignment in request.assignments]
        if len(assignments) != additional:
            raise KlammError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{additional} partition(s) are to be added, but {len(assignments)} assignment(s) were given.",
            )
        check_assignments(context, assignments, replication_factor, first_index=existing)
    return [_new_partition(context, topic.id, index, replicas) for index, replicas in enumerate(assignments, existing)]


def delete_topics(
    context: ControllerContext, request: dt.DeleteTopicsRequest, version: int
) -> ControllerDecision[dt.DeleteTopicsResponse]:
    """Delete topics by name or id, with their configs; brokers delete the files when they apply the records."""
    states = [dt.DeleteTopicState(name=name) for name in request.topic_names] if version < 6 else request.topics
    refused = _deletion_disabled(version) if not context.config.delete_topic_enable else None
    times = Counter(state.name for state in states if state.name is not None)
    times_by_id = Counter(state.topic_id for state in states if state.topic_id != ZERO_UUID)
    response = dt.DeleteTopicsResponse()
    records: list[MetadataRecord] = []
    deleted: set[Uuid] = set()
    answered: set[tuple[str | None, bytes]] = set()
    for state in states:
        result = dt.DeletableTopicResult(name=state.name, topic_id=state.topic_id)
        try:
            if refused is not None:
                raise refused
            if times[state.name or ""] > 1 or times_by_id[state.topic_id] > 1:
                refuse(ErrorCode.INVALID_REQUEST, "A topic may be named only once.")
            topic = _topic_to_delete(context, state)
            if topic.id in deleted:
                refuse(ErrorCode.INVALID_REQUEST, "The topic was given both by name and by id.")
            context.charge(len(topic.partitions))
        except KlammError as error:
            result.error_code, result.error_message = error.code, str(error)
        else:
            deleted.add(topic.id)
            records.append(RemoveTopicRecord(topic_id=topic.id))
            result.name, result.topic_id = topic.name, topic.id
        # A topic that is named twice gets one result, as in Kafka.
        if (state.name, state.topic_id) not in answered:
            answered.add((state.name, state.topic_id))
            response.responses.append(result)
    response.throttle_time_ms = context.throttle_ms
    return ControllerDecision(tuple(records), response)


def _deletion_disabled(version: int) -> KlammError:
    # Clients before v3 do not have the error code.
    code = ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST
    return KlammError(code, "Topic deletion is turned off: delete.topic.enable is false.")


def _topic_to_delete(context: ControllerContext, state: dt.DeleteTopicState) -> TopicImage:
    topics = context.image.topics
    by_id = state.topic_id != ZERO_UUID
    if state.name is not None and by_id:
        raise KlammError(ErrorCode.INVALID_REQUEST, "A topic may be given by name or by id, not by both.")
    if state.name is not None:
        topic = topics.by_name.get(state.name)
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif by_id:
        topic = topics.by_id.get(Uuid(state.topic_id))
        missing = ErrorCode.UNKNOWN_TOPIC_ID
    else:
        raise KlammError(ErrorCode.INVALID_REQUEST, "Neither a topic name nor a topic id was given.")
    if topic is None:
        raise KlammError(missing, "There is no such topic.")
    return topic
