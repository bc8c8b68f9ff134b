"""Electing leaders on request and on a whim of the clock: preferred ones back, unclean ones where that is allowed."""

from collections.abc import Iterable

from klamm.controller.context import Context, Decision
from klamm.controller.partitions import Election, change_partition, leader_rule
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages import elect_leaders as el
from klamm.protocol.messages.metadata_records import MetadataRecord, PartitionChangeRecord

PREFERRED_ELECTION, UNCLEAN_ELECTION = 0, 1


def elect_leaders(context: Context, request: el.ElectLeadersRequest) -> Decision[el.ElectLeadersResponse]:
    """Move leadership to the preferred replicas, or give leaderless partitions any leader at all.

    Asked for all partitions (null), those that need nothing are left out of the answer.
    """
    response = el.ElectLeadersResponse()
    if request.election_type not in (PREFERRED_ELECTION, UNCLEAN_ELECTION):
        response.error_code = ErrorCode.INVALID_REQUEST
        return Decision((), response)
    everything = request.topic_partitions is None
    wanted: Iterable[tuple[str, Iterable[int]]]
    if request.topic_partitions is None:
        wanted = [(topic.name, sorted(topic.partitions)) for topic in context.image.topics.by_name.values()]
    else:
        wanted = [(asked.topic, asked.partitions) for asked in request.topic_partitions]
    records: list[MetadataRecord] = []
    for name, indexes in wanted:
        results = []
        for index in indexes:
            code, message = ErrorCode.NONE, None
            try:
                records.append(_elect_one(context, name, index, request.election_type))
            except KlammError as error:
                if everything and error.code is ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                code, message = error.code, str(error)
            results.append(el.PartitionResult(partition_id=index, error_code=code, error_message=message))
        response.replica_election_results.append(el.ReplicaElectionResult(topic=name, partition_result=results))
    return Decision(tuple(records), response)


def _elect_one(context: Context, name: str, index: int, election_type: int) -> PartitionChangeRecord:
    topic = context.image.topics.get(name)
    if topic is None:
        raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name}.")
    partition = topic.partitions.get(index)
    if partition is None:
        raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {name}-{index}.")
    preferred = election_type == PREFERRED_ELECTION
    if partition.has_leader and (not preferred or partition.leader == partition.preferred_replica):
        raise KlammError(ErrorCode.ELECTION_NOT_NEEDED, "The partition has the leader that was asked for.")
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


def balance_leaders(context: Context, limit: int = 1_000) -> Decision[bool]:
    """Give up to `limit` partitions their preferred leader back; the response says whether more may be waiting."""
    records: list[MetadataRecord] = []
    for topic, index, partition in context.image.topics.partitions():
        if partition.leader == partition.preferred_replica:
            continue
        if len(records) == limit:
            return Decision(tuple(records), response=True)
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
    return Decision(tuple(records), response=False)


def elect_where_allowed(context: Context, limit: int = 1_000) -> Decision[bool]:
    """Give up to `limit` leaderless partitions a leader where their topic allows an unclean one.

    For topics that were allowed one only after their last leader had gone.
    """
    records: list[MetadataRecord] = []
    for topic, index, partition in context.image.topics.partitions():
        if partition.has_leader or not context.unclean_election_allowed(topic.name):
            continue
        if len(records) == limit:
            return Decision(tuple(records), response=True)
        record = change_partition(context, topic, index, partition, acceptable=leader_rule(context, partition))
        if record is not None:
            records.append(record)
    return Decision(tuple(records), response=False)
