"""Validating batches: every rule a batch from a client or a coordinator must meet before it gets an offset.

    exactly one batch, magic 2, base offset 0        INVALID_RECORD
    cut short, impossible length, wrong checksum     CORRUPT_MESSAGE
    larger than max.message.bytes, or unpacks to
      more than `LogConfig.unpacked_bytes_max`       MESSAGE_TOO_LARGE
    record count and last offset delta disagree      INVALID_RECORD
    control records, or a producer id without a
      sequence, from a client                        INVALID_RECORD
    records cannot be decompressed, are malformed,
      or are not as many as counted                  INVALID_RECORD
    producer stamped LogAppendTime itself            INVALID_TIMESTAMP
    record too old or too far in the future          INVALID_TIMESTAMP, naming the records
    record without key in a compacted topic          INVALID_RECORD, naming the records

The plain case never comes here: `LogAppender.stage_plain` has it inline. `validate` reads nothing but its arguments, so
it may run in a thread; compressed records are decompressed in pieces, so that they are never in memory all at once.
"""

from collections.abc import Iterator

from klamm.model.buffer import Buffer
from klamm.model.errors import CorruptBatch, ErrorCode, InvalidRecord, KlammError, RecordRefused
from klamm.records.batch import CRC_START, HEADER_SIZE, MAGIC, TRANSACTIONAL, BatchView, seal_batch
from klamm.records.checking import RecordCheck
from klamm.records.compression import repack, unpack
from klamm.records.crc import crc32c
from klamm.storage.config import LogConfig
from klamm.storage.producer_state import Origin

INLINE_COMPRESSED_BYTES_MAX = 32 * 1024
"""A larger compressed batch is validated in a thread."""
INLINE_DECOMPRESSED_BYTES_MAX = 256 * 1024
"""What the loop's thread decompresses of a batch: a millisecond of gzip, less of the others."""


class DecompressInThread(KlammError):
    """Raised when a batch decompresses to more than the loop has time for: a thread validates it instead."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, "the batch is too large to be decompressed on the event loop")


class NeedsFullValidation(KlammError):
    """Raised for a compressed batch that only `validate` can judge."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, "the batch needs full validation")


def validate(
    data: memoryview, config: LogConfig, now_ms: int, origin: Origin, name: str, *, inline: bool = False
) -> BatchView:
    """Return the batch as it is to be written, apart from its offset and leader epoch.

    The view is over `data` itself, or over new bytes where timestamps or the codec had to change. RecordRefused and
    CorruptBatch leave `data` untouched. With `inline`, DecompressInThread where more would have to be decompressed
    than the loop can wait for.
    """
    batch = _one_batch(data, config, name)
    # Coordinators write markers, and records of transactions without a sequence of their own.
    if origin is Origin.CLIENT:
        _check_header(batch, name)
    if batch.codec > 4:
        raise RecordRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown codec {batch.codec} in {name}")
    codec = config.codec
    # Control batches are never compressed, whatever compression.type says.
    changes_codec = codec is not None and codec != batch.codec and not batch.is_control
    if origin is Origin.CLIENT and batch.codec in config.unchecked_codecs:
        _check_header_times(batch, config, now_ms, name)
    elif origin is Origin.CLIENT:
        check = _record_check(batch, config, now_ms, name)
        pieces = check.passing(_pieces(batch, config, name, inline=inline))
        if changes_codec:
            batch = _repack(batch, pieces, check, config, name)
        else:
            for _ in pieces:
                pass
        _raise_for_noted(check, config, now_ms, name)
        # Kafka sets the header from the records, too: indexes and retention rely on it.
        if batch.max_timestamp != check.largest_timestamp:
            if batch.buffer is data:
                # A producer's retry must still match its checksum, so its bytes stay as they came.
                batch = BatchView(bytearray(data))
            batch.set_timestamps(check.largest_timestamp, log_append_time=False)
    elif changes_codec:
        check = RecordCheck(batch, name)
        batch = _repack(batch, check.passing(_pieces(batch, config, name, inline=False)), check, config, name)
    # Last: it changes the checksum, which the checks above compare.
    if config.log_append_time:
        if batch.buffer is data:
            batch = BatchView(bytearray(data))
        batch.set_log_append_time(now_ms)
    return batch


