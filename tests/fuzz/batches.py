"""Record batches of every codec and kind, harmed behind their checksum or before their compression.

Bytes changed at random are nearly all refused by the checksum, which protects from accidents and not from peers: so
the checksum, and mostly the length, are made to agree with the harm.
"""

import random
import struct

from fuzz.requests import changed
from klamm.model.errors import CorruptBatch, KlammError
from klamm.records.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    TRANSACTIONAL,
    BatchView,
    RecordTuple,
    build_batch,
    iter_batches,
)
from klamm.records.columnar import decode_columns
from klamm.records.compression import Codec, compress, decompress
from klamm.records.control import build_control_batches, build_end_txn_marker, control_records, end_txn_marker
from klamm.records.crc import crc32c
from klamm.storage.batch_validation import has_sound_records, validate
from klamm.storage.config import LogConfig
from klamm.storage.producer_state import Origin

NOW_MS = 1_700_000_000_000
REFUSALS = (CorruptBatch, KlammError)
UNPACKED_BYTES_MAX = 1 << 20
"""What a reader of the campaign takes; a batch that unpacks to more is refused, not unpacked."""

_TOPICS = (
    LogConfig(),
    LogConfig(cleanup_policy=frozenset({"compact"})),
    LogConfig(message_timestamp_type="LogAppendTime"),
    LogConfig(compression_type="lz4"),
    LogConfig(compression_type="zstd", message_timestamp_type="LogAppendTime"),
)


def make_batch(source: random.Random) -> bytes:
    """A batch as a producer, a transactional one, a coordinator or the quorum writes it."""
    kind = source.randrange(6)
    if kind == 0:
        return bytes(
            build_end_txn_marker(
                committed=source.random() < 0.5,
                producer_id=source.randrange(2**40),
                producer_epoch=source.randrange(2**15),
                coordinator_epoch=source.randrange(2**31),
                timestamp=NOW_MS,
            )
        )
    if kind == 1:
        controls = [(source.randrange(8), source.randbytes(source.randrange(30))) for _ in range(source.randint(1, 3))]
        return bytes(build_control_batches(controls, timestamp=NOW_MS))
    sequenced = {"producer_id": source.randrange(2**40), "producer_epoch": 0, "base_sequence": source.randrange(2**31)}
    return bytes(
        build_batch(
            _records(source),
            codec=source.choice(list(Codec)),
            transactional=kind == 2,
            **(sequenced if kind in (2, 3) else {}),
        )
    )


def _records(source: random.Random) -> list[RecordTuple]:
    records: list[RecordTuple] = []
    for _ in range(source.choice((1, 2, 3, 40))):
        key = source.choice((None, b"", b"key", source.randbytes(9)))
        value = source.choice((None, b"", b"x" * source.randrange(300), source.randbytes(20)))
        headers = [("name", source.choice((None, b"", b"value"))) for _ in range(source.choice((0, 0, 1, 3)))]
        records.append((NOW_MS + source.randrange(-1000, 1000), key, value, headers))
    return records


def harm_batch(source: random.Random, data: bytes) -> bytes:
    """Harm the records inside their compression, the compressed bytes, or the header; the checksum mostly agrees."""
    batch = bytearray(data)
    match source.randrange(4):
        case 0:
            # The records themselves: what the codec gives back is harmed.
            view = BatchView(batch)
            section = _harm_records(source, decompress(view.codec, view.records))
            codec = source.choice((view.codec, source.choice(list(Codec))))
            _set_attributes(batch, (view.attributes & ~CODEC_MASK) | codec)
            batch[HEADER_SIZE:] = compress(codec, section)
        case 1:
            # Bytes that are not of the codec, or not quite.
            batch[HEADER_SIZE:] = changed(source, b"\0\0" + bytes(batch[HEADER_SIZE:]))[2:]
        case 2:
            # The fields that the checksum covers: attributes, deltas, times, producer, count.
            for _ in range(source.randint(1, 3)):
                _harm_field(source, batch)
        case 3:
            batch = bytearray(changed(source, data))
    batch += bytes(max(0, HEADER_SIZE - len(batch)))
    if source.random() < 0.9:
        struct.pack_into(">i", batch, 8, len(batch) - LOG_OVERHEAD)
    if source.random() < 0.95:
        _seal(batch)
    return bytes(batch)


def _harm_records(source: random.Random, section: bytes | bytearray) -> bytes:
    return changed(source, b"\0\0" + bytes(section))[2:]


_FIELDS = ((21, ">h"), (23, ">i"), (27, ">q"), (35, ">q"), (43, ">q"), (51, ">h"), (53, ">i"), (57, ">i"))
"""Where the fields behind the checksum are, and their forms."""


def _harm_field(source: random.Random, batch: bytearray) -> None:
    at, form = source.choice(_FIELDS)
    bits = 8 * struct.calcsize(form) - 1
    (value,) = struct.unpack_from(form, batch, at)
    if at == CRC_START:
        harmed = value ^ source.choice((1, 2, 4, 7, 8, TRANSACTIONAL, CONTROL, 0x40, 0x4000))
    else:
        harmed = source.choice((-(2**bits), -2, -1, 0, 1, 2**bits - 1, value + 1, value - 1, source.getrandbits(bits)))
    struct.pack_into(form, batch, at, max(-(2**bits), min(harmed, 2**bits - 1)))


def _set_attributes(batch: bytearray, attributes: int) -> None:
    struct.pack_into(">h", batch, CRC_START, attributes)


def _seal(batch: bytearray) -> None:
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[CRC_START:]))


def read_batch(data: bytes) -> None:
    """Read a batch as consumers, brokers and coordinators do."""
    for view in iter_batches(data):
        view.check_crc()
        records = view.decode(UNPACKED_BYTES_MAX)
        assert [tuple(record) for record in records] == view.decode_rows(UNPACKED_BYTES_MAX)
        if view.is_control:
            control_records(view)
            end_txn_marker(view)
        else:
            columns = decode_columns([view], limit=UNPACKED_BYTES_MAX)
            assert columns.rows == len(records), "rows and columns differ"


def read_produced(data: bytes) -> None:
    """Append a batch as a broker does; what is accepted must be readable, or it would stop every consumer."""
    accepted = False
    for config in _TOPICS:
        for origin in (Origin.CLIENT, Origin.COORDINATOR):
            try:
                batch = validate(memoryview(bytearray(data)), config, NOW_MS, origin, "topic")
            except REFUSALS:
                continue
            batch.check_crc()
            if origin is Origin.CLIENT:
                accepted = True
                records = batch.decode()
                assert len(records) == batch.record_count
                assert batch.last_offset_delta == len(records) - 1
                assert decode_columns([batch]).rows == len(records)
                assert not config.compacted or all(record.key is not None for record in records)
    if len(data) >= HEADER_SIZE and data[16] == 2:
        view = BatchView(data)
        if view.codec and view.end == len(data):
            has_sound_records(memoryview(data), view.codec, _TOPICS[0], "topic")
    if not accepted:
        raise CorruptBatch("refused for every topic")
