"""Who votes, as the log itself says (KIP-853): every configuration with the offset that made it count.

A change counts from the moment it is in the log, committed or not, and is forgotten with the record that made it when
the log is cut back. Before any such record, the configuration is the one the node was given.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace

from klamm.raft.core.quorum import VoterSet

BEFORE_THE_LOG = -1
"""The offset of a configuration that no record of the log made."""
DYNAMIC = 1
"""The kraft.version from which on voters can change."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The voters, and the kraft.version that says whether they may change."""

    voters: VoterSet
    kraft_version: int = 0

    @property
    def dynamic(self) -> bool:
        """Whether the voters are part of the log."""
        return self.kraft_version >= DYNAMIC


@dataclass(frozen=True, slots=True)
class ConfigurationChange:
    """What one control batch says: new voters, a new kraft.version, or both."""

    voters: VoterSet | None = None
    kraft_version: int | None = None

    @property
    def record_count(self) -> int:
        """How many control records it takes."""
        return (self.voters is not None) + (self.kraft_version is not None)

    def apply_to(self, before: Configuration) -> Configuration:
        """The configuration after it."""
        after = before
        if self.voters is not None:
            after = replace(after, voters=self.voters)
        if self.kraft_version is not None:
            after = replace(after, kraft_version=self.kraft_version)
        return after


class ConfigurationLog:
    """All configurations that may still count, oldest first; there is always at least one."""

    __slots__ = ("_configurations", "_offsets")

    def __init__(self, first: Configuration, offset: int = BEFORE_THE_LOG) -> None:
        self._offsets = [offset]
        self._configurations = [first]

    @property
    def latest(self) -> Configuration:
        """What counts now."""
        return self._configurations[-1]

    @property
    def before(self) -> Configuration:
        """What counted before the latest change, as far as it is remembered."""
        return self._configurations[-2] if len(self._configurations) > 1 else self._configurations[-1]

    @property
    def offset(self) -> int:
        """Where the latest was written; BEFORE_THE_LOG when it was not."""
        return self._offsets[-1]

    def append(self, offset: int, change: ConfigurationChange) -> None:
        """A record at `offset` changes the configuration."""
        assert offset > self._offsets[-1], f"a configuration at {offset} before the one at {self._offsets[-1]}"
        self._offsets.append(offset)
        self._configurations.append(change.apply_to(self.latest))

    def at(self, end_offset: int) -> Configuration:
        """What counts after every record below `end_offset`."""
        return self._configurations[max(bisect_left(self._offsets, end_offset) - 1, 0)]

    def truncate_to(self, end_offset: int) -> None:
        """Records from `end_offset` on are gone."""
        while len(self._offsets) > 1 and self._offsets[-1] >= end_offset:
            self._offsets.pop()
            self._configurations.pop()

    def forget_before(self, start_offset: int) -> None:
        """The log starts at `start_offset` now; what counted there is still needed."""
        keep = max(bisect_left(self._offsets, start_offset) - 1, 0)
        del self._offsets[:keep], self._configurations[:keep]

    def start_at(self, end_offset: int, configuration: Configuration) -> None:
        """A snapshot of everything below `end_offset` replaces the log."""
        self._offsets = [end_offset - 1]
        self._configurations = [configuration]
