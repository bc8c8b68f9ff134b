"""Records of requests through one producer, which batches those of all requests together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.errors import KafkaError, RetriableError
from klamm.client.producer import AsyncProducer, Delivery
from klamm.client.types import RecordMetadata
from klamm.rest.core.fields import dump_json
from klamm.rest.core.refusals import partition_not_found

SendOutcome = Delivery | KafkaError
"""A record that was buffered, or the reason why it was not."""


@dataclass(slots=True)
class RecordCounts:
    """What the metrics count, of all producers together."""

    records: int = 0
    failures: int = 0


class RecordProducer:
    """Sends records, and says what became of them."""

    def __init__(self, producer: AsyncProducer, admin: AsyncAdmin, counts: RecordCounts) -> None:
        self._producer = producer
        self._admin = admin
        self._counts = counts

    async def check_topic(self, topic: str, partition: int | None = None) -> None:
        """Raise UnknownTopicOrPartitionError without the topic, and refuse a partition that it does not have."""
        count = self._producer.cluster.table.partition_count(topic)
        # The producer waits max.block.ms for a topic, as it may be created; a request is answered at once. Partitions
        # may have been added since its last metadata.
        if not count or (partition is not None and partition >= count):
            description = (await self._admin.describe_topics_by_metadata([topic]))[topic]
            count = len(description.partitions)
        if partition is not None and partition >= count:
            raise partition_not_found()

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> SendOutcome:
        """Buffer a record; waits while the producer's buffer is full, which holds back the client of the proxy."""
        self._counts.records += 1
        try:
            return await self._producer.send(
                topic, value, key, partition=partition, timestamp=timestamp, headers=headers or None
            )
        except KafkaError as error:
            return error

    async def wait(self, outcome: SendOutcome) -> RecordMetadata | KafkaError:
        """Wait until a record is acknowledged or has failed."""
        if isinstance(outcome, KafkaError):
            self._counts.failures += 1
            return outcome
        try:
            # Most records of a request are in a batch that is done when the first of them is.
            return outcome.metadata if outcome.done() else await outcome
        except KafkaError as error:
            self._counts.failures += 1
            return error


def print_offset(result: RecordMetadata | KafkaError) -> str:
    """Return the JSON that v2 answers for a record: error_code 1 is final, 2 may pass."""
    if isinstance(result, KafkaError):
        code = 2 if isinstance(result, RetriableError) or result.retriable else 1
        error = {"partition": None, "offset": None, "error_code": code, "error": result.detail or str(result)}
        return dump_json(error).decode()
    # Printed by hand, as there is one per record.
    return f'{{"partition":{result.partition},"offset":{result.offset},"error_code":null,"error":null}}'
