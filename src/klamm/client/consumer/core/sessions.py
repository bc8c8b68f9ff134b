"""Fetch sessions (KIP-227): the broker keeps the partitions of a consumer, a fetch names only what changed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from klamm.model.ids import TopicPartition

_EPOCH_MAX = 0x7FFFFFFF
_FULL, _LEGACY = 0, -1


class PartitionFetch(NamedTuple):
    """What a Fetch asks of one partition."""

    offset: int
    leader_epoch: int
    topic_id: bytes
    max_bytes: int


class ConsumerFetchSession:
    """The fetch session with one broker; epoch 0 requests a session, -1 fetches without one."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = _FULL
        self._known: dict[TopicPartition, PartitionFetch] = {}

    def build(
        self, wanted: Mapping[TopicPartition, PartitionFetch]
    ) -> tuple[dict[TopicPartition, PartitionFetch], dict[TopicPartition, PartitionFetch]]:
        """The partitions to send: those new or changed, and those to forget."""
        if self.epoch == _FULL:
            self._known = dict(wanted)
            return dict(wanted), {}
        changed = {where: want for where, want in wanted.items() if self._known.get(where) != want}
        forgotten = {where: want for where, want in self._known.items() if where not in wanted}
        for where, want in wanted.items():
            known = self._known.get(where)
            # A topic that was deleted and created again: the session has the old id under the same name (KIP-516).
            if known is not None and known.topic_id != want.topic_id:
                forgotten[where] = known
        self._known = dict(wanted)
        return changed, forgotten

    def on_response(self, session_id: int) -> None:
        """Advance the epoch after a successful fetch."""
        if self.epoch == _FULL:
            self.session_id = session_id
            # Id 0: the broker's session cache is full. The next fetch is full again and asks anew.
            self.epoch = 1 if session_id else _FULL
        else:
            # Wraps to 1: 0 would request a new session.
            self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1

    def reset(self, *, keep_id: bool = False) -> None:
        """Start over with a full fetch, after a session error or a lost connection."""
        if not keep_id:
            self.session_id = 0
        self.epoch = _FULL
        self._known = {}
