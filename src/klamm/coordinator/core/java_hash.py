"""Java's String.hashCode, by which Kafka decides where a group lives and which of two equally liked protocols wins."""

from functools import lru_cache

NAMES_MAX = 8192
"""Group ids whose hash is cached: the same few thousand send nearly all requests."""


def java_hash(text: str) -> int:
    """Return String.hashCode of `text` as an unsigned 32-bit number."""
    code = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(encoded), 2):
        code = (31 * code + (encoded[i] << 8 | encoded[i + 1])) & 0xFFFFFFFF
    return code


@lru_cache(maxsize=NAMES_MAX)
def non_negative_hash(text: str) -> int:
    """Return the absolute value of String.hashCode as Kafka computes it: that of Integer.MIN_VALUE is 0."""
    code = java_hash(text)
    if code < 0x80000000:
        return code
    return 0 if code == 0x80000000 else 0x100000000 - code


def hash_map_bucket(text: str) -> int:
    """Return the bucket of `text` in a Java HashMap of 16 buckets, by which Kafka iterates over a few names."""
    code = java_hash(text)
    return (code ^ (code >> 16)) & 15
