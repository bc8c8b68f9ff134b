"""Record batch v2: a 61-byte header and bytes.

    0 base offset i64 · 8 batch length i32 · 12 leader epoch i32 · 16 magic i8 · 17 crc u32 · 21 attributes i16
    23 last offset delta i32 · 27 base timestamp i64 · 35 max timestamp i64 · 43 producer id i64
    51 producer epoch i16 · 53 base sequence i32 · 57 record count i32 · 61 records

Base offset and leader epoch lie before the checksum's range, so a broker sets them in place.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from klamm.model.buffer import Buffer
from klamm.model.errors import CorruptBatch
from klamm.records import compression
from klamm.records.compression import DECOMPRESSED_BYTES_MAX
from klamm.records.crc import crc32c
from klamm.records.kernels.decode import decode_records
from klamm.records.kernels.encode import encode_records

RecordHeaders = Sequence[tuple[str | bytes, bytes | None]]
RecordTuple = tuple[int, bytes | None, bytes | None, RecordHeaders]
"""What a batch is built from: timestamp in milliseconds, key, value, headers."""

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
"""Unpacks to (base_offset, batch_length, leader_epoch, magic, crc, attributes, last_offset_delta, base_timestamp,
max_timestamp, producer_id, producer_epoch, base_sequence, record_count)."""

LOG_OVERHEAD = 12
"""Base offset and batch length: a batch takes batch_length + 12 bytes."""

CRC_START = 21  # what lies before it may change in the log
MAGIC = 2

RECORD_OVERHEAD = 21
"""What a record is taken to need besides key, value and headers, at the most: varints and an attribute byte."""
HEADER_OVERHEAD = 10
"""The same for a header besides name and value: two varints."""

CODEC_MASK = 0x07
TIMESTAMP_TYPE = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NO_TIMESTAMP = -1
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES_TO_MAX_TIMESTAMP = struct.Struct(">hiqq")
_INT32_MAX = 0x7FFFFFFF


class DecodedRecord(NamedTuple):
    """One record as a reader sees it; `headers` are (name, value or None) pairs."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class BatchView:
    """A batch where it lies in a buffer: the header read once, the records untouched.

    Reads the 61 bytes of the header and checks magic and length; that the complete batch is in the buffer is checked by
    `iter_batches` or the caller (`end`). Setters write through, so the buffer must be writable for them.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "buffer",
        "crc",
        "last_offset_delta",
        "leader_epoch",
        "magic",
        "max_timestamp",
        "position",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size",
    )
    base_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    buffer: Buffer
    position: int
    size: int
    """Bytes of the whole batch."""

    def __init__(self, buffer: Buffer, position: int = 0) -> None:
        try:
            (
                self.base_offset,
                batch_length,
                self.leader_epoch,
                self.magic,
                self.crc,
                self.attributes,
                self.last_offset_delta,
                self.base_timestamp,
                self.max_timestamp,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
                self.record_count,
            ) = HEADER.unpack_from(buffer, position)
        except struct.error:
            raise CorruptBatch(f"{max(len(buffer) - position, 0)} bytes are too few for a batch header") from None
        # Kafka 4.0 dropped the formats before magic 2 (KIP-724).
        if self.magic != MAGIC:
            raise CorruptBatch(f"magic {self.magic} at {position}; batches have magic 2")
        self.buffer = buffer
        self.position = position
        self.size = batch_length + LOG_OVERHEAD
        if self.size < HEADER_SIZE:
            raise CorruptBatch(f"a batch length of {batch_length} at {position} is less than a header")

    @property
    def end(self) -> int:
        """Where the next batch begins in the buffer."""
        return self.position + self.size

    @property
    def last_offset(self) -> int:
        """Offset of the last record, also when compaction has removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset that follows this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences return to 0 after 2^31 - 1. Without a producer it is -1."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & _INT32_MAX

    @property
    def codec(self) -> int:
        """The compression codec of the records, as `compression.Codec` numbers them."""
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        """Whether the records are markers for brokers and clients rather than data."""
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Whether readers of committed data must wait for a marker."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        """Whether every record has the broker's time, `max_timestamp`."""
        return bool(self.attributes & TIMESTAMP_TYPE)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether the base timestamp says when compaction may drop the tombstones of the batch."""
        return bool(self.attributes & DELETE_HORIZON)

    def timestamp_at(self, offset: int) -> int:
        """Return the time of the record at an offset, interpolated between those of the first and the last record."""
        first, last = self.base_timestamp, self.max_timestamp
        # With LogAppendTime the first timestamp is still the producer's.
        if self.is_log_append_time:
            return last
        if last < first or offset <= self.base_offset:
            return first
        return first + (last - first) * (offset - self.base_offset) // max(self.last_offset_delta, 1)

    @property
    def raw(self) -> memoryview:
        """The whole batch, not copied."""
        return memoryview(self.buffer)[self.position : self.end]

    @property
    def records(self) -> memoryview:
        """The records section as it lies in the buffer, possibly compressed."""
        return memoryview(self.buffer)[self.position + HEADER_SIZE : self.end]

    def crc_matches(self) -> bool:
        """Whether the checksum in the header is that of the bytes it covers."""
        return crc32c(memoryview(self.buffer)[self.position + CRC_START : self.end]) == self.crc

    def check_crc(self) -> None:
        """Raise CorruptBatch unless the whole batch is there and its checksum agrees."""
        if self.end > len(self.buffer):
            raise CorruptBatch(f"a batch of {self.size} bytes at {self.position} is cut short")
        if not self.crc_matches():
            raise CorruptBatch(f"the checksum of the batch at offset {self.base_offset} does not match its bytes")

    def set_offset_and_epoch(self, base_offset: int, leader_epoch: int) -> None:
        """Give the batch its place in the log; the checksum does not cover these fields."""
        _OFFSET.pack_into(self.buffer, self.position, base_offset)
        _EPOCH.pack_into(self.buffer, self.position + 12, leader_epoch)
        self.base_offset = base_offset
        self.leader_epoch = leader_epoch

    def set_log_append_time(self, now_ms: int) -> None:
        """Stamp every record with the broker's time and make the checksum agree."""
        self.set_timestamps(now_ms, log_append_time=True)

    def set_timestamps(self, max_timestamp: int, *, log_append_time: bool) -> None:
        """Set the largest timestamp and its meaning, and make the checksum agree."""
        # With LogAppendTime `max_timestamp` counts for every record, so the deltas stay as they are.
        kind = TIMESTAMP_TYPE if log_append_time else 0
        self.attributes = (self.attributes & ~TIMESTAMP_TYPE) | kind
        self.max_timestamp = max_timestamp
        _ATTRIBUTES_TO_MAX_TIMESTAMP.pack_into(
            self.buffer,
            self.position + CRC_START,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            max_timestamp,
        )
        self.crc = crc32c(memoryview(self.buffer)[self.position + CRC_START : self.end])
        _CRC.pack_into(self.buffer, self.position + 17, self.crc)

    def unpacked_records(self, limit: int = DECOMPRESSED_BYTES_MAX) -> memoryview | bytes | bytearray:
        """The records section uncompressed, at most `limit` bytes of it."""
        codec = self.attributes & CODEC_MASK
        return compression.decompress(codec, self.records, limit) if codec else self.records

    def decode(self, limit: int = DECOMPRESSED_BYTES_MAX) -> list[DecodedRecord]:
        """The records; the checksum is the caller's to check."""
        return self._decode(limit, DecodedRecord)

    def decode_rows(self, limit: int = DECOMPRESSED_BYTES_MAX) -> list[tuple[Any, ...]]:
        """The records as plain tuples in the order of `DecodedRecord`, for loops where named tuples cost too much."""
        return self._decode(limit, None)

    def _decode(self, limit: int, kind: type | None) -> list[Any]:
        return decode_records(
            self.unpacked_records(limit),
            self.record_count,
            self.base_offset,
            self.base_timestamp,
            self.max_timestamp if self.attributes & TIMESTAMP_TYPE else None,
            kind,
        )

    def __repr__(self) -> str:
        return (
            f"BatchView(offsets {self.base_offset}..{self.last_offset}, epoch {self.leader_epoch}, "
            f"{self.record_count} records, {self.size} bytes at {self.position})"
        )


