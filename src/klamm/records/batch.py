"""Record batch v2: a 61-byte header and bytes.

    0 base offset i64 · 8 batch length i32 · 12 leader epoch i32 · 16 magic i8 · 17 crc u32 · 21 attributes i16
    23 last offset delta i32 · 27 base timestamp i64 · 35 max timestamp i64 · 43 producer id i64
    51 producer epoch i16 · 53 base sequence i32 · 57 record count i32 · 61 records

Base offset and leader epoch lie before the checksum's range, so a broker sets them in place.
"""

import struct

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
"""Unpacks to (base_offset, batch_length, leader_epoch, magic, crc, attributes, last_offset_delta, base_timestamp,
max_timestamp, producer_id, producer_epoch, base_sequence, record_count)."""

LOG_OVERHEAD = 12
"""Base offset and batch length: a batch takes batch_length + 12 bytes."""

CRC_START = 21
MAGIC = 2

CODEC_MASK = 0x07
TIMESTAMP_TYPE = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
