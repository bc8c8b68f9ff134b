"""The four codecs of a batch, and a limit on what they may unpack to.

    1 gzip · 2 snappy (xerial framing written, xerial and raw read) · 3 lz4 frame · 4 zstd

A compressed batch of a few kilobytes can claim gigabytes. `decompress` therefore never holds more than `limit` bytes of
output (and a constant), and `unpack` gives it in pieces of which none is large: more than `limit` is
KlammError(MESSAGE_TOO_LARGE), bytes that are not of the codec are CorruptBatch. Each library is imported when its codec
is first used.
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from functools import cache
from typing import Any

from klamm.model.buffer import Buffer
from klamm.model.errors import CorruptBatch, ErrorCode, KlammError
from klamm.records import zstd_frames
from klamm.records.kernels.memory import blank

DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
"""What a batch may unpack to unless the caller sets a limit; brokers accept 1 MB compressed by default."""

PIECE_BYTES = 256 * 1024
"""What `unpack` gives at a time: little enough to hold, enough to be worth the interpreter's lock."""

_JOINED_BYTES_MAX = 4 * 1024 * 1024
"""What is unpacked or copied at a time where a batch is wanted whole."""
_STEP_BYTES = 64 * 1024
_GZIP_INPUT_BYTES = 64 * 1024
"""What zlib gets at a time, since it copies whatever it has not used yet."""
_GZIP_MEMBERS_MAX = 64
"""Producers write one. Each further one costs a copy of all that follows it: thousands would cost seconds."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
# The version and the lowest compatible version, as snappy-java writes them.
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024  # snappy-java's default
_SNAPPY_RATIO_MAX = 22
"""A copy element of three bytes yields at most 64, so no valid block unpacks to more than this many times its size."""

_LZ4_KAFKA_DEFAULT_LEVEL = 9
_INT32 = struct.Struct(">i")


class Codec(IntEnum):
    """The low three bits of a batch's attributes; names as in `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_NAMES = {codec.name.lower(): codec for codec in Codec}
"""`compression.type` to codec: none, gzip, snappy, lz4, zstd."""


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """The records section of a batch, packed as Kafka's own producer packs it; `level` None is the codec's default."""
    if codec == Codec.NONE:
        return bytes(data)
    packer = _COMPRESS.get(codec)
    if packer is None:
        raise _unknown(codec)
    return packer(data, level)


def decompress(codec: int, data: Buffer, limit: int = DECOMPRESSED_BYTES_MAX) -> bytes | bytearray:
    """The inverse of `compress`, at most `limit` bytes of it."""
    if codec == Codec.NONE:
        if len(data) > limit:
            raise _too_large(limit)
        return bytes(data)
    pieces = list(unpack(codec, data, limit, min(limit, _JOINED_BYTES_MAX)))
    return pieces[0] if len(pieces) == 1 else _join(pieces)


def _join(pieces: list[bytes]) -> bytes | bytearray:
    """Join the pieces; a hundred megabytes are copied piece by piece, since a copy holds the interpreter's lock."""
    size = sum(map(len, pieces))
    if size <= _JOINED_BYTES_MAX:
        return b"".join(pieces)
    joined = blank(size)
    position = 0
    pieces.reverse()
    while pieces:
        piece = pieces.pop()  # let go of it, so that pieces and result are never held twice in full
        joined[position : position + len(piece)] = piece
        position += len(piece)
    return joined


def unpack(codec: int, data: Buffer, limit: int, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """As `decompress`, in pieces of about `piece_bytes` at the most; only raw snappy comes in one."""
    unpacker = _DECOMPRESS.get(codec)
    if unpacker is None:
        raise _unknown(codec)
    return unpacker(data, limit, max(piece_bytes, 1))


def repack(codec: int, pieces: Iterable[Buffer], level: int | None, limit: int) -> bytes:
    """`compress` of what comes in pieces; MESSAGE_TOO_LARGE as soon as the result has more than `limit` bytes."""
    packed = bytearray()
    for part in pieces if codec == Codec.NONE else _REPACK[codec](pieces, level):
        packed += part
        if len(packed) > limit:
            raise KlammError(
                ErrorCode.MESSAGE_TOO_LARGE, f"the batch takes more than {limit} bytes when it is repacked"
            )
    return bytes(packed)


def _too_large(limit: int) -> KlammError:
    return KlammError(ErrorCode.MESSAGE_TOO_LARGE, f"the batch unpacks to more than {limit} bytes")


def _unknown(codec: int) -> KlammError:
    return KlammError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"there is no compression codec {codec}")


def _gzip(data: Buffer, level: int | None) -> bytes:
    # 31: deflate with a gzip header and trailer.
    return zlib.compress(data, -1 if level is None else level, wbits=31)


