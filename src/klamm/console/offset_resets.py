"""Offsets from before resets, kept for a day beside the samples, so that a reset can be taken back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.errors import KafkaError, SomeFailed
from klamm.console.history import KEPT_MS, SampleHistory
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition

_SHOWN: Final = 5
_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class PastReset:
    """A reset that can be taken back."""

    id: int
    time_ms: int
    person: str
    partitions: int
    undone: bool


class OffsetResets:
    """Resets of groups."""

    def __init__(self, history: SampleHistory) -> None:
        self._history = history

    def keep(
        self, cluster: str, group: str, person: str, time_ms: int, before: Mapping[TopicPartition, int | None]
    ) -> int:
        """Keep the offsets of a group and return the number of the reset; None is a partition without an offset."""
        text = json.dumps([[where.topic, where.partition, offset] for where, offset in sorted(before.items())])
        with self._history.lock:
            connection = self._history.connection
            connection.execute("DELETE FROM resets WHERE time_ms < ?", (time_ms - KEPT_MS,))
            cursor = connection.execute(
                "INSERT INTO resets (cluster, name, time_ms, person, offsets) VALUES (?, ?, ?, ?, ?)",
                (cluster, group, time_ms, person, text),
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def find(self, cluster: str, group: str, number: int) -> dict[TopicPartition, int | None] | None:
        """Return the offsets from before a reset of this group; None when there is none."""
        with self._history.lock:
            row = self._history.connection.execute(
                "SELECT offsets FROM resets WHERE id = ? AND cluster = ? AND name = ?", (number, cluster, group)
            ).fetchone()
        if row is None:
            return None
        return {TopicPartition(topic, partition): offset for topic, partition, offset in json.loads(row[0])}

    def mark_undone(self, number: int) -> None:
        """Note that a reset was taken back."""
        with self._history.lock:
            self._history.connection.execute("UPDATE resets SET undone = 1 WHERE id = ?", (number,))

    def list_recent(self, cluster: str, group: str) -> list[PastReset]:
        """Return the last resets of a group, the newest first."""
        with self._history.lock:
            rows = self._history.connection.execute(
                "SELECT id, time_ms, person, offsets, undone FROM resets WHERE cluster = ? AND name = ?"
                " ORDER BY id DESC LIMIT ?",
                (cluster, group, _SHOWN),
            ).fetchall()
        return [PastReset(row[0], row[1], row[2], len(json.loads(row[3])), bool(row[4])) for row in rows]


async def restore_offsets(admin: AsyncAdmin, group: str, before: Mapping[TopicPartition, int | None]) -> None:
    """Commit the offsets from before a reset, and delete those of partitions that had none.

    ValueError names the partitions whose offsets the cluster does not delete: it refuses those of subscribed topics.
    """
    committed = {where: offset for where, offset in before.items() if offset is not None}
    absent = sorted(where for where, offset in before.items() if offset is None)
    # First: this refuses a group with members as a whole, before anything is changed.
    if committed:
        await admin.alter_group_offsets(group, committed)
    if not absent:
        return
    try:
        await admin.delete_group_offsets(group, absent)
    except KafkaError as error:
        # A group that is gone has no offsets.
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return
        failed = sorted(error.failures) if isinstance(error, SomeFailed) else absent
        names = ", ".join(f"{where.topic}-{where.partition}" for where in failed[:_NAMED])
        more = f" and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
        raise ValueError(
            f"{names}{more} had no committed offset before the reset, and the new one could not be deleted: {error}"
        ) from None
