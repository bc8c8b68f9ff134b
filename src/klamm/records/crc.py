"""CRC-32C, the checksum of every batch: one name, so the library behind it can change.

`crc32c(data, value=0)` takes any contiguous buffer without copying it and continues from `value`.
"""

from crc32c import crc32c

__all__ = ["crc32c"]
