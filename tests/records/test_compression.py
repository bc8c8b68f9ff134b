"""Codecs: round trips, foreign framings, cut and lying data, and bombs."""

import gzip
import random
import struct
import subprocess
import sys
import textwrap
import zlib
from concurrent.futures import ThreadPoolExecutor

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from isal import isal_zlib

from klamm.model.errors import CorruptBatch, ErrorCode, KlammError
from klamm.records import compression
from klamm.records.compression import CODEC_NAMES, Codec, compress, decompress

CODECS = list(Codec)[1:]
TEXT = b"".join(b"order %d for table %d\n" % (i, i % 40) for i in range(9000))


REFUSALS = (None, ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)


def refusal_of(codec, data, limit):
    try:
        assert len(decompress(codec, data, limit)) <= limit
    except KlammError as error:
        return error.code
    return None


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("data", [b"", b"x", TEXT[:1000], TEXT, bytes(3_000_000)], ids=len)
def test_round_trip(codec, data):
    packed = compress(codec, data)
    assert decompress(codec, packed) == data
    assert decompress(codec, memoryview(bytearray(packed)), len(data)) == data


@given(data=st.binary(max_size=2000), codec=st.sampled_from(CODECS))
def test_round_trip_of_anything(data, codec):
    assert decompress(codec, compress(codec, data)) == data


@given(data=st.binary(max_size=200), codec=st.sampled_from(CODECS))
def test_random_bytes_are_corrupt_or_data(data, codec):
    assert refusal_of(codec, data, 10_000) in REFUSALS


@given(st.data())
def test_damaged_data_are_corrupt_or_data(draw):
    codec = draw.draw(st.sampled_from(CODECS))
    packed = bytearray(compress(codec, TEXT[:5000]))
    for _ in range(draw.draw(st.integers(1, 3))):
        packed[draw.draw(st.integers(0, len(packed) - 1))] = draw.draw(st.integers(0, 255))
    assert refusal_of(codec, packed, 20_000) in REFUSALS


@pytest.mark.parametrize("codec", CODECS)
def test_every_cut_is_corrupt(codec):
    packed = compress(codec, TEXT[:40_000] + TEXT[:3000])
    boundaries = {16, xerial_boundary(packed)} if codec == Codec.SNAPPY else set()
    for cut in {*range(min(len(packed), 400)), *range(0, len(packed), 37)} - boundaries:
        with pytest.raises(CorruptBatch):
            decompress(codec, packed[:cut])


def xerial_boundary(packed):
    """Between two xerial blocks the format cannot distinguish a cut from the end."""
    return 20 + struct.unpack_from(">i", packed, 16)[0]


@pytest.mark.parametrize("codec", list(Codec))
def test_the_limit_is_exact(codec):
    packed = compress(codec, TEXT)
    assert decompress(codec, packed, len(TEXT)) == TEXT
    for limit in (len(TEXT) - 1, 1, 0):
        with pytest.raises(KlammError) as refusal:
            decompress(codec, packed, limit)
        assert refusal.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_names_are_those_of_compression_type():
    assert list(CODEC_NAMES) == ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_unknown_codecs(codec):
    for work in (compress, decompress):
        with pytest.raises(KlammError) as refusal:
            work(codec, b"data")
        assert refusal.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("level", [1, 9])
def test_levels(codec, level):
    assert decompress(codec, compress(codec, TEXT, level)) == TEXT


def test_lz4_as_kafka_writes_it():
    """Version 01, independent blocks of 64 KB, no checksums, no content size: Kafka's readers refuse linked blocks."""
    assert compress(Codec.LZ4, TEXT)[:6] == b"\x04\x22\x4d\x18\x60\x40"
    assert compress(Codec.LZ4, TEXT, 9) == compress(Codec.LZ4, TEXT)


def test_foreign_forms_are_read():
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT
    assert decompress(Codec.GZIP, gzip.compress(TEXT)) == TEXT
    assert decompress(Codec.GZIP, gzip.compress(TEXT[:10]) + gzip.compress(TEXT[10:])) == TEXT
    linked = lz4.frame.compress(TEXT, content_checksum=True, block_checksum=True, store_size=True, block_linked=True)
    assert decompress(Codec.LZ4, linked) == TEXT
    two = zstandard.compress(TEXT[:10]) + b"\x5a\x2a\x4d\x18\x03\0\0\0abc" + zstandard.compress(TEXT[10:])
    assert decompress(Codec.ZSTD, two) == TEXT
    streamed = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    assert decompress(Codec.ZSTD, streamed.compress(TEXT) + streamed.flush()) == TEXT


def test_a_multitude_of_empty_members_is_refused():
    with pytest.raises(CorruptBatch, match="members"):
        decompress(Codec.GZIP, gzip.compress(b"") * 65)
    assert decompress(Codec.GZIP, gzip.compress(b"x") * 64) == b"x" * 64
    assert decompress(Codec.LZ4, lz4.frame.compress(b"x") * 500) == b"x" * 500
    assert decompress(Codec.ZSTD, zstandard.compress(b"x") * 500) == b"x" * 500


