"""Reassigning partitions to other brokers without ever having fewer replicas of a record than before.

A reassignment first adds the new replicas to the old ones. Once all replicas that stay are in sync, `change_partition`
removes the others. Cancelling removes the new ones.
"""

from klamm.controller.context import ControllerContext, ControllerDecision
from klamm.controller.partitions import RECOVERING, ReplicaPlacement, change_partition, leader_rule
from klamm.controller.topics import check_assignments
from klamm.metadata.image import PartitionImage, TopicImage
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages import alter_partition_reassignments as apr
from klamm.protocol.messages import list_partition_reassignments as lpr
from klamm.protocol.messages.metadata_records import MetadataRecord, PartitionChangeRecord


def alter_partition_reassignments(
    context: ControllerContext, request: apr.AlterPartitionReassignmentsRequest
) -> ControllerDecision[apr.AlterPartitionReassignmentsResponse]:
    """Start, change or cancel reassignments; each partition succeeds or fails by itself."""
    response = apr.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None
    )
    records: list[MetadataRecord] = []
    for topic_request in request.topics:
        topic = context.image.topics.get(topic_request.name)
        results = []
        unknown = f"There is no topic named {topic_request.name}."
        for partition in topic_request.partitions:
            code, message = ErrorCode.NONE, None
            if topic is None:  # no exception per partition: a request may name twenty thousand
                code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, unknown
            else:
                try:
                    record = _alter(context, topic, partition, request)
                    records += [] if record is None else [record]
                except KlammError as error:
                    code, message = error.code, str(error)
            results.append(
                apr.ReassignablePartitionResponse(
                    partition_index=partition.partition_index, error_code=code, error_message=message
                )
            )
        response.responses.append(apr.ReassignableTopicResponse(name=topic_request.name, partitions=results))
    return ControllerDecision(tuple(records), response)


def _alter(
    context: ControllerContext,
    topic: TopicImage,
    target: apr.ReassignablePartition,
    request: apr.AlterPartitionReassignmentsRequest,
) -> PartitionChangeRecord | None:
    partition = topic.partitions.get(target.partition_index)
    if partition is None:
        problem = f"There is no partition {topic.name}-{target.partition_index}."
        raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, problem)
    if target.replicas is None:
        return _cancel(context, topic, target.partition_index, partition)
    replicas, index = target.replicas, target.partition_index
    # A target broker may be down: the reassignment waits for it.
    check_assignments(context, [replicas], len(replicas), first_index=index, must_lead=False)
    # Replicas that a running reassignment adds are not part of the replication factor yet.
    before = len(partition.replicas) - len(partition.adding_replicas)
    if not request.allow_replication_factor_change and len(replicas) != before:
        raise KlammError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor would change from {before} to {len(replicas)}, which the request forbids.",
        )
    return _move(context, topic, index, partition, replicas)


def _move(
    context: ControllerContext, topic: TopicImage, index: int, partition: PartitionImage, target: list[int]
) -> PartitionChangeRecord | None:
    """Move the partition to `target`, from a running reassignment if there is one."""
    removing = tuple(sorted(set(partition.replicas) - set(target)))
    added = set(target) - set(partition.replicas)
    # What a running reassignment adds has no complete copy yet, so it stays marked.
    already_adding = set(partition.adding_replicas) & set(target)
    return change_partition(
        context,
        topic,
        index,
        partition,
        acceptable=leader_rule(context, partition),
        # The target comes first: its first replica is the preferred leader from now on.
        placement=ReplicaPlacement((*target, *removing), removing, tuple(sorted(added | already_adding))),
    )


def _cancel(
    context: ControllerContext, topic: TopicImage, index: int, partition: PartitionImage
) -> PartitionChangeRecord | None:
    if not partition.is_reassigning:
        raise KlammError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    replicas = tuple(replica for replica in partition.replicas if replica not in partition.adding_replicas)
    isr = tuple(replica for replica in partition.isr if replica not in partition.adding_replicas)
    if not replicas:
        raise KlammError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Every replica is new: no former replica is left.")
    recovery = None
    if not isr:
        if not context.unclean_election_allowed(topic.name):
            raise KlammError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{topic.name}-{index} cannot be cancelled: only new replicas are in sync, and records would be lost.",
            )
        # An unclean choice: the old replicas may lack records that only the new ones have.
        isr, recovery = replicas[:1], RECOVERING
    return change_partition(
        context,
        topic,
        index,
        partition,
        acceptable=leader_rule(context, partition),
        isr=isr,
        leader_recovery_state=recovery,
        placement=ReplicaPlacement(replicas),
    )


def list_partition_reassignments(
    context: ControllerContext, request: lpr.ListPartitionReassignmentsRequest
) -> ControllerDecision[lpr.ListPartitionReassignmentsResponse]:
    """The running reassignments of the requested partitions, or of all."""
    response = lpr.ListPartitionReassignmentsResponse(error_message=None)
    if request.topics is None:
        wanted = [(topic, list(topic.partitions)) for topic in context.image.topics.by_name.values()]
    else:
        requested = [(context.image.topics.get(topic.name), topic.partition_indexes) for topic in request.topics]
        wanted = [(topic, indexes) for topic, indexes in requested if topic is not None]
    for topic, indexes in wanted:
        moving = [
            lpr.OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding_replicas),
                removing_replicas=list(partition.removing_replicas),
            )
            for index in indexes
            if (partition := topic.partitions.get(index)) is not None and partition.is_reassigning
        ]
        if moving:
            response.topics.append(lpr.OngoingTopicReassignment(name=topic.name, partitions=moving))
    return ControllerDecision((), response)
