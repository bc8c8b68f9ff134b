"""Bytes of files in replies, which are sent without a copy in the process."""

from typing import Protocol


class FileRegion(Protocol):
    """Bytes of a file, sent without being read into the process; holding it keeps the file open."""

    @property
    def position(self) -> int:
        """Where the bytes start."""

    @property
    def length(self) -> int:
        """How many they are."""

    def fileno(self) -> int:
        """The open file's descriptor."""


class RegionRest:
    """What is left of a region that was sent in part."""

    __slots__ = ("_region", "fileno", "length", "position")

    def __init__(self, region: FileRegion, position: int, length: int) -> None:
        # Held although unused: it keeps the file open while retention may delete the segment.
        self._region = region
        self.fileno = region.fileno
        self.position = position
        self.length = length


ReplyPart = bytes | bytearray | memoryview | FileRegion
"""A piece of a reply."""