def test_zstd_contexts_are_lent_to_one_thread_at_a_time():
    with ThreadPoolExecutor(8) as pool:
        texts = [TEXT[i : i + 3000] for i in range(200)]
        packed = list(pool.map(lambda text: compress(Codec.ZSTD, text), texts))
        assert list(pool.map(lambda data: decompress(Codec.ZSTD, data), packed)) == texts


def test_declared_sizes_are_not_believed():
    claim = zstandard.ZstdCompressor().compress(b"a" * 300)
    assert claim[4] >> 6 == 1
    lying = claim[:4] + bytes([0xE0]) + struct.pack("<Q", 2**40) + claim[7:]
    with pytest.raises(CorruptBatch, match="cannot unpack"):
        decompress(Codec.ZSTD, lying)
    with pytest.raises(CorruptBatch, match="cannot unpack"):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\x7f\x00a", 2**31)
    framed = lz4.frame.compress(b"abc", store_size=True)
    frame = bytearray(framed)
    struct.pack_into("<Q", frame, 6, 2**50)
    with pytest.raises(CorruptBatch):
        decompress(Codec.LZ4, frame)


GIGABYTE = 1 << 30
BOMB_PROGRAM = """
    import resource, struct, sys, zlib
    import cramjam, lz4.frame, zstandard
    from klamm.model.errors import ErrorCode, KlammError
    from klamm.records.compression import Codec, compress, decompress

    def gzip_bomb():
        packer = zlib.compressobj(9, wbits=31)
        head = packer.compress(bytes(1 << 22)) + packer.flush(zlib.Z_FULL_FLUSH)
        body = packer.compress(bytes(1 << 22)) + packer.flush(zlib.Z_FULL_FLUSH)
        return head + body * 255

    def snappy_bomb():
        block = bytes(cramjam.snappy.compress_raw(bytes(1 << 15)))
        return compress(Codec.SNAPPY, b"") + (struct.pack(">i", len(block)) + block) * (1 << 15)

    def lz4_bomb():
        frame = lz4.frame.compress(bytes(1 << 16), block_linked=False, store_size=False)
        return frame[:7] + frame[7:-4] * (1 << 14) + frame[-4:]

    def zstd_bomb():
        rle = struct.pack("<I", (1 << 17) << 3 | 1 << 1)[:3] + b"z"
        return b"\\x28\\xb5\\x2f\\xfd\\x00\\x58" + rle * (1 << 13) + b"\\x01\\0\\0"

    name, limit = sys.argv[1], 8 << 20
    bomb = globals()[name + "_bomb"]()
    decompress(Codec[name.upper()], compress(Codec[name.upper()], b"warm"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        decompress(Codec[name.upper()], bomb, limit)
    except KlammError as error:
        print(error.code.name, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name.lower())
def test_a_bomb_of_a_gigabyte_is_an_error_not_an_allocation(codec):
    """Peak memory of a fresh process grows by no more than three times the 8 MB limit."""
    program = textwrap.dedent(BOMB_PROGRAM)
    done = subprocess.run(
        [sys.executable, "-c", program, codec.name.lower()], capture_output=True, text=True, check=True, timeout=60
    )
    code, grown_mb = done.stdout.split()
    assert code == "MESSAGE_TOO_LARGE"
    limit_mb = 8
    assert int(grown_mb) <= 3 * limit_mb


def test_the_bombs_are_real():
    """The zstd and gzip bombs of the test above, small: their parts do unpack."""
    rle = struct.pack("<I", (1 << 17) << 3 | 1 << 1)[:3] + b"z"
    assert decompress(Codec.ZSTD, b"\x28\xb5\x2f\xfd\x00\x58" + rle * 3 + b"\x01\0\0") == b"z" * (3 << 17)
    packer = zlib.compressobj(9, wbits=31)
    head = packer.compress(bytes(1000)) + packer.flush(zlib.Z_FULL_FLUSH)
    assert len(zlib.decompressobj(wbits=31).decompress(head)) == 1000


def test_codecs_load_when_first_used():
    program = (
        "import sys, klamm.records, klamm.records.control, klamm.records.columnar\n"
        "print([m for m in ('cramjam', 'lz4', 'zstandard', 'pyarrow', 'gzip') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_batch_too_large_to_be_copied_in_one_go_is_the_same(codec):
    data = random.Random(3).randbytes(1 << 16) * 150
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("library", [zlib, isal_zlib], ids=["zlib", "ISA-L"])
def test_gzip_is_read_alike_by_both_libraries(monkeypatch, library):
    """zlib stands in where ISA-L is not made for the machine."""
    monkeypatch.setattr(compression, "_inflate", lambda: library)
    data = random.Random(5).randbytes(1000) * 700
    packed = compress(Codec.GZIP, data)
    assert decompress(Codec.GZIP, packed) == data
    assert decompress(Codec.GZIP, packed + packed) == data * 2
    with pytest.raises(KlammError) as refusal:
        decompress(Codec.GZIP, packed, 699_999)
    assert refusal.value.code == ErrorCode.MESSAGE_TOO_LARGE
    for broken in (packed[:-1], packed[:-9], packed[:40], packed[:-8] + bytes(4) + packed[-4:], b"", packed + b"x"):
        with pytest.raises(CorruptBatch):
            decompress(Codec.GZIP, broken)