def has_sound_records(data: memoryview, codec: int, config: LogConfig, name: str) -> bool:
    """Return whether a small compressed batch whose header is plain holds the records its header counts.

    `validate` finds the reason when it does not. Raises DecompressInThread for one that decompresses to more than
    INLINE_DECOMPRESSED_BYTES_MAX.
    """
    batch = BatchView(data)
    check = RecordCheck(batch, name, keyed=config.compacted)
    try:
        for piece in unpack(codec, batch.records, INLINE_DECOMPRESSED_BYTES_MAX):
            check.feed(piece)
        check.finish()
    except (CorruptBatch, RecordRefused):
        return False
    except KlammError:
        raise DecompressInThread from None
    return not check.noted_count and check.largest_timestamp == batch.max_timestamp


_ERRORS_NAMED_MAX = 100


def _one_batch(data: memoryview, config: LogConfig, name: str) -> BatchView:
    if len(data) < HEADER_SIZE:
        raise CorruptBatch(f"{len(data)} bytes are too few for a batch in {name}")
    # The magic byte is at the same position in all versions; what follows it is not.
    magic = data[16]
    if magic != MAGIC:
        raise RecordRefused(ErrorCode.INVALID_RECORD, f"batches in {name} must have magic 2, this one has {magic}")
    batch = BatchView(data)
    if batch.size > len(data):
        raise CorruptBatch(f"the batch for {name} is cut: {len(data)} of {batch.size} bytes")
    # As Kafka since message format 2: a Produce request has one batch per partition.
    if batch.size < len(data):
        raise RecordRefused(ErrorCode.INVALID_RECORD, f"more than one batch in one append to {name}")
    if batch.base_offset != 0:
        raise RecordRefused(
            ErrorCode.INVALID_RECORD, f"a batch for {name} must have base offset 0, not {batch.base_offset}"
        )
    # Before the checksum, which would cost the loop time in proportion to the size.
    if batch.size > config.max_message_bytes:
        raise RecordRefused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch of {batch.size} bytes for {name} is larger than max.message.bytes={config.max_message_bytes}",
        )
    if crc32c(data[CRC_START:]) != batch.crc:
        raise CorruptBatch(f"the batch for {name} does not match its checksum")
    return batch


def _check_header(batch: BatchView, name: str) -> None:
    if batch.record_count <= 0 or batch.last_offset_delta + 1 != batch.record_count:
        raise RecordRefused(
            ErrorCode.INVALID_RECORD,
            f"the batch for {name} counts {batch.record_count} records but ends with delta {batch.last_offset_delta}",
        )
    if batch.is_control:
        raise RecordRefused(ErrorCode.INVALID_RECORD, f"clients may not write control records to {name}")
    if batch.producer_id >= 0 and batch.base_sequence < 0:
        raise RecordRefused(
            ErrorCode.INVALID_RECORD,
            f"sequence {batch.base_sequence} of producer {batch.producer_id} in {name} is negative",
        )


def _record_check(batch: BatchView, config: LogConfig, now_ms: int, name: str) -> RecordCheck:
    if batch.is_log_append_time:
        errors = tuple(
            InvalidRecord(i, "a producer may not set the timestamp type LogAppendTime")
            for i in range(min(batch.record_count, _ERRORS_NAMED_MAX))
        )
        raise RecordRefused(
            ErrorCode.INVALID_TIMESTAMP, f"the producer set timestamp type LogAppendTime in {name}", errors
        )
    # The broker's clock replaces the producer's timestamps, so theirs may be anything.
    if config.log_append_time:
        return RecordCheck(batch, name, keyed=config.compacted)
    oldest, newest = _timestamp_range(config, now_ms)
    return RecordCheck(batch, name, oldest=oldest, newest=newest, keyed=config.compacted)


