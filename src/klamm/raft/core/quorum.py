"""Voters and majorities: the only place where votes and log ends are counted."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from klamm.model.ids import ZERO_UUID, uuid_to_str

KRAFT_VERSIONS = (0, 1)
"""The lowest and the highest kraft.version that this build supports."""


class ReplicaKey(NamedTuple):
    """A replica by node id and, since KIP-853, by the id of its log directory: a wiped disk is another replica."""

    id: int
    directory_id: bytes = ZERO_UUID

    def same_replica(self, other: "ReplicaKey") -> bool:
        """Whether both may be the same replica; directories are compared only when both are known."""
        if self.id != other.id:
            return False
        # Static voters, and votes of Kafka before KIP-853, have no directory id.
        return ZERO_UUID in (self.directory_id, other.directory_id) or self.directory_id == other.directory_id

    def __str__(self) -> str:
        return f"{self.id}/{uuid_to_str(self.directory_id)}"


@dataclass(frozen=True, slots=True)
class Voter:
    """A voter and the address of its controller listener."""

    key: ReplicaKey
    host: str = ""
    port: int = 0
    listener: str = "CONTROLLER"
    kraft_versions: tuple[int, int] = KRAFT_VERSIONS
    """The lowest and the highest kraft.version that its build supports."""

    def supports(self, kraft_version: int) -> bool:
        """Whether its build supports this kraft.version."""
        lowest, highest = self.kraft_versions
        return lowest <= kraft_version <= highest

    @property
    def id(self) -> int:
        """The node id."""
        return self.key.id


class VoterSet:
    """The voters of one configuration; immutable, so an epoch's votes are all counted against the same set."""

    __slots__ = ("_voters", "majority_size")

    def __init__(self, voters: Iterable[Voter]) -> None:
        self._voters: Mapping[int, Voter] = {voter.id: voter for voter in sorted(voters, key=attrgetter("id"))}
        self.majority_size = len(self._voters) // 2 + 1
        """How many voters of this set are a majority."""

    @classmethod
    def of_ids(cls, *ids: int) -> "VoterSet":
        """A set of voters whose directories are unknown, as in `controller.quorum.voters`."""
        return cls(Voter(ReplicaKey(voter_id)) for voter_id in ids)

    @property
    def ids(self) -> tuple[int, ...]:
        """Node ids in ascending order."""
        return tuple(self._voters)

    def get(self, node_id: int) -> Voter | None:
        """Return the voter with this node id, or None."""
        return self._voters.get(node_id)

    def is_voter(self, key: ReplicaKey) -> bool:
        """Whether this replica is a voter; the same node with another directory is not."""
        voter = self._voters.get(key.id)
        return voter is not None and voter.key.same_replica(key)

    def is_only_voter(self, key: ReplicaKey) -> bool:
        """Whether this replica is the only voter."""
        return len(self._voters) == 1 and self.is_voter(key)

    def is_majority(self, ids: Iterable[int]) -> bool:
        """Whether the voters among `ids` are a majority."""
        return len(self._voters.keys() & set(ids)) >= self.majority_size

    def can_still_reach_majority(self, refused: Iterable[int]) -> bool:
        """Whether the voters that have not refused are a majority."""
        return len(self._voters.keys() - set(refused)) >= self.majority_size

    def __iter__(self) -> Iterator[Voter]:
        return iter(self._voters.values())

    def __len__(self) -> int:
        return len(self._voters)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._voters

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._voters == other._voters

    def __hash__(self) -> int:
        return hash(tuple(self._voters.values()))

    def __repr__(self) -> str:
        return f"VoterSet({', '.join(map(str, self._voters))})"


def replicated_by_majority(end_offsets: Iterable[int]) -> int:
    """The highest offset that a majority of these log ends has reached: every offset below it is on a majority.

    One value per voter; -1 for a voter that has not fetched yet.
    """
    # Index n // 2 of n values in descending order: n // 2 + 1 voters, a majority, are at least there.
    ordered = sorted(end_offsets, reverse=True)
    return ordered[len(ordered) // 2]


def high_watermark(end_offsets: Iterable[int], epoch_start_offset: int, current: int) -> int:
    """The high watermark of a leader after its voters reached these log ends.

    It never decreases, and it passes the start of the leader's own epoch only together with the first record of
    that epoch: older records on a majority may still be overwritten by another leader (Raft, section 5.4.2).
    """
    candidate = replicated_by_majority(end_offsets)
    # Greater than, not equal: the first record of the epoch itself must be on a majority.
    return candidate if candidate > max(current, epoch_start_offset) else current
