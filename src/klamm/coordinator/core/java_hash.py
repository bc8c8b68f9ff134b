"""Java's String.hashCode, by which Kafka maps a group to its partition and orders protocols with equal votes."""

from functools import lru_cache

NAMES_MAX = 8192
"""Group ids whose hash is cached: the same few thousand send nearly all requests."""
NAME_CHARS_MAX = 255
"""Longer ones, of up to 32 KB, are not kept: any client may send as many as it likes."""


def java_hash(text: str) -> int:
    """Return String.hashCode of `text` as an unsigned 32-bit number."""
    code = 0
    # Java hashes UTF-16 units: a character outside the basic plane counts as two, and a lone surrogate is legal.
    encoded = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(encoded), 2):
        code = (31 * code + (encoded[i] << 8 | encoded[i + 1])) & 0xFFFFFFFF
    return code


def non_negative_hash(text: str) -> int:
    """Return the absolute value of String.hashCode as Kafka computes it: that of Integer.MIN_VALUE is 0."""
    return _cached_hash(text) if len(text) <= NAME_CHARS_MAX else _compute_hash(text)


def _compute_hash(text: str) -> int:
    code = java_hash(text)
    if code < 0x80000000:
        return code
    return 0 if code == 0x80000000 else 0x100000000 - code


_cached_hash = lru_cache(maxsize=NAMES_MAX)(_compute_hash)


def hash_map_bucket(text: str) -> int:
    """Return the bucket of `text` in a Java HashMap of 16 buckets, by which Kafka iterates over a few names."""
    code = java_hash(text)
    # HashMap mixes the upper half into the lower before it takes the low bits.
    return (code ^ (code >> 16)) & 15