def _regzip(pieces: Iterable[Buffer], level: int | None) -> Iterator[bytes]:
    packer = zlib.compressobj(-1 if level is None else level, wbits=31)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


@cache
def _inflate() -> Any:
    """ISA-L, which takes a third of zlib's time; zlib, with the same names, on machines it is not made for."""
    try:
        from isal import isal_zlib  # noqa: PLC0415
    except ImportError:
        return zlib
    return isal_zlib


def _gunzip(data: Buffer, limit: int, piece_bytes: int) -> Iterator[bytes]:
    inflate = _inflate()
    view = memoryview(data)
    position, end = 0, len(view)
    allowed, members = limit, 0
    while position < end or not members:
        members += 1
        if members > _GZIP_MEMBERS_MAX:
            raise CorruptBatch(f"gzip: more than {_GZIP_MEMBERS_MAX} members")
        member = inflate.decompressobj(wbits=31)
        rest: Buffer = b""
        while not member.eof:
            if not rest:
                rest = view[position : position + _GZIP_INPUT_BYTES]
                position += len(rest)
            try:
                # One byte more than allowed distinguishes a batch at the limit from one beyond it.
                piece = member.decompress(rest, min(allowed + 1, piece_bytes))
            except inflate.error as error:
                raise CorruptBatch(f"gzip: {error}") from None
            rest = member.unconsumed_tail
            if not piece and not rest and not member.eof and position == end:
                raise CorruptBatch("gzip: the data end in the middle")
            allowed -= len(piece)
            if allowed < 0:
                raise _too_large(limit)
            if piece:
                yield piece
        # The next member begins inside the input that was handed over.
        position -= len(member.unused_data)


def _snappy(data: Buffer, level: int | None) -> bytes:  # noqa: ARG001 - snappy has no levels
    from cramjam import snappy  # noqa: PLC0415

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_INT32.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _resnappy(pieces: Iterable[Buffer], level: int | None) -> Iterator[bytes]:  # noqa: ARG001
    from cramjam import snappy  # noqa: PLC0415

    yield _XERIAL_HEADER
    rest = b""
    for piece in pieces:
        rest += bytes(piece)
        full = len(rest) - len(rest) % _XERIAL_BLOCK_BYTES
        for start in range(0, full, _XERIAL_BLOCK_BYTES):
            block = bytes(snappy.compress_raw(rest[start : start + _XERIAL_BLOCK_BYTES]))
            yield _INT32.pack(len(block)) + block
        rest = rest[full:]
    if rest:
        block = bytes(snappy.compress_raw(rest))
        yield _INT32.pack(len(block)) + block


def _unsnappy(data: Buffer, limit: int, piece_bytes: int) -> Iterator[bytes]:  # noqa: ARG001 - blocks are what they are
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        # librdkafka and others write one raw block without the framing of the Java client.
        yield _unsnappy_block(view, limit, limit)
        return
    allowed = limit
    position, end = len(_XERIAL_HEADER), len(view)
    if position > end:
        raise CorruptBatch("snappy: the data end in the middle of the header")
    while position < end:
        if end - position < 4:
            raise CorruptBatch("snappy: the data end in the middle of a block length")
        (size,) = _INT32.unpack_from(view, position)
        position += 4
        if not 0 < size <= end - position:
            raise CorruptBatch(f"snappy: a block of {size} bytes where {end - position} are left")
        piece = _unsnappy_block(view[position : position + size], allowed, limit)
        yield piece
        allowed -= len(piece)
        position += size


def _unsnappy_block(block: memoryview, allowed: int, limit: int) -> bytes:
    import cramjam  # noqa: PLC0415

    try:
        declared = cramjam.snappy.decompress_raw_len(block)
        if declared > _SNAPPY_RATIO_MAX * len(block):
            raise CorruptBatch(f"snappy: {len(block)} bytes cannot unpack to {declared}")
        if declared > allowed:
            raise _too_large(limit)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy: {error}") from None


