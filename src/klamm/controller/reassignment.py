"""Moving partitions to other brokers, one step at a time so that no record is ever on fewer replicas than before.

A move first widens the partition to everybody who is to hold it, old and new. Once all who stay are in sync, the
others are let go; `change_partition` sees to that whenever an ISR changes. Taking a move back lets the new ones go.
"""

from klamm.controller.context import Context, Decision
from klamm.controller.partitions import RECOVERING, Placement, change_partition, leader_rule
from klamm.controller.topics import check_assignments
from klamm.metadata.image import PartitionImage, TopicImage
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages import alter_partition_reassignments as apr
from klamm.protocol.messages import list_partition_reassignments as lpr
from klamm.protocol.messages.metadata_records import MetadataRecord, PartitionChangeRecord


def alter_partition_reassignments(
    context: Context, request: apr.AlterPartitionReassignmentsRequest
) -> Decision[apr.AlterPartitionReassignmentsResponse]:
    """Begin moves, change them under way, or take them back; each partition is decided on its own."""
    response = apr.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None
    )
    records: list[MetadataRecord] = []
    for asked in request.topics:
        topic = context.image.topics.get(asked.name)
        results = []
        unknown = f"There is no topic named {asked.name}."
        for partition in asked.partitions:
            code, message = ErrorCode.NONE, None
            if topic is None:  # without an exception each: a request may name twenty thousand
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
        response.responses.append(apr.ReassignableTopicResponse(name=asked.name, partitions=results))
    return Decision(tuple(records), response)


def _alter(
    context: Context,
    topic: TopicImage,
    asked: apr.ReassignablePartition,
    request: apr.AlterPartitionReassignmentsRequest,
) -> PartitionChangeRecord | None:
    partition = topic.partitions.get(asked.partition_index)
    if partition is None:
        complaint = f"There is no partition {topic.name}-{asked.partition_index}."
        raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, complaint)
    if asked.replicas is None:
        return _cancel(context, topic, asked.partition_index, partition)
    replicas, index = asked.replicas, asked.partition_index
    check_assignments(context, [replicas], len(replicas), first_index=index, must_lead=False)
    before = len(partition.replicas) - len(partition.adding_replicas)
    if not request.allow_replication_factor_change and len(replicas) != before:
        raise KlammError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor would change from {before} to {len(replicas)}, which the request forbids.",
        )
    return _move(context, topic, index, partition, replicas)


def _move(
    context: Context, topic: TopicImage, index: int, partition: PartitionImage, target: list[int]
) -> PartitionChangeRecord | None:
    """Towards `target` from whatever holds the partition now, a move under way included."""
    removing = tuple(sorted(set(partition.replicas) - set(target)))
    added = set(target) - set(partition.replicas)
    still_adding = set(partition.adding_replicas) & set(target)
    return change_partition(
        context,
        topic,
        index,
        partition,
        acceptable=leader_rule(context, partition),
        placement=Placement((*target, *removing), removing, tuple(sorted(added | still_adding))),
    )


def _cancel(context: Context, topic: TopicImage, index: int, partition: PartitionImage) -> PartitionChangeRecord | None:
    if not partition.is_reassigning:
        raise KlammError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    replicas = tuple(replica for replica in partition.replicas if replica not in partition.adding_replicas)
    isr = tuple(replica for replica in partition.isr if replica not in partition.adding_replicas)
    if not replicas:
        raise KlammError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Every replica is new: there is nothing to go back to.")
    recovery = None
    if not isr:
        if not context.unclean_election_allowed(topic.name):
            raise KlammError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{topic.name}-{index} cannot go back: only new replicas are in sync, and records would be lost.",
            )
        isr, recovery = replicas[:1], RECOVERING
    return change_partition(
        context,
        topic,
        index,
        partition,
        acceptable=leader_rule(context, partition),
        isr=isr,
        leader_recovery_state=recovery,
        placement=Placement(replicas),
    )


def list_partition_reassignments(
    context: Context, request: lpr.ListPartitionReassignmentsRequest
) -> Decision[lpr.ListPartitionReassignmentsResponse]:
    """The moves under way, of the partitions asked for or of all."""
    response = lpr.ListPartitionReassignmentsResponse(error_message=None)
    if request.topics is None:
        wanted = [(topic, list(topic.partitions)) for topic in context.image.topics.by_name.values()]
    else:
        found = [(context.image.topics.get(asked.name), asked.partition_indexes) for asked in request.topics]
        wanted = [(topic, indexes) for topic, indexes in found if topic is not None]
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
    return Decision((), response)
