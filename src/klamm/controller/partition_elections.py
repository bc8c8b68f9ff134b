"""Leader elections on request and periodically: preferred replicas, and unclean ones where the topic allows it."""

from collections.abc import Iterable

from klamm.controller.context import ControllerContext, ControllerDecision
from klamm.controller.partitions import Election, change_partition, leader_rule
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages import elect_leaders as el
from klamm.protocol.messages.metadata_records import MetadataRecord, PartitionChangeRecord

PREFERRED_ELECTION, UNCLEAN_ELECTION = 0, 1


def elect_leaders(
    context: ControllerContext, request: el.ElectLeadersRequest
) -> ControllerDecision[el.ElectLeadersResponse]:
    """Elect preferred replicas, or any live replica for leaderless partitions.

    When all partitions are requested (null), those that need no election are left out of the response.
    """
    response = el.ElectLeadersResponse()
    if request.election_type not in (PREFERRED_ELECTION, UNCLEAN_ELECTION):
        response.error_code = ErrorCode.INVALID_REQUEST
        return ControllerDecision((), response)
    everything = request.topic_partitions is None
    wanted: Iterable[tuple[str, Iterable[int]]]
    if request.topic_partitions is None:
        wanted = [(topic.name, sorted(topic.partitions)) for topic in context.image.topics.by_name.values()]
    else:
        wanted = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    records: list[MetadataRecord] = []
    for name, indexes in wanted:
        results = []
        for index in indexes:
            code, message = ErrorCode.NONE, None
            try:
                records.append(_elect_leader(context, name, index, request.election_type))
            except KlammError as error:
                if everything and error.code is ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                code, message = error.code, str(error)
            results.append(el.PartitionResult(partition_id=index, error_code=code, error_message=message))
        response.replica_election_results.append(el.ReplicaElectionResult(topic=name, partition_result=results))
    return ControllerDecision(tuple(records), response)


def _elect_leader(context: ControllerContext, name: str, index: int, election_type: int) -> PartitionChangeRecord:
    topic = context.image.topics.get(name)
    if topic is None:
        raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name}.")
    partition = topic.partitions.get(index)
    if partition is None:
        raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {name}-{index}.")
    preferred = election_type == PREFERRED_ELECTION
    if partition.has_leader and (not preferred or partition.leader == partition.preferred_replica):
        raise KlammError(ErrorCode.ELECTION_NOT_NEEDED, "The partition already has the requested leader.")
    record = change_partition(
        context,
        topic,
        index,
        partition,
        acceptable=leader_rule(context, partition),
        election=Election.PREFERRED if preferred else Election.UNCLEAN,
    )
    if record is None:
        if preferred:
            raise KlammError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred replica is not in sync or down.")
        raise KlammError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica is alive.")
    return record


def balance_leaders(context: ControllerContext, limit: int = 1_000) -> ControllerDecision[bool]:
    """Elect up to `limit` preferred leaders; the response is whether more partitions may need it."""
    records: list[MetadataRecord] = []
    for topic, index, partition in context.image.topics.partitions():
        if partition.leader == partition.preferred_replica:
            continue
        if len(records) == limit:
            # A bounded batch per call keeps the event loop responsive in clusters with many partitions.
            return ControllerDecision(tuple(records), response=True)
        record = change_partition(
            context,
            topic,
            index,
            partition,
            acceptable=leader_rule(context, partition),
            election=Election.PREFERRED,
        )
        if record is not None:
            records.append(record)
    return ControllerDecision(tuple(records), response=False)


def elect_unclean_leaders(context: ControllerContext, limit: int = 1_000) -> ControllerDecision[bool]:
    """Elect up to `limit` leaders for leaderless partitions whose topic allows an unclean election.

    For topics whose configuration was changed after their last leader had failed.
    """
    records: list[MetadataRecord] = []
    for topic, index, partition in context.image.topics.partitions():
        if partition.has_leader or not context.unclean_election_allowed(topic.name):
            continue
        if len(records) == limit:
            return ControllerDecision(tuple(records), response=True)
        record = change_partition(context, topic, index, partition, acceptable=leader_rule(context, partition))
        if record is not None:
            records.append(record)
    return ControllerDecision(tuple(records), response=False)
