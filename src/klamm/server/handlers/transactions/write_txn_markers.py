"""WriteTxnMarkers, v1-2: a coordinator, or an operator, ends transactions in the partitions led here.

v1 flexible · v2 the transaction's protocol version, which decides how its epoch is checked
"""

import asyncio

from klamm.coordinator.transactions import PendingMarkers
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from klamm.server.coordinators.transaction_markers import write_marker
from klamm.server.requests.context import RequestContext
from klamm.server.requests.slices import Pace
from klamm.server.services import Services


async def handle(
    services: Services, _context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Append every marker; answered when all are committed or have failed."""
    pace = Pace()
    # All markers are appended before the first result is awaited, so that many share a write.
    writes = []
    for marker in request.markers:
        writes.append(await _start(services, marker, pace))
        await pace.spend()
    results = []
    for marker, topics in zip(request.markers, writes, strict=True):
        results.append(
            WritableTxnMarkerResult(producer_id=marker.producer_id, topics=await _await_results(topics, pace))
        )
        await pace.spend()
    return WriteTxnMarkersResponse(markers=results)


async def _start(
    services: Services, marker: WritableTxnMarker, pace: Pace
) -> "list[tuple[str, dict[int, asyncio.Future[ErrorCode]]]]":
    """Append a marker to its partitions; the futures get the result once it is committed or has failed."""
    pending = PendingMarkers(
        transactional_id="",  # the request does not name it
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        committed=marker.transaction_result,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )
    topics = []
    for topic in marker.topics:
        futures: dict[int, asyncio.Future[ErrorCode]] = {}
        for index in topic.partition_indexes:
            # The response has one entry per partition: one that the request names twice gets one marker.
            if index not in futures:
                futures[index] = _append(services, TopicPartition(topic.name, index), pending)
                await pace.spend()
        topics.append((topic.name, futures))
        await pace.spend()
    return topics


async def _await_results(
    topics: "list[tuple[str, dict[int, asyncio.Future[ErrorCode]]]]", pace: Pace
) -> list[WritableTxnMarkerTopicResult]:
    results = []
    for name, futures in topics:
        result = WritableTxnMarkerTopicResult(name=name)
        for index, future in futures.items():
            result.partitions.append(WritableTxnMarkerPartitionResult(partition_index=index, error_code=await future))
            await pace.spend()
        results.append(result)
        await pace.spend()
    return results


def _append(services: Services, partition: TopicPartition, pending: PendingMarkers) -> "asyncio.Future[ErrorCode]":
    future: asyncio.Future[ErrorCode] = services.loop.create_future()

    def set_result(error: ErrorCode) -> None:
        if not future.done():
            future.set_result(error)

    write_marker(services, partition, pending, set_result)
    return future
