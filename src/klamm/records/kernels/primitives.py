"""The parts that kernels share, as plain Python: interpreted kernels import them from here.

Compiled kernels take functions of the same names from primitives.pxd, where they are C and inlined. Both treat the
bytes as hostile: a length is compared with the bytes that are left before anything is read or allocated.

A record is: varint size, then attributes i8 · varlong timestamp delta · varint offset delta · varint key length, key ·
varint value length, value · varint header count, and per header varint key length, key · varint value length, value.
Varints are zig-zag; length -1 is null. Parsers write numbers into arrays (see `layout`) and return the position after
what they read, or -1 when the bytes do not hold it.
"""

from typing import Any

from klamm.records.crc import crc32c
from klamm.records.kernels.layout import (
    ATTRIBUTES_AT,
    BATCH_LENGTH_AT,
    BYTES_SINCE_ENTRY,
    CELL_AT,
    CELL_SIZE,
    CRC_AT,
    DAMAGED,
    END,
    FILE_AT,
    HEADER_COUNT,
    HEADER_VALUE_AT,
    HEADERS_AT,
    INDEX_ENTRIES,
    KEY_AT,
    LENGTH_OVERHEAD,
    MAGIC_AT,
    MAX_TIMESTAMP,
    MAX_TIMESTAMP_OFFSET,
    NAME_AT,
    NAME_SIZE,
    OFFSET_DELTA,
    RECORDS_AT,
    SPECIAL,
    TIMESTAMP_DELTA,
    VALUE_AT,
)

INT64_MAX = 2**63 - 1

Bytes = bytes | bytearray | memoryview
"""What `unsigned char *` is here."""
Ints = Any
"""What a pointer to integers is here: a list, or a memoryview that was cast."""


# Buffers


def readable(buffer: Any, size: int) -> memoryview:
    """Where the bytes of a buffer of at least `size` bytes lie; the caller keeps it alive."""
    view = memoryview(buffer)
    if len(view) < size:
        raise ValueError(f"a buffer of {len(view)} bytes is smaller than the {size} needed")
    return view


writable = readable


def readable_ints(buffer: Any, count: int) -> Ints:
    """As `readable`, for `count` 32-bit integers."""
    return readable(buffer, 4 * count).cast("i")


def readable_longs(buffer: Any, count: int) -> Ints:
    """As `readable`, for `count` 64-bit integers."""
    return readable(buffer, 8 * count).cast("q")


def readable_words(buffer: Any, count: int) -> Ints:
    """As `readable`, for `count` unsigned 64-bit integers."""
    return readable(buffer, 8 * count).cast("Q")


writable_ints = readable_ints
writable_longs = readable_longs
writable_words = readable_words


def copy_bytes(q: Any, at: int, p: Bytes, pos: int, size: int) -> None:
    """Copy `size` bytes at `pos` of `p` to `at` of `q`."""
    q[at : at + size] = p[pos : pos + size]


# Integers, the highest byte first


def read_int16(p: Bytes, pos: int) -> int:
    """The signed number in two bytes."""
    return int.from_bytes(p[pos : pos + 2], "big", signed=True)


def read_int32(p: Bytes, pos: int) -> int:
    """The signed number in four bytes."""
    return int.from_bytes(p[pos : pos + 4], "big", signed=True)


def read_int64(p: Bytes, pos: int) -> int:
    """The signed number in eight bytes."""
    return int.from_bytes(p[pos : pos + 8], "big", signed=True)


def write_int(q: Any, pos: int, value: int, size: int) -> int:
    """Write the low `size` bytes of a number; the position after them."""
    q[pos : pos + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "big")
    return pos + size


# Varints


def read_uvarint(p: Bytes, pos: int, end: int, out: Ints, slot: int) -> int:
    """Read an unsigned varint of up to 28 bits into `out[slot]`."""
    value = shift = 0
    # 28 bits are more than any length in a frame of 100 MB.
    while pos < end and shift <= 21:
        b = p[pos]
        pos += 1
        value |= (b & 0x7F) << shift
        if b < 0x80:
            out[slot] = value
            return pos
        shift += 7
    return -1


