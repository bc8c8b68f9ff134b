"""The keys that a topic of changes has rows of: TRUNCATE deletes each, and PostgreSQL's log does not name them."""

from __future__ import annotations

from klamm.pipeline.postgres.change_topic import ChangeTopic
from klamm.pipeline.postgres.core.change_records import ChangeRecord, is_deletion


class LiveKeys:
    """The topic's committed keys, and those of the open transaction over them."""

    def __init__(self, topic: ChangeTopic) -> None:
        self._topic = topic
        self._changed: dict[bytes, bool] = {}

    def add(self, record: ChangeRecord) -> None:
        """Take a record of the open transaction into account."""
        self._changed[record.key] = not is_deletion(record.value)

    def forget(self) -> None:
        """Begin a new transaction: the topic has the records of the last one."""
        self._changed.clear()

    def read_all(self) -> list[bytes]:
        """Return all keys; this reads the whole topic."""
        committed = self._topic.live_keys()
        keys = [key for key in committed if self._changed.get(key, True)]
        return keys + [key for key, is_live in self._changed.items() if is_live and key not in committed]