def _lz4(data: Buffer, level: int | None) -> bytes:
    import lz4.frame  # type: ignore[import-untyped] # noqa: PLC0415

    # Kafka's level 9, its default, means the fast compressor; its readers refuse linked blocks.
    fast = level is None or level == _LZ4_KAFKA_DEFAULT_LEVEL
    packed: bytes = lz4.frame.compress(
        data,
        compression_level=0 if fast else level,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return packed


def _relz4(pieces: Iterable[Buffer], level: int | None) -> Iterator[bytes]:
    import lz4.frame  # noqa: PLC0415

    fast = level is None or level == _LZ4_KAFKA_DEFAULT_LEVEL
    packer = lz4.frame.LZ4FrameCompressor(
        compression_level=0 if fast else level, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False
    )
    yield packer.begin()
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def _unlz4(data: Buffer, limit: int, piece_bytes: int) -> Iterator[bytes]:
    import lz4.frame  # noqa: PLC0415

    view = memoryview(data)
    allowed = limit
    position, end = 0, len(view)
    step = min(max(_STEP_BYTES, 4 * end), piece_bytes)
    context = lz4.frame.create_decompression_context()
    frame_ended = False
    while position < end:
        try:
            # The library allocates `max_length` at once: begin small and double, so that a bomb allocates little.
            piece, consumed, frame_ended = lz4.frame.decompress_chunk(
                context, view[position:], max_length=min(step, allowed + 1)
            )
        except RuntimeError as error:
            raise CorruptBatch(f"lz4: {error}") from None
        allowed -= len(piece)
        if allowed < 0:
            raise _too_large(limit)
        if piece:
            yield piece
        position += consumed
        step = min(step * 2, piece_bytes)
        if not frame_ended and not piece and not consumed:
            break
    if not position or not frame_ended:
        raise CorruptBatch("lz4: the data end in the middle")


# A zstd context costs 20 us to make, as much as packing a small batch. Idle ones are kept in lists, whose pop and
# append are atomic, so that any thread may take one; a context that failed is not put back.
_ZSTD_WHOLE_BYTES_MAX = 2 * 1024 * 1024
"""Frames that unpack to no more come in one piece: piece by piece the library fills a window of its own first, and
takes a third longer."""
_zstd_compressors: dict[int, list[Any]] = {}
_zstd_decompressors: list[Any] = []
_CONTEXTS_KEPT = 4


def _zstd(data: Buffer, level: int | None) -> bytes:
    import zstandard  # noqa: PLC0415

    # 3 is Kafka's default, too.
    level = 3 if level is None else level
    idle = _zstd_compressors.setdefault(level, [])
    try:
        compressor = idle.pop()
    except IndexError:
        compressor = zstandard.ZstdCompressor(level=level)
    packed: bytes = compressor.compress(data)
    if len(idle) < _CONTEXTS_KEPT:
        idle.append(compressor)
    return packed


def _rezstd(pieces: Iterable[Buffer], level: int | None) -> Iterator[bytes]:
    import zstandard  # noqa: PLC0415

    packer = zstandard.ZstdCompressor(level=3 if level is None else level).compressobj()
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def _unzstd(data: Buffer, limit: int, piece_bytes: int) -> Iterator[bytes]:
    import zstandard  # noqa: PLC0415

    view = memoryview(data)
    allowed = limit
    try:
        decompressor = _zstd_decompressors.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor()
    for frame in zstd_frames.walk(view):
        body = view[frame.start : frame.end]
        try:
            if frame.output_bytes_max <= min(allowed, max(piece_bytes, _ZSTD_WHOLE_BYTES_MAX)):
                piece = decompressor.decompress(body, max_output_size=frame.output_bytes_max or 1)
                allowed -= len(piece)
                yield piece
            else:
                for piece in _unzstd_slowly(body, allowed, limit, piece_bytes):
                    allowed -= len(piece)
                    yield piece
        except zstandard.ZstdError as error:
            raise CorruptBatch(f"zstd: {error}") from None
    if len(_zstd_decompressors) < _CONTEXTS_KEPT:
        _zstd_decompressors.append(decompressor)


def _unzstd_slowly(frame: memoryview, allowed: int, limit: int, piece_bytes: int) -> Iterator[bytes]:
    """A frame that may unpack to more than the limit leaves: grow with what really comes out."""
    import zstandard  # noqa: PLC0415

    window = max(zstd_frames.WINDOW_BYTES_MIN, min(1 << max(allowed, 1).bit_length(), zstd_frames.WINDOW_BYTES_MAX))
    reader = zstandard.ZstdDecompressor(max_window_size=window).stream_reader(frame)
    step = min(_STEP_BYTES, piece_bytes)
    while piece := reader.read(min(step, allowed + 1)):
        allowed -= len(piece)
        if allowed < 0:
            raise _too_large(limit)
        yield piece
        step = min(step * 2, piece_bytes)


_COMPRESS: dict[int, Callable[[Buffer, int | None], bytes]] = {
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
_REPACK: dict[int, Callable[[Iterable[Buffer], int | None], Iterator[bytes]]] = {
    Codec.GZIP: _regzip,
    Codec.SNAPPY: _resnappy,
    Codec.LZ4: _relz4,
    Codec.ZSTD: _rezstd,
}
_DECOMPRESS: dict[int, Callable[[Buffer, int, int], Iterator[bytes]]] = {
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
