"""The voters according to the log (KIP-853): every configuration with the offset from which it is in force.

A change is in force as soon as it is in the log, committed or not, and is undone when the log is truncated before it.
Before the first such record, the configuration is the one the node was formatted or configured with.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace

from klamm.raft.core.quorum import VoterSet

BEFORE_LOG = -1
"""The offset of a configuration that does not come from a record of the log."""
DYNAMIC = 1
"""The first kraft.version whose voters can change."""


@dataclass(frozen=True, slots=True)
class VoterConfiguration:
    """The voters, and the kraft.version that decides whether they can change."""

    voters: VoterSet
    kraft_version: int = 0

    @property
    def dynamic(self) -> bool:
        """Whether the voters are part of the log and can change."""
        return self.kraft_version >= DYNAMIC


@dataclass(frozen=True, slots=True)
class VoterChange:
    """The content of one control batch: new voters, a new kraft.version, or both."""

    voters: VoterSet | None = None
    kraft_version: int | None = None

    @property
    def record_count(self) -> int:
        """The number of its control records."""
        return (self.voters is not None) + (self.kraft_version is not None)

    def apply_to(self, before: VoterConfiguration) -> VoterConfiguration:
        """Return the configuration after this change."""
        after = before
        if self.voters is not None:
            after = replace(after, voters=self.voters)
        if self.kraft_version is not None:
            after = replace(after, kraft_version=self.kraft_version)
        return after


class VoterHistory:
    """All configurations that may still come into force, oldest first; there is always at least one."""

    __slots__ = ("_configurations", "_offsets")

    def __init__(self, first: VoterConfiguration, offset: int = BEFORE_LOG) -> None:
        self._offsets = [offset]
        self._configurations = [first]

    @property
    def latest(self) -> VoterConfiguration:
        """The configuration in force."""
        return self._configurations[-1]

    @property
    def previous(self) -> VoterConfiguration:
        """The configuration before the latest change; the latest itself when no older one is known."""
        return self._configurations[-2] if len(self._configurations) > 1 else self._configurations[-1]

    @property
    def offset(self) -> int:
        """The offset of the latest change; BEFORE_LOG when there was none."""
        return self._offsets[-1]

    def append(self, offset: int, change: VoterChange) -> None:
        """Add the change that was appended at `offset`."""
        assert offset > self._offsets[-1], f"voters at {offset} before those at {self._offsets[-1]}"
        self._offsets.append(offset)
        self._configurations.append(change.apply_to(self.latest))

    def at(self, end_offset: int) -> VoterConfiguration:
        """Return the configuration after every record below `end_offset`."""
        return self._configurations[max(bisect_left(self._offsets, end_offset) - 1, 0)]

    def truncate_to(self, end_offset: int) -> None:
        """Undo the changes from `end_offset` on."""
        # The oldest entry stays: it comes from a snapshot or the format, and both are committed.
        while len(self._offsets) > 1 and self._offsets[-1] >= end_offset:
            self._offsets.pop()
            self._configurations.pop()

    def forget_before(self, start_offset: int) -> None:
        """Forget configurations that ended before the new log start; the one in force there is kept."""
        keep = max(bisect_left(self._offsets, start_offset) - 1, 0)
        del self._offsets[:keep], self._configurations[:keep]

    def start_at(self, end_offset: int, configuration: VoterConfiguration) -> None:
        """Start over from a snapshot of everything below `end_offset`."""
        # The last offset of the snapshot, so that a change right after it is in order.
        self._offsets = [end_offset - 1]
        self._configurations = [configuration]
