"""Batches whose checksum agrees and whose records are none: what a broken or hostile producer may send.

Each is sealed with a checksum that agrees, so that only a look at the records finds it. What Apache Kafka 4.3.1 answers
to each is asked in `compat/test_records_beside.py`.
"""

import struct
from collections.abc import Callable, Iterator

from klamm.records.batch import CRC_START, HEADER_SIZE, build_batch
from klamm.records.compression import CODEC_NAMES, compress, repack
from klamm.records.crc import crc32c

NOW_MS = 1_700_000_000_000
CODECS = ("gzip", "snappy", "lz4", "zstd")

INVALID_RECORD = 87


def zigzag(value: int) -> bytes:
    """A varint as records have them."""
    number = (value << 1) ^ (value >> 63)
    out = bytearray()
    while number > 127:
        out.append((number & 127) | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def record(
    offset_delta: int = 0,
    *,
    key: bytes | None = b"key",
    value: bytes | None = b"value",
    timestamp_delta: int = 0,
    key_length: int | None = None,
    value_length: int | None = None,
    headers: bytes = b"",
    header_count: int = 0,
    size: int | None = None,
    rest: bytes = b"",
) -> bytes:
    """One record, in which any length or count may lie."""
    body = b"\0" + zigzag(timestamp_delta) + zigzag(offset_delta)
    for data, length in ((key, key_length), (value, value_length)):
        true_length = -1 if data is None else len(data)
        body += zigzag(true_length if length is None else length) + (data or b"")
    body += zigzag(header_count) + headers + rest
    return zigzag(len(body) if size is None else size) + body


def header(
    name: bytes, value: bytes | None, *, name_length: int | None = None, value_length: int | None = None
) -> bytes:
    """One header of a record, in which lengths may lie."""
    out = zigzag(len(name) if name_length is None else name_length) + name
    true_length = -1 if value is None else len(value)
    return out + zigzag(true_length if value_length is None else value_length) + (value or b"")


def seal(section: bytes, count: int, codec: str = "none", *, packed: bytes | None = None, **fields: int) -> bytes:
    """A batch around a records section (or around `packed`, whatever it is) with a checksum that agrees."""
    batch = build_batch([(NOW_MS, None, None, ())] * count)
    del batch[HEADER_SIZE:]
    number = CODEC_NAMES[codec]
    batch += compress(number, section) if packed is None else packed
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, number)
    if "max_timestamp" in fields:
        struct.pack_into(">q", batch, 35, fields["max_timestamp"])
    if "producer_id" in fields:
        struct.pack_into(">qhi", batch, 43, fields["producer_id"], fields["producer_epoch"], fields["base_sequence"])
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


TWO = record(0) + record(1)

SECTIONS: dict[str, tuple[bytes, int]] = {
    "rubbish": (bytes(range(7, 200)), 3),
    "zeros": (bytes(50), 3),
    "no records at all": (b"", 2),
    "fewer records than counted": (TWO, 3),
    "more records than counted": (TWO, 1),
    "bytes behind the records": (TWO + b"xyz", 2),
    "the last record cut": (TWO[:-3], 2),
    "offset deltas repeat": (record(0) + record(0), 2),
    "offset deltas skip": (record(0) + record(2), 2),
    "offset deltas begin at 1": (record(1) + record(2), 2),
    "an offset delta below 0": (record(-1) + record(0), 2),
    "a record larger than the batch": (record(0) + record(1, size=5000), 2),
    "a record smaller than its fields": (record(0) + record(1, size=4), 2),
    "a record of size 0": (record(0) + zigzag(0) + record(1), 3),
    "a record of negative size": (record(0) + record(1, size=-20), 2),
    "a record with bytes behind its headers": (record(0, rest=b"zz") + record(1), 2),
    "a size of more than five bytes": (b"\xff\xff\xff\xff\xff\x01" + record(0)[1:], 1),
    "a timestamp delta of more than ten bytes": (zigzag(16) + b"\0" + b"\xff" * 10 + b"\x01\0\0\0\0", 1),
    "a key longer than its record": (record(0, key_length=4000), 1),
    "a value longer than its record": (record(0, value_length=4000), 1),
    "a value that ends before its record": (record(0, value_length=2), 1),
    "a negative number of headers": (record(0, header_count=-1), 1),
    "more headers than there are": (record(0, header_count=2, headers=header(b"h", b"v")), 1),
    "fewer headers than there are": (record(0, header_count=1, headers=header(b"h", b"v") * 2), 1),
    "a million headers": (record(0, header_count=1_000_000, headers=header(b"h", b"v")), 1),
    "a header without name": (record(0, header_count=1, headers=header(b"", b"v", name_length=-1)), 1),
    "a header name longer than its record": (record(0, header_count=1, headers=header(b"h", b"v", name_length=900)), 1),
    "a header value longer than its record": (record(0, header_count=1, headers=header(b"h", b"v", value_length=9)), 1),
}
"""Records that are none, and how many the header counts: sent as they are, and packed by every codec."""


def _packed(codec: str, section: bytes = TWO * 50) -> bytes:
    return compress(CODEC_NAMES[codec], section)


PACKED: dict[str, Callable[[str], bytes]] = {
    "rubbish": lambda _: bytes(range(40, 140)),
    "nothing": lambda _: b"",
    "a cut end": lambda codec: _packed(codec)[:-5],
    "half of it": lambda codec: _packed(codec)[: len(_packed(codec)) // 2],
    "unpacked records": lambda _: TWO,
    "another codec's data": lambda codec: _packed("zstd" if codec == "gzip" else "gzip"),
}
"""Data that are not of the codec the header names."""


def broken_sections() -> Iterator[tuple[str, bytes]]:
    """(name, batch): broken records, unpacked and in every codec."""
    for name, (section, count) in SECTIONS.items():
        for codec in ("none", *CODECS):
            yield f"{name}, {codec}", seal(section, count, codec)


def broken_codecs() -> Iterator[tuple[str, bytes]]:
    """(name, batch): data that no codec unpacks."""
    for name, packed in PACKED.items():
        for codec in CODECS:
            yield f"{name} as {codec}", seal(b"", 2, codec, packed=packed(codec))


def bomb(codec: str, unpacked_bytes: int) -> bytes:
    """A batch of one sound record with a value of that many zeros, in as little as the codec makes of it."""
    step = 1 << 20
    begin = b"\0" + zigzag(0) * 2 + zigzag(3) + b"key" + zigzag(unpacked_bytes)
    zeros = unpacked_bytes + 1  # the last one is the number of headers
    parts = [zigzag(len(begin) + zeros) + begin, *[bytes(step)] * (zeros // step), bytes(zeros % step)]
    packed = repack(CODEC_NAMES[codec], parts, 1 if codec == "gzip" else None, 1 << 30)
    return seal(b"", 1, codec, packed=packed)
