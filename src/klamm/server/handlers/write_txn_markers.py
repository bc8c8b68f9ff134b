"""WriteTxnMarkers, v1-2: a coordinator, or an operator, ends transactions in the partitions led here.

v1 flexible · v2 the transaction's protocol version, which decides how its epoch is checked
"""

import asyncio

from klamm.coordinator.transactions import OwedMarkers
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
from klamm.server.context import RequestContext
from klamm.server.services import Services
from klamm.server.transaction_markers import write_marker


async def handle(
    services: Services, _context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Append every marker; answered when all are committed or have failed."""
    results = await asyncio.gather(*(_write(services, marker) for marker in request.markers))
    return WriteTxnMarkersResponse(markers=list(results))


async def _write(services: Services, marker: WritableTxnMarker) -> WritableTxnMarkerResult:
    owed = OwedMarkers(
        transactional_id="",
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        committed=marker.transaction_result,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )
    topics = []
    for topic in marker.topics:
        written = [_append(services, TopicPartition(topic.name, index), owed) for index in topic.partition_indexes]
        codes = await asyncio.gather(*written)
        results = [
            WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
            for index, code in zip(topic.partition_indexes, codes, strict=True)
        ]
        topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=results))
    return WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)


def _append(services: Services, partition: TopicPartition, owed: OwedMarkers) -> "asyncio.Future[ErrorCode]":
    answer: asyncio.Future[ErrorCode] = services.loop.create_future()

    def settled(error: ErrorCode) -> None:
        if not answer.done():
            answer.set_result(error)

    write_marker(services, partition, owed, settled)
    return answer