def iter_batches(buffer: Buffer, start: int = 0, *, allow_incomplete_tail: bool = False) -> Iterator[BatchView]:
    """Every whole batch from `start` to the end of the buffer.

    A batch that is cut off by the end of the buffer, as a fetch may return one, ends the iteration if
    `allow_incomplete_tail`, and is CorruptBatch otherwise; it begins at the last view's `end`. A length or
    magic that no batch has is CorruptBatch always.
    """
    position, end = start, len(buffer)
    while position < end:
        if end - position < HEADER_SIZE:
            if allow_incomplete_tail:
                return
            raise CorruptBatch(f"{end - position} bytes are too few for a batch header")
        view = BatchView(buffer, position)
        if view.end > end:
            if allow_incomplete_tail:
                return
            raise CorruptBatch(f"a batch of {view.size} bytes at {position} is cut short")
        yield view
        position = view.end


def build_batch(
    records: Sequence[RecordTuple],
    *,
    base_offset: int = 0,
    codec: int = 0,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: int = 0,
    base_timestamp: int | None = None,
    offset_deltas: Sequence[int] | None = None,
    last_offset_delta: int | None = None,
    delete_horizon: bool = False,
) -> bytearray:
    """A batch of (timestamp, key, value, headers) tuples, ready to be sent or appended.

    The last four arguments are compaction's: records keep their distance to the base offset, the last offset stays
    although its record is gone (then even an empty batch is legal), and the base timestamp may be a delete horizon.
    """
    if not records and last_offset_delta is None:
        raise ValueError("a batch without records needs a last_offset_delta to say which offsets it stands for")
    if base_timestamp is None:
        # Not the smallest: deltas may be negative, and Kafka takes the first record's too.
        base_timestamp = records[0][0] if records else NO_TIMESTAMP
    batch, max_timestamp = encode_records(records, base_timestamp, HEADER_SIZE, offset_deltas)
    if last_offset_delta is None:
        last_offset_delta = len(records) - 1 if offset_deltas is None else offset_deltas[-1]
    return seal_batch(
        batch,
        record_count=len(records),
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp if records else NO_TIMESTAMP,
        attributes=(TIMESTAMP_TYPE if timestamp_type else 0)
        | (TRANSACTIONAL if transactional else 0)
        | (CONTROL if control else 0)
        | (DELETE_HORIZON if delete_horizon else 0),
        base_offset=base_offset,
        codec=codec,
        level=level,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        leader_epoch=leader_epoch,
    )


def seal_batch(
    batch: bytearray,
    *,
    record_count: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int = 0,
    base_offset: int = 0,
    codec: int = 0,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
) -> bytearray:
    """Make a batch of encoded records that follow 61 free bytes: compress them, write the header and its checksum."""
    if codec:
        batch[HEADER_SIZE:] = compression.compress(codec, memoryview(batch)[HEADER_SIZE:], level)
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LOG_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        attributes | codec,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    # Last: it covers everything from the attributes on.
    _CRC.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_START:]))
    return batch


def decode_batch(buffer: Buffer, position: int = 0, *, limit: int = DECOMPRESSED_BYTES_MAX) -> list[DecodedRecord]:
    """The records of the batch at `position`, its checksum verified; unpacks at most `limit` bytes."""
    view = BatchView(buffer, position)
    view.check_crc()
    return view.decode(limit)
