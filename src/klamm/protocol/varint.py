"""Unsigned variable-length integers, as flexible versions write lengths, counts and tags."""

from klamm.model.errors import RemoteProtocolError

SMALL = tuple(bytes((n,)) if n < 128 else bytes((n & 127 | 128, n >> 7)) for n in range(4096))
"""Encoded small numbers: nearly every length and count is one of them."""


def encode_uvarint(value: int) -> bytes:
    """`value` in groups of seven bits, lowest first."""
    if value < 4096:
        return SMALL[value]
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_uvarint(buf: bytes | bytearray | memoryview, offset: int) -> tuple[int, int]:
    """The number at `offset` and the offset after it; IndexError when the bytes end first."""
    value = buf[offset]
    offset += 1
    if value < 128:
        return value, offset
    return rest_of_uvarint(buf, value, offset)


def rest_of_uvarint(buf: bytes | bytearray | memoryview, first: int, offset: int) -> tuple[int, int]:
    """Read the rest of a number whose `first` byte, read already, has the continuation bit set."""
    value = first & 127
    # Five groups hold 32 bits; Kafka refuses longer ones too.
    for shift in (7, 14, 21, 28):
        byte = buf[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
    raise RemoteProtocolError("a variable-length number is longer than five bytes")