def write_uvarint(q: Any, pos: int, value: int) -> int:
    """Write an unsigned varint; the position after it."""
    while value > 127:
        q[pos] = (value & 0x7F) | 0x80
        value >>= 7
        pos += 1
    q[pos] = value
    return pos + 1


def read_varint(p: Bytes, pos: int, end: int, out: Ints, slot: int, shift_max: int) -> int:
    """Read a zig-zag varint into `out[slot]`; `shift_max` is 28 for 32 bits and 63 for 64."""
    u = shift = 0
    while pos < end and shift <= shift_max:
        b = p[pos]
        pos += 1
        if shift == 63 and b > 1:  # the tenth byte holds the 64th bit and nothing more
            return -1
        u |= (b & 0x7F) << shift
        if b < 0x80:
            out[slot] = (u >> 1) ^ -(u & 1)
            return pos
        shift += 7
    return -1


def varint_size(value: int) -> int:
    """How many bytes `write_varint` takes."""
    # Zig-zag: the arithmetic shift is -1 for a negative number and flips all bits.
    u = (value << 1) ^ (value >> 63)
    size = 1
    while u >= 0x80:
        u >>= 7
        size += 1
    return size


def write_varint(q: Any, pos: int, value: int) -> int:
    """Write a zig-zag varint; the position after it."""
    u = (value << 1) ^ (value >> 63)
    while u >= 0x80:
        q[pos] = (u & 0x7F) | 0x80
        u >>= 7
        pos += 1
    q[pos] = u
    return pos + 1


def write_span(q: Any, pos: int, p: Bytes, at: int, size: int) -> int:
    """Write a length and that many bytes from `at` of `p`; size -1 is null."""
    pos = write_varint(q, pos, size)
    if size > 0:
        q[pos : pos + size] = p[at : at + size]
        pos += size
    return pos


# Records


def read_span(p: Bytes, pos: int, end: int, out: Ints, slot: int) -> int:
    """Read a length and step over that many bytes: their position and number into two slots."""
    pos = read_varint(p, pos, end, out, slot + 1, 28)
    if pos < 0 or out[slot + 1] < -1 or out[slot + 1] > end - pos:
        return -1
    out[slot] = pos
    if out[slot + 1] > 0:
        pos += out[slot + 1]
    return pos


def read_header(p: Bytes, pos: int, end: int, header: Ints) -> int:
    """Step over one header; its name cannot be null."""
    pos = read_span(p, pos, end, header, NAME_AT)
    if pos < 0 or header[NAME_SIZE] < 0:
        return -1
    return read_span(p, pos, end, header, HEADER_VALUE_AT)


def read_record(p: Bytes, pos: int, end: int, fields: Ints, header: Ints) -> int:
    """Parse the record at `pos` completely; `header` is scratch room."""
    pos = read_varint(p, pos, end, fields, 0, 28)
    if pos < 0 or fields[0] < 1 or fields[0] > end - pos:
        return -1
    end = pos + fields[0]
    pos = read_varint(p, pos + 1, end, fields, TIMESTAMP_DELTA, 63)
    if pos < 0:
        return -1
    pos = read_varint(p, pos, end, fields, OFFSET_DELTA, 28)
    if pos < 0 or fields[OFFSET_DELTA] < 0 or fields[OFFSET_DELTA] > 0x7FFFFFFF:
        return -1
    pos = read_span(p, pos, end, fields, KEY_AT)
    if pos < 0:
        return -1
    pos = read_span(p, pos, end, fields, VALUE_AT)
    if pos < 0:
        return -1
    pos = read_varint(p, pos, end, fields, HEADER_COUNT, 28)
    # A header takes at least two bytes, so a count beyond the bytes left needs no loop to be refused.
    if pos < 0 or fields[HEADER_COUNT] < 0 or fields[HEADER_COUNT] > end - pos:
        return -1
    fields[HEADERS_AT] = pos
    for _ in range(fields[HEADER_COUNT]):
        pos = read_header(p, pos, end, header)
        if pos < 0:
            return -1
    return end if pos == end else -1


