"""Problems of files in a data folder, and what `klamm storage repair` does about each kind."""

import enum
from dataclasses import dataclass, field


class Fix(enum.Enum):
    """What repair does about a problem; the value completes the sentence "repair would ..."."""

    CUT = "cut the file there, keeping what follows under another name"
    REBUILD = "rebuild the segment's indexes from its log"
    REMOVE = "remove the file, which a start creates again"
    EPOCHS = "rewrite the file from the batches"
    CHECKPOINT = "rewrite the file with the lines that can be read"
    NOTHING = "leave it as it is"


@dataclass(frozen=True, slots=True)
class LogProblem:
    """One problem: in which file, at which byte, what it is, what repair does about it."""

    path: str
    what: str
    fix: Fix
    position: int | None = None
    offset: int | None = None
    """For damage in a log: the first offset that is lost."""

    def __str__(self) -> str:
        where = self.path if self.position is None else f"{self.path} at position {self.position}"
        return f"{where}: {self.what}; repair would {self.fix.value}"


@dataclass(slots=True)
class Findings:
    """The result of a check: problems, harmless oddities (`notes`), and how much was read."""

    problems: list[LogProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    size_bytes: int = 0

    def add(self, path: str, what: str, fix: Fix, position: int | None = None, offset: int | None = None) -> None:
        """Record a problem."""
        self.problems.append(LogProblem(path, what, fix, position, offset))

    def include(self, other: "Findings") -> None:
        """Add the result of another check."""
        self.problems += other.problems
        self.notes += other.notes
        self.partitions += other.partitions
        self.segments += other.segments
        self.batches += other.batches
        self.size_bytes += other.size_bytes
