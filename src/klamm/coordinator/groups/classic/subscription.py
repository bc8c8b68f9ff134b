"""The topic names of a consumer's subscription, all that the broker reads of it."""

from struct import Struct
from struct import error as struct_error

_SHORT = Struct(">h")
_INT = Struct(">i")


def subscribed_topics(metadata: bytes | None) -> frozenset[str] | None:
    """Return the topics of a subscription of any version, since all begin alike; None when it cannot be decoded."""
    if metadata is None:
        return None
    try:
        # The topics follow the version, an int16, in all versions.
        (count,) = _INT.unpack_from(metadata, 2)
        # A name takes two bytes at least; the count of arbitrary bytes must not bound the loop.
        if not 0 <= count <= len(metadata):
            return None
        topics = set()
        position = 6
        for _ in range(count):
            (size,) = _SHORT.unpack_from(metadata, position)
            end = position + 2 + size
            if size < 0 or end > len(metadata):
                return None
            topics.add(metadata[position + 2 : end].decode())
            position = end
    except (struct_error, UnicodeDecodeError):
        return None
    return frozenset(topics)