def sums_fit(fields: Ints, base_offset: int, base_timestamp: int) -> bool:
    """Whether the record's offset and timestamp, base plus delta, fit 64 bits."""
    return base_offset <= INT64_MAX - fields[OFFSET_DELTA] and timestamp_fits(base_timestamp, fields[TIMESTAMP_DELTA])


def timestamp_fits(base: int, delta: int) -> bool:
    """Whether base plus delta fits 64 bits."""
    return -INT64_MAX - 1 <= base + delta <= INT64_MAX


def distance_fits(timestamp: int, base: int) -> bool:
    """Whether the distance of a timestamp from the base fits 64 bits."""
    # No difference is computed, because in C it could overflow.
    if base < 0:
        return timestamp <= INT64_MAX + base
    return timestamp >= -INT64_MAX - 1 + base


# Arrow columns


def is_null(validity: Bytes, index: int) -> bool:
    """Whether the bit of a row is not set."""
    return not (validity[index >> 3] >> (index & 7)) & 1


def read_cell(offsets: Ints, index: int, capacity: int, cell: Ints) -> bool:
    """Position and size of one value of a binary column into `cell`; False when its offsets leave the data."""
    cell[CELL_AT] = offsets[index]
    cell[CELL_SIZE] = offsets[index + 1] - cell[CELL_AT]
    return bool(cell[CELL_AT] >= 0 and 0 <= cell[CELL_SIZE] <= capacity - cell[CELL_AT])


# Batches


def checksum(p: Bytes, pos: int, end: int) -> int:
    """CRC-32C; compiled kernels compute it themselves, because the library's function needs the interpreter's lock."""
    return crc32c(p[pos:end])


def claimed_checksum(p: Bytes, pos: int) -> int:
    """The checksum in the header of the batch at `pos`."""
    return read_int32(p, pos + CRC_AT) & 0xFFFFFFFF


def frame_batch(p: Bytes, pos: int, end: int) -> int:
    """END when no whole batch lies at `pos`, DAMAGED when it cannot be one, SPECIAL when there is one."""
    if end - pos < RECORDS_AT:
        return END
    size = read_int32(p, pos + BATCH_LENGTH_AT)
    if size < RECORDS_AT - LENGTH_OVERHEAD or p[pos + MAGIC_AT] != 2:
        return DAMAGED
    return SPECIAL if size + LENGTH_OVERHEAD <= end - pos else END


def verify_batch(p: Bytes, pos: int, end: int) -> int:
    """As `frame_batch`, and DAMAGED as well when the checksum does not match."""
    state = frame_batch(p, pos, end)
    if state != SPECIAL:
        return state
    size = read_int32(p, pos + BATCH_LENGTH_AT) + LENGTH_OVERHEAD
    return SPECIAL if claimed_checksum(p, pos) == checksum(p, pos + ATTRIBUTES_AT, pos + size) else DAMAGED


def index_batch(w: Ints, marks: Ints, interval: int, last_offset: int, size: int, max_timestamp: int) -> None:
    """Make the index entry that appending the batch would make: at most one per `interval` bytes."""
    if max_timestamp > w[MAX_TIMESTAMP]:
        w[MAX_TIMESTAMP] = max_timestamp
        w[MAX_TIMESTAMP_OFFSET] = last_offset
    # Compared before this batch is added, and not for equality, as Kafka's LogSegment does.
    if w[BYTES_SINCE_ENTRY] > interval:
        at = 4 * w[INDEX_ENTRIES]
        marks[at] = last_offset
        marks[at + 1] = w[FILE_AT]
        marks[at + 2] = w[MAX_TIMESTAMP]
        marks[at + 3] = w[MAX_TIMESTAMP_OFFSET]
        w[INDEX_ENTRIES] += 1
        w[BYTES_SINCE_ENTRY] = 0
    w[BYTES_SINCE_ENTRY] += size
    w[FILE_AT] += size
