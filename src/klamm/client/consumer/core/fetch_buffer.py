"""The buffered records of a consumer's partitions, decoded when a poll takes them, partitions in rotation. Pure.

Fetched batches wait undecoded in `AssignedPartition`; a position is behind the last record that was returned. Records
that an iteration got and did not use go back (`return_unread`) before positions are read.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

from klamm.client.client_settings import ClientSettings
from klamm.client.consumer.core.subscription import AssignedPartition, Subscription
from klamm.client.errors import CorruptRecordError, KafkaError, RecordError, SerializationError
from klamm.client.metrics import FetchedRecords
from klamm.client.serde import LookupNeeded, deserializer
from klamm.client.types import Record
from klamm.model.errors import CorruptBatch, ErrorCode, KlammError
from klamm.model.ids import TopicPartition
from klamm.records.batch import BatchView
from klamm.records.kernels.decode import decode_client_records


class FetchBuffer:
    """Returns what the fetcher put into the subscription's partitions."""

    def __init__(self, subscription: Subscription, settings: ClientSettings) -> None:
        self.subscription = subscription
        self.check_crcs: bool = settings["check.crcs"]
        self._key_deserializer = deserializer(settings["key.deserializer"], "key.deserializer")
        self._value_deserializer = deserializer(settings["value.deserializer"], "value.deserializer")
        self._max_records = settings.number("max.poll.records")
        self.fetched = FetchedRecords()
        self._order: list[TopicPartition] = []
        self._iterated: tuple[AssignedPartition, int, list[Record], Iterator[Record]] | None = None

    # Rotation

    def readable_partitions(self) -> list[AssignedPartition]:
        """The partitions that may be read, those read most recently at the end."""
        assigned = self.subscription.assigned
        # Partitions in their old order, new ones behind them; without rotation the first would starve the others.
        self._order = list(
            dict.fromkeys([*(partition for partition in self._order if partition in assigned), *assigned])
        )
        states = (assigned[partition] for partition in self._order)
        return [state for state in states if not state.paused and not state.lent]

    def move_last(self, state: AssignedPartition) -> None:
        """Put a partition last after its records were returned."""
        self._order.remove(state.where)
        self._order.append(state.where)

    # Records

    def collect(self, limit: int | None = None) -> list[Record]:
        """At most `limit` records (max.poll.records), from as few partitions as possible."""
        limit = self._max_records if limit is None else limit
        records_out: list[Record] = []
        for state in self.readable_partitions():
            try:
                records = self._decode(state, limit - len(records_out))
            except (RecordError, LookupNeeded):
                if records_out:
                    break  # return these records; the next call meets the error again
                raise
            if records:
                records_out += records
                self.move_last(state)
            if len(records_out) >= limit:
                break
            if not records_out:
                state.raise_error()
        self.fetched.records += len(records_out)
        return records_out

    def chunk(self) -> Iterator[Record] | None:
        """Records of one partition; those not taken from the iterator go back with `return_unread`."""
        for state in self.readable_partitions():
            records = self._decode(state, self._max_records)
            if records:
                self.move_last(state)
                handing = iter(records)
                self._iterated = (state, state.ticket, records, handing)
                self.fetched.records += len(records)
                return handing
            state.raise_error()
        return None

    def return_unread(self) -> None:
        """Put back the records of an iteration that were not taken from it."""
        if self._iterated is None:
            return
        state, ticket, records, handing = self._iterated
        self._iterated = None
        # Exact for an iterator over a list; counting in the loop would cost the user's code a call per record.
        left = operator.length_hint(handing)
        self.fetched.records -= left
        if left and state.ticket == ticket and self.subscription.assigned.get(state.where) is state:
            rest = records[len(records) - left :]
            if self._key_deserializer is None and self._value_deserializer is None:
                state.pending[:0] = rest
                state.position = rest[0].offset
            else:
                # Deserialized records are no longer the bytes that `pending` holds: fetch them again.
                state.seek(rest[0].offset)
        # Ends the iterator that the user may still hold.
        records.clear()

    def forget(self, gone: list[TopicPartition] | None = None) -> None:
        """End an iteration over one of these partitions, or over any partition without them."""
        if self._iterated is not None and (gone is None or self._iterated[0].where in gone):
            self._iterated[2].clear()
            self._iterated = None

    def skip(self, error: RecordError, ticket: int) -> None:
        """Continue behind a record that cannot be read, unless the partition was sought or revoked meanwhile."""
        where = error.topic_partition
        state = None if where is None else self.subscription.assigned.get(where)
        if state is None or state.ticket != ticket:
            return
        assert error.next_offset is not None
        # One record that did not deserialize is dropped from the buffer; a damaged batch was discarded as a whole.
        if state.pending and state.pending[0].offset == error.offset:
            del state.pending[0]
            state.position = error.next_offset
            if not state.pending and not state.batches:
                state.position = max(state.position, state.fetch_offset)
        else:
            state.seek(error.next_offset)

    def ticket(self, error: RecordError) -> int:
        """The ticket for `skip`; -1 when the partition is not assigned any more."""
        where = error.topic_partition
        state = None if where is None else self.subscription.assigned.get(where)
        return -1 if state is None else state.ticket

    # Decoding

    def _decode(self, state: AssignedPartition, limit: int) -> list[Record]:
        """At most `limit` records of one partition; its position moves behind them."""
        records: list[Record] = []
        while len(records) < limit:
            if not state.pending:
                if not state.batches:
                    break
                if not self._decode_batch(state):
                    break
                continue
            left = limit - len(records)
            if len(state.pending) <= left:
                records += state.pending
                state.pending, state.origin = [], None
            else:
                records += state.pending[:left]
                del state.pending[:left]
        if records:
            last = records[-1]
            state.position = last.offset + 1
            state.position_epoch = last.leader_epoch
            # Behind control batches and compacted offsets at the end of the fetch: a commit then covers them too.
            if not state.pending and not state.batches and state.fetch_offset > state.position:
                state.position = state.fetch_offset
        if records and (self._key_deserializer is not None or self._value_deserializer is not None):
            return self._deserialize(state, records)
        return records

    def _decode_batch(self, state: AssignedPartition) -> bool:
        batch = state.batches[0]
        try:
            state.pending = self._rows(state, batch)
        except (CorruptBatch, KlammError) as error:
            state.fail(unreadable_batch(state, batch, error))
            return False
        state.origin = state.batches.popleft()
        state.buffered -= batch.size
        if not state.pending and not state.batches:
            state.position = max(state.position or 0, state.fetch_offset)
        return True

    def _rows(self, state: AssignedPartition, batch: BatchView) -> list[Record]:
        if self.check_crcs:
            batch.check_crc()
        rows: list[Record] = decode_client_records(
            batch.unpacked_records(),
            batch.record_count,
            batch.base_offset,
            batch.base_timestamp,
            # With LogAppendTime the batch's max timestamp is the time of all its records.
            batch.max_timestamp if batch.is_log_append_time else None,
            # A batch may begin before the position: after a seek into it, or a commit within it.
            state.position or 0,
            Record,
            state.where.topic,
            state.where.partition,
            batch.leader_epoch,
        )
        return rows

    def _deserialize(self, state: AssignedPartition, records: list[Record]) -> list[Record]:
        made: list[Record] = []
        for record in records:
            key, value = record.key, record.value
            try:
                if self._key_deserializer is not None:
                    key = self._key_deserializer(record.topic, key, record.headers)
                if self._value_deserializer is not None:
                    value = self._value_deserializer(record.topic, value, record.headers)
            except (KafkaError, LookupNeeded) as error:
                # This record and the rest stay undeserialized; those before it are returned first, the error next.
                state.pending[:0] = records[len(made) :]
                state.position, state.position_epoch = record.offset, record.leader_epoch
                if made:
                    break
                if isinstance(error, LookupNeeded):
                    raise
                raise _not_deserialized(record, error) from error
            made.append(record._replace(key=key, value=value))
        return made


def unreadable_batch(state: AssignedPartition, batch: BatchView, error: Exception) -> CorruptRecordError:
    """The error for a batch that cannot be decoded, with the offset at which reading can continue."""
    offset = max(batch.base_offset, state.position or 0)
    # The count of offsets may be part of the damage: never continue behind the high watermark.
    next_offset = max(min(batch.next_offset, state.high_watermark), offset + 1)
    corrupt = CorruptRecordError(ErrorCode.CORRUPT_MESSAGE, f"{state.where} at offset {offset}: {error}")
    corrupt.data = bytes(memoryview(batch.buffer)[batch.position : batch.position + batch.size])
    return corrupt.locate(state.where, offset, next_offset)


def _not_deserialized(record: Record, error: KafkaError) -> SerializationError:
    where = record.topic_partition
    refused = SerializationError(f"{where} offset {record.offset}: {error}")
    refused.key, refused.value = record.key, record.value
    return refused.locate(where, record.offset, record.offset + 1)