def _check_header_times(batch: BatchView, config: LogConfig, now_ms: int, name: str) -> None:
    """Check the timestamps in the header of a batch whose records are not decompressed (`klamm.checked.codecs`)."""
    _record_check(batch, config, now_ms, name)
    if config.log_append_time:
        return
    oldest, newest = _timestamp_range(config, now_ms)
    if batch.max_timestamp > newest or batch.base_timestamp < oldest:
        raise RecordRefused(
            ErrorCode.INVALID_TIMESTAMP, f"records for {name} have timestamps outside [{oldest}, {newest}]"
        )


def _timestamp_range(config: LogConfig, now_ms: int) -> tuple[int, int]:
    return now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms


def _pieces(batch: BatchView, config: LogConfig, name: str, *, inline: bool) -> Iterator[Buffer]:
    """Yield the records section, decompressed piece by piece within the limit."""
    if not batch.codec:
        yield batch.records
        return
    limit = config.unpacked_bytes_max
    # A topic whose limit is smaller gets its refusal here, and no thread for it.
    inline = inline and limit > INLINE_DECOMPRESSED_BYTES_MAX
    try:
        yield from unpack(batch.codec, batch.records, INLINE_DECOMPRESSED_BYTES_MAX if inline else limit)
    except CorruptBatch as error:
        raise RecordRefused(
            ErrorCode.INVALID_RECORD, f"the batch for {name} cannot be unpacked: {error.message}"
        ) from None
    except KlammError as error:
        if inline:
            raise DecompressInThread from None
        raise RecordRefused(
            error.code,
            f"the batch of {batch.size} bytes for {name} unpacks to more than {limit} bytes, the most that "
            f"max.message.bytes={config.max_message_bytes} allows",
        ) from None


def _raise_for_noted(check: RecordCheck, config: LogConfig, now_ms: int, name: str) -> None:
    """Raise RecordRefused with the records that have no key or a timestamp out of range."""
    if not check.noted_count:
        return
    oldest, newest = _timestamp_range(config, now_ms)
    noted = check.noted
    errors = tuple(
        InvalidRecord(record.offset_delta, "a compacted topic takes no record without key")
        if record.keyless
        else InvalidRecord(record.offset_delta, f"timestamp {record.timestamp} is outside [{oldest}, {newest}]")
        for record in noted
    )
    # One error code for the batch, as in Kafka: a timestamp out of range decides when there are both.
    if all(record.keyless for record in noted):
        raise RecordRefused(ErrorCode.INVALID_RECORD, f"{check.noted_count} records for {name} have no key", errors)
    raise RecordRefused(
        ErrorCode.INVALID_TIMESTAMP, f"records for {name} have timestamps outside [{oldest}, {newest}]", errors
    )


def _repack(batch: BatchView, pieces: Iterator[Buffer], check: RecordCheck, config: LogConfig, name: str) -> BatchView:
    """Return the same records, checked on the way, in a batch of the topic's codec."""
    codec = config.codec
    assert codec is not None
    # Compressing may make a batch larger: max.message.bytes holds for what is stored, too.
    packed_bytes_max = config.max_message_bytes - HEADER_SIZE
    try:
        packed = repack(codec, pieces, config.level(codec), packed_bytes_max)
    except RecordRefused:
        raise
    except KlammError as error:
        raise RecordRefused(
            error.code,
            f"the batch for {name} takes more than max.message.bytes={config.max_message_bytes} "
            f"as {config.compression_type}",
        ) from None
    return BatchView(
        seal_batch(
            bytearray(HEADER_SIZE) + packed,
            record_count=batch.record_count,
            last_offset_delta=batch.last_offset_delta,
            base_timestamp=batch.base_timestamp,
            max_timestamp=check.largest_timestamp,
            # Nothing else may be set: control batches do not come here, and the timestamp type is set last.
            attributes=batch.attributes & TRANSACTIONAL | codec,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
        )
    )
