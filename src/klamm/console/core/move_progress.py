"""How far reassignments are: the bytes that new replicas have, of those that they will have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from klamm.client.admin.replica_types import LogDirDescription, Reassignment
from klamm.model.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """One partition that moves."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    copied_bytes: int
    total_bytes: int
    """Of all new replicas; the leader may get records meanwhile."""

    @property
    def name(self) -> str:
        """TOPIC-PARTITION."""
        return f"{self.topic}-{self.partition}"

    @property
    def share(self) -> float | None:
        """0 to 1; None where sizes are not known, or there is nothing to copy."""
        return min(self.copied_bytes / self.total_bytes, 1.0) if self.total_bytes else None


def list_progress(
    moves: Mapping[TopicPartition, Reassignment],
    leaders: Mapping[TopicPartition, int],
    log_dirs: Mapping[int, Iterable[LogDirDescription]],
) -> list[MoveProgress]:
    """Return the progress of moves; replicas of brokers that did not report their log dirs count nothing."""
    sizes = {
        (broker, where): replica.size
        for broker, folders in log_dirs.items()
        for folder in folders
        for where, replica in folder.replicas.items()
        if where in moves and not replica.is_future
    }
    rows = []
    for where, move in sorted(moves.items()):
        whole = sizes.get((leaders.get(where, -1), where), 0)
        # Segments of a new replica may be a little larger than those of the leader.
        copied = sum(min(sizes.get((broker, where), 0), whole) for broker in move.adding)
        rows.append(
            MoveProgress(
                where.topic,
                where.partition,
                move.replicas,
                move.adding,
                move.removing,
                copied,
                whole * len(move.adding),
            )
        )
    return rows
