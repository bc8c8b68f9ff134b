"""ListOffsets, v1-11: where a partition begins, ends, or was at a point in time.

-1 latest (high watermark; last stable offset for read_committed) · -2 earliest · -3 largest timestamp (v7) · -4 first
local (v8) · -5 latest tiered (v9) · -6 earliest pending upload (v11). A time gives the first record at or after
it, or -1 when there is none; where that lies in a large packed batch, it is looked for in a thread. Nothing is tiered
here, so local is everything and tiered is nothing.
v4 leader epochs · v6 flexible · v10 a timeout for remote storage, which is never needed here
"""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

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
from klamm.server.requests.context import RequestContext
from klamm.server.requests.slices import Steps
from klamm.server.services import Services
from klamm.storage.timestamp_lookup import SearchElsewhere, TimestampOffset

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(-1, -7, -1)
_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}


@dataclass(frozen=True, slots=True)
class Search:
    """A partition's answer that lies in a batch for a thread."""

    replica: Replica
    timestamp: int
    committed_only: bool
    elsewhere: SearchElsewhere
    answer: ListOffsetsPartitionResponse


def handle(
    services: Services, context: RequestContext, request: ListOffsetsRequest
) -> Steps[ListOffsetsResponse | Coroutine[Any, Any, ListOffsetsResponse]]:
    """Answer each partition by itself; one named twice is refused, since two answers could differ."""
    searches: list[Search] = []
    seen: set[tuple[str, int]] = set()
    repeated: set[tuple[str, int]] = set()
    for topic in request.topics:
        for partition in topic.partitions:
            key = (topic.name, partition.partition_index)
            (repeated if key in seen else seen).add(key)
    topics = []
    for topic in request.topics:
        answers = []
        for partition in topic.partitions:
            answer = ListOffsetsPartitionResponse(partition_index=partition.partition_index)
            try:
                if (topic.name, partition.partition_index) in repeated:
                    raise KlammError(ErrorCode.INVALID_REQUEST)
                _answer(services, context, request, topic.name, partition, answer, searches)
            except KlammError as error:
                answer.error_code = error.code
            answers.append(answer)
            yield 1
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        yield 1
    response = ListOffsetsResponse(topics=topics)
    return _search(services, searches, response) if searches else response


async def _search(services: Services, searches: list[Search], response: ListOffsetsResponse) -> ListOffsetsResponse:
    """Look into large packed batches in threads, one after the other, then answer."""
    for search in searches:
        try:
            await _search_one(services, search)
        except KlammError as error:
            search.answer.error_code = error.code
    return response


async def _search_one(services: Services, search: Search) -> None:
    log = search.replica.log
    elsewhere = search.elsewhere
    while True:
        found = await services.checks.run(elsewhere.search)
        if found is None and search.timestamp >= 0:
            try:
                found = log.offset_for_timestamp(search.timestamp, elsewhere.next_offset)
            except SearchElsewhere as next_one:
                elsewhere = next_one
                continue
        _fill(search.answer, _visible(search.replica, found, committed_only=search.committed_only))
        return


def _fill(answer: ListOffsetsPartitionResponse, found: tuple[int, int, int] | None) -> None:
    if found is not None:
        answer.timestamp, answer.offset, answer.leader_epoch = found


def _answer(
    services: Services,
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    asked: ListOffsetsPartition,
    answer: ListOffsetsPartitionResponse,
    searches: list[Search],
) -> None:
    replica = leading_replica(services, topic, asked.partition_index, asked.current_leader_epoch)
    if asked.timestamp < 0 and context.version < _SINCE.get(asked.timestamp, 0):
        raise KlammError(ErrorCode.UNSUPPORTED_VERSION)
    committed_only = request.replica_id < 0 and request.isolation_level == 1
    try:
        if request.replica_id >= 0 and asked.timestamp == LATEST:
            # A follower asks where the log itself ends, not what is committed of it.
            _fill(answer, (-1, replica.log.log_end_offset, replica.leader_epoch))
        else:
            _fill(answer, _lookup(replica, asked.timestamp, committed_only=committed_only))
    except SearchElsewhere as elsewhere:
        searches.append(Search(replica, asked.timestamp, committed_only, elsewhere, answer))


def _check_settled(replica: Replica) -> None:
    """A new leader does not know yet how far its predecessor had committed; an older end must not be told meanwhile."""
    if replica.log.high_watermark < replica.state.epoch_start_offset:
        raise KlammError(ErrorCode.OFFSET_NOT_AVAILABLE, "the new leader is finding out what is committed")


def _lookup(replica: Replica, timestamp: int, *, committed_only: bool) -> tuple[int, int, int] | None:
    """(timestamp, offset, leader epoch), or None when there is no such record."""
    log = replica.log
    if timestamp == LATEST:
        _check_settled(replica)
        end = log.last_stable_offset if committed_only else log.high_watermark
        return -1, end, replica.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.log_start_offset, log.leader_epochs.epoch_for_offset(log.log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1, replica.leader_epoch
    if timestamp == MAX_TIMESTAMP:
        found = log.offset_of_max_timestamp()
    elif timestamp < 0:
        raise KlammError(ErrorCode.INVALID_REQUEST)
    else:
        found = log.offset_for_timestamp(timestamp)
    return _visible(replica, found, committed_only=committed_only)


def _visible(replica: Replica, found: TimestampOffset | None, *, committed_only: bool) -> tuple[int, int, int] | None:
    """What was found, if it is committed."""
    log = replica.log
    if found is None:
        return None
    limit = log.last_stable_offset if committed_only else log.high_watermark
    if found[1] < limit:
        return found
    _check_settled(replica)
    return None
