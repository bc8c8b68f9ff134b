"""Fetch over a blocking connection: the records of some partitions of one leader, decoded.

For readers that read bounded ranges without a group; a consumer reads ahead over an event loop (`consumer.fetcher`).
Both filter batches with `core.batches.readable`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from klamm.client.blocking_cluster import BlockingConnection
from klamm.client.core.batches import readable
from klamm.client.errors import code_of
from klamm.client.types import Record
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic

FETCH_VERSION: Final = 12
"""The newest version that names topics; later ones need topic ids (KIP-516), which this reader does not look up."""
PARTITION_BYTES_MAX: Final = 1 << 20
RESPONSE_BYTES_MAX: Final = 16 << 20
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """The response of a leader for one partition; `next_offset` is where to read on."""

    partition: TopicPartition
    error: ErrorCode
    log_start_offset: int
    next_offset: int
    records: list[Record]


def fetch_partitions(
    leader: BlockingConnection, offsets: Mapping[TopicPartition, int], *, wait_ms: int, committed: bool = False
) -> list[PartitionRecords]:
    """Records from these offsets on, of committed transactions only if `committed`; waits `wait_ms` for the first."""
    topics: dict[str, FetchTopic] = {}
    for (topic, index), offset in offsets.items():
        wanted = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=PARTITION_BYTES_MAX)
        topics.setdefault(topic, FetchTopic(topic=topic)).partitions.append(wanted)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=RESPONSE_BYTES_MAX,
        isolation_level=_READ_COMMITTED if committed else _READ_UNCOMMITTED,
        topics=list(topics.values()),
    )
    fetched = []
    for topic_response in leader.ask(request, FETCH_VERSION).responses:
        for response in topic_response.partitions:
            partition = TopicPartition(topic_response.topic, response.partition_index)
            fetched.append(_decode(partition, response, offsets[partition], committed=committed))
    return fetched


def _decode(partition: TopicPartition, response: Any, fetch_offset: int, *, committed: bool) -> PartitionRecords:
    error = code_of(response.error_code)
    if error or not response.records:
        return PartitionRecords(partition, error, response.log_start_offset, fetch_offset, [])
    aborted = None
    if committed:
        aborted = [(txn.producer_id, txn.first_offset) for txn in response.aborted_transactions or ()]
    batches, next_offset = readable(response.records, fetch_offset, aborted)
    records = []
    for batch in batches:
        timestamp_type = 1 if batch.is_log_append_time else 0
        records += [
            Record(*partition, row.offset, row.timestamp, row.key, row.value, row.headers, timestamp_type)
            for row in batch.decode()
            if row.offset >= fetch_offset  # brokers return whole batches, which may begin before the fetch offset
        ]
    return PartitionRecords(partition, error, response.log_start_offset, next_offset, records)
