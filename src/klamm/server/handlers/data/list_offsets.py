"""ListOffsets, v1-11: the start, the end or the offset by timestamp of a partition.

-1 latest (high watermark; last stable offset for read_committed) · -2 earliest · -3 largest timestamp (v7) · -4 first
local (v8) · -5 latest tiered (v9) · -6 earliest pending upload (v11). A timestamp gives the first record at or
after it, or -1 when there is none; a large compressed batch is searched in a thread. Nothing is tiered here, so the
whole log is local.
v4 leader epochs · v6 flexible · v10 a timeout for remote storage, which is never needed here
"""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from klamm.replication import Replica
from klamm.server.cluster.topics import leading_replica
from klamm.server.requests.access.checks import topic_denied
from klamm.server.requests.context import RequestContext
from klamm.server.requests.slices import SliceSteps
from klamm.server.services import Services
from klamm.storage.timestamp_lookup import SearchElsewhere, TimestampOffset

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(-1, -7, -1)
_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}


@dataclass(frozen=True, slots=True)
class Search:
    """A lookup that has to decompress a large batch, which is done in a thread."""

    replica: Replica
    timestamp: int
    committed_only: bool
    elsewhere: SearchElsewhere
    result: ListOffsetsPartitionResponse


def handle(
    services: Services, context: RequestContext, request: ListOffsetsRequest
) -> SliceSteps[ListOffsetsResponse | Coroutine[Any, Any, ListOffsetsResponse]]:
    """Look up each partition; one named twice is INVALID_REQUEST, as in Kafka."""
    searches: list[Search] = []
    seen: set[tuple[str, int]] = set()
    repeated: set[tuple[str, int]] = set()
    for topic in request.topics:
        for partition in topic.partitions:
            key = (topic.name, partition.partition_index)
            # Found in a first pass, because the first mention of a repeated partition is refused too.
            (repeated if key in seen else seen).add(key)
    topics = []
    for topic in request.topics:
        partitions = []
        denied = topic_denied(services, context, AclOperation.DESCRIBE, topic.name, count=len(topic.partitions))
        for partition in topic.partitions:
            result = ListOffsetsPartitionResponse(partition_index=partition.partition_index)
            try:
                if denied:
                    raise KlammError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                if (topic.name, partition.partition_index) in repeated:
                    raise KlammError(ErrorCode.INVALID_REQUEST)
                _look_up_partition(services, context, request, topic.name, partition, result, searches)
            except KlammError as error:
                result.error_code = error.code
            partitions.append(result)
            yield 1
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
        yield 1
    response = ListOffsetsResponse(topics=topics)
    return _search(services, searches, response) if searches else response


async def _search(services: Services, searches: list[Search], response: ListOffsetsResponse) -> ListOffsetsResponse:
    """Search large compressed batches in threads, one after the other, then return the response."""
    for search in searches:
        try:
            await _search_partition(services, search)
        except KlammError as error:
            search.result.error_code = error.code
    return response


async def _search_partition(services: Services, search: Search) -> None:
    log = search.replica.log
    elsewhere = search.elsewhere
    while True:
        match = await services.checks.run(elsewhere.search)
        if match is None and search.timestamp >= 0:
            # The batch's largest timestamp was late enough, none of its visible records: go on with the next batch.
            try:
                match = log.offset_for_timestamp(search.timestamp, elsewhere.next_offset)
            except SearchElsewhere as next_batch:
                elsewhere = next_batch
                continue
        _fill(search.result, _hide_uncommitted(search.replica, match, committed_only=search.committed_only))
        return


def _fill(result: ListOffsetsPartitionResponse, match: tuple[int, int, int] | None) -> None:
    if match is not None:
        result.timestamp, result.offset, result.leader_epoch = match


def _look_up_partition(
    services: Services,
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    partition: ListOffsetsPartition,
    result: ListOffsetsPartitionResponse,
    searches: list[Search],
) -> None:
    replica = leading_replica(services, topic, partition.partition_index, partition.current_leader_epoch)
    if partition.timestamp < 0 and context.version < _SINCE.get(partition.timestamp, 0):
        raise KlammError(ErrorCode.UNSUPPORTED_VERSION)
    # A follower copies uncommitted records too, so isolation applies to clients only.
    committed_only = request.replica_id < 0 and request.isolation_level == 1
    try:
        if request.replica_id >= 0 and partition.timestamp == LATEST:
            # A follower needs the end of the log itself, not of what is committed of it.
            _fill(result, (-1, replica.log.log_end_offset, replica.leader_epoch))
        else:
            _fill(result, _look_up(replica, partition.timestamp, committed_only=committed_only))
    except SearchElsewhere as elsewhere:
        searches.append(Search(replica, partition.timestamp, committed_only, elsewhere, result))


def _check_high_watermark(replica: Replica) -> None:
    """Raise OFFSET_NOT_AVAILABLE while the high watermark of a new leader is before its epoch (KIP-207).

    Its own, older high watermark would take clients back.
    """
    if replica.log.high_watermark < replica.state.epoch_start_offset:
        raise KlammError(ErrorCode.OFFSET_NOT_AVAILABLE, "the new leader has no high watermark of its own epoch yet")


def _look_up(replica: Replica, timestamp: int, *, committed_only: bool) -> tuple[int, int, int] | None:
    """Return (timestamp, offset, leader epoch), or None when there is no such record."""
    log = replica.log
    if timestamp == LATEST:
        _check_high_watermark(replica)
        end = log.last_stable_offset if committed_only else log.high_watermark
        return -1, end, replica.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        # Kafka, too, returns -1 for the timestamp of these two ends of the log.
        return -1, log.log_start_offset, log.leader_epochs.epoch_for_offset(log.log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        # As Kafka answers without tiered storage.
        return -1, -1, replica.leader_epoch
    if timestamp == MAX_TIMESTAMP:
        match = log.offset_of_max_timestamp()
    elif timestamp < 0:
        raise KlammError(ErrorCode.INVALID_REQUEST)
    else:
        match = log.offset_for_timestamp(timestamp)
    return _hide_uncommitted(replica, match, committed_only=committed_only)


def _hide_uncommitted(
    replica: Replica, match: TimestampOffset | None, *, committed_only: bool
) -> tuple[int, int, int] | None:
    """Return the record that was found if clients may see it, else None."""
    log = replica.log
    if match is None:
        return None
    limit = log.last_stable_offset if committed_only else log.high_watermark
    # A record that is not committed may still be lost: a consumer must not begin there.
    if match[1] < limit:
        return match
    _check_high_watermark(replica)
    return None
