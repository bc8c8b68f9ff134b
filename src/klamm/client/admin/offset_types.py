"""Values about offsets."""

from enum import IntEnum


class OffsetSpec(IntEnum):
    """Places to look an offset up by; any other whole number is a timestamp in milliseconds."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6
