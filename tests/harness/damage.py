"""Bits that flip in files, and which files can be rebuilt."""

from pathlib import Path

DERIVED = (
    "*/*.index",
    "*/*.timeindex",
    "*/*.snapshot",
    "*/leader-epoch-checkpoint",
    "*/partition.metadata",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
"""Files that are rebuilt from a log or from metadata, by their path below a log dir."""


def flip(path: Path, position: int | None = None, bit: int = 0) -> None:
    """Flip one bit of a file, in its middle by default."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if position is None else position] ^= 1 << bit
    path.write_bytes(data)
