"""What may be appended: every rule a batch from a client or a coordinator is held to before it gets an offset.

    exactly one batch, magic 2, base offset 0        INVALID_RECORD
    cut short, impossible length, wrong checksum     CORRUPT_MESSAGE
    larger than max.message.bytes                    MESSAGE_TOO_LARGE
    record count and last offset delta disagree      INVALID_RECORD
    control records, or a producer id without a
      sequence, from a client                        INVALID_RECORD
    producer stamped LogAppendTime itself            INVALID_TIMESTAMP
    record too old or too far in the future          INVALID_TIMESTAMP, naming the records
    record without key in a compacted topic          INVALID_RECORD, naming the records

The plain case never comes here: `Log.stage` has it inline. Records are walked only where a rule is about records, and
rebuilt only where compression.type asks for another codec.
"""

from klamm.model.errors import CorruptBatch, ErrorCode, RecordError, RecordRefused
from klamm.records.batch import CRC_START, HEADER_SIZE, LOG_OVERHEAD, MAGIC, BatchView, build_batch
from klamm.records.crc import crc32c
from klamm.storage.config import MAX_LONG, LogConfig
from klamm.storage.producers import Origin

_ERRORS_NAMED_MAX = 100


def validate(data: memoryview, config: LogConfig, now_ms: int, origin: Origin, name: str) -> BatchView:
    """The batch as it is to be written, apart from its offset and leader epoch.

    The view is over `data` itself, or over new bytes where timestamps or the codec had to change. RecordRefused and
    CorruptBatch leave `data` untouched.
    """
    batch = _one_batch(data, config, name)
    if origin is Origin.CLIENT:
        _check_header(batch, name)
    if batch.codec > 4:
        raise RecordRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown codec {batch.codec} in {name}")
    if not batch.is_control:
        if origin is Origin.CLIENT:
            _check_records(batch, config, now_ms, name)
        codec = config.codec
        if codec is not None and codec != batch.codec:
            batch = _recompress(batch, codec, config, name)
    if config.log_append_time:
        if batch.buffer is data:
            # A producer's retry must still match its checksum, so its bytes stay as they came.
            batch = BatchView(bytearray(data))
        batch.set_log_append_time(now_ms)
    return batch


def _one_batch(data: memoryview, config: LogConfig, name: str) -> BatchView:
    if len(data) < HEADER_SIZE:
        raise CorruptBatch(f"{len(data)} bytes are too few for a batch in {name}")
    magic = data[16]
    if magic != MAGIC:
        raise RecordRefused(ErrorCode.INVALID_RECORD, f"batches in {name} must have magic 2, this one has {magic}")
    batch = BatchView(data)
    if batch.size > len(data):
        raise CorruptBatch(f"the batch for {name} is cut: {len(data)} of {batch.size} bytes")
    if batch.size < len(data):
        raise RecordRefused(ErrorCode.INVALID_RECORD, f"more than one batch in one append to {name}")
    if batch.base_offset != 0:
        raise RecordRefused(
            ErrorCode.INVALID_RECORD, f"a batch for {name} must have base offset 0, not {batch.base_offset}"
        )
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


def _check_records(batch: BatchView, config: LogConfig, now_ms: int, name: str) -> None:
    if batch.is_log_append_time:
        errors = _every_record(batch, "a producer may not set the timestamp type LogAppendTime")
        raise RecordRefused(
            ErrorCode.INVALID_TIMESTAMP, f"the producer set timestamp type LogAppendTime in {name}", errors
        )
    limited = not config.log_append_time
    oldest = now_ms - config.message_timestamp_before_max_ms
    newest = now_ms + config.message_timestamp_after_max_ms
    if limited and batch.max_timestamp > newest:
        raise _bad_timestamps(batch, oldest, newest, name)
    bounded_below = limited and config.message_timestamp_before_max_ms != MAX_LONG
    if not config.compacted and not bounded_below:
        return
    facts = batch.walk()
    if not facts.consecutive:
        raise RecordRefused(ErrorCode.INVALID_RECORD, f"offset deltas of the batch for {name} are not 0, 1, 2 ...")
    if config.compacted and facts.keyless:
        errors = tuple(
            RecordError(i, "a compacted topic takes no record without key") for i in facts.keyless[:_ERRORS_NAMED_MAX]
        )
        raise RecordRefused(ErrorCode.INVALID_RECORD, f"{len(facts.keyless)} records for {name} have no key", errors)
    if limited and (facts.max_timestamp > newest or (bounded_below and facts.min_timestamp < oldest)):
        refused = _bad_timestamps(batch, oldest, newest, name)
        if refused.records:
            raise refused


def _bad_timestamps(batch: BatchView, oldest: int, newest: int, name: str) -> RecordRefused:
    """Name the records outside [oldest, newest]; records without a timestamp (-1) are never outside."""
    errors = []
    for i, record in enumerate(batch.decode_rows()):
        timestamp = record[1]
        if timestamp != -1 and not oldest <= timestamp <= newest:
            errors.append(RecordError(i, f"timestamp {timestamp} is outside [{oldest}, {newest}]"))
    return RecordRefused(
        ErrorCode.INVALID_TIMESTAMP,
        f"records for {name} have timestamps outside [{oldest}, {newest}]",
        tuple(errors[:_ERRORS_NAMED_MAX]),
    )


def _every_record(batch: BatchView, message: str) -> tuple[RecordError, ...]:
    return tuple(RecordError(i, message) for i in range(min(batch.record_count, _ERRORS_NAMED_MAX)))


def _recompress(batch: BatchView, codec: int, config: LogConfig, name: str) -> BatchView:
    """The same records in a batch of another codec."""
    rows = [(timestamp, key, value, headers) for _, timestamp, key, value, headers in batch.decode_rows()]
    rebuilt = build_batch(
        rows,
        codec=codec,
        level=config.level(codec),
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        transactional=batch.is_transactional,
    )
    if len(rebuilt) > config.max_message_bytes:
        raise RecordRefused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch for {name} takes {len(rebuilt)} bytes as {config.compression_type}, "
            f"more than max.message.bytes={config.max_message_bytes}",
        )
    assert len(rebuilt) >= LOG_OVERHEAD
    return BatchView(rebuilt)
