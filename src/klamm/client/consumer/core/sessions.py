"""Fetch sessions (KIP-227): a broker remembers what a consumer reads, each fetch says only what changed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from klamm.model.ids import TopicPartition

_EPOCH_MAX = 0x7FFFFFFF
_FULL, _LEGACY = 0, -1


class Want(NamedTuple):
    """Where to read on in one partition."""

    offset: int
    leader_epoch: int
    topic_id: bytes
    max_bytes: int


class ConsumerFetchSession:
    """The conversation with one broker; epoch 0 asks for a session, -1 does without."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = _FULL
        self._known: dict[TopicPartition, Want] = {}

    def build(
        self, wanted: Mapping[TopicPartition, Want]
    ) -> tuple[dict[TopicPartition, Want], dict[TopicPartition, Want]]:
        """What to send for these partitions: those new or changed, and those to forget."""
        if self.epoch == _FULL:
            self._known = dict(wanted)
            return dict(wanted), {}
        changed = {where: want for where, want in wanted.items() if self._known.get(where) != want}
        forgotten = {where: want for where, want in self._known.items() if where not in wanted}
        for where, want in wanted.items():
            known = self._known.get(where)
            if known is not None and known.topic_id != want.topic_id:
                forgotten[where] = known
        self._known = dict(wanted)
        return changed, forgotten

    def answered(self, session_id: int) -> None:
        """The broker took the fetch."""
        if self.epoch == _FULL:
            self.session_id = session_id
            self.epoch = 1 if session_id else _FULL
        else:
            self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1

    def reset(self, *, keep_id: bool = False) -> None:
        """The broker forgot the session, or the connection broke: say everything again."""
        if not keep_id:
            self.session_id = 0
        self.epoch = _FULL
        self._known = {}
