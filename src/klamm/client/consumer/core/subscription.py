"""What a consumer wants and has: topics or partitions, and for each partition how far it is. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Any

from klamm.client.errors import IllegalStateError, KafkaError
from klamm.model.ids import TopicPartition
from klamm.model.topic_names import name_complaint
from klamm.records.batch import BatchView


class Mode(Enum):
    """How partitions come to a consumer; one way at a time."""

    NONE = "nothing"
    TOPICS = "topics"
    PATTERN = "a pattern"
    PARTITIONS = "partitions"


class Assigned:
    """One partition of a consumer: where it reads on, what lies ready, what is being fetched."""

    __slots__ = (
        "batches",
        "buffered",
        "error",
        "fetch_offset",
        "high_watermark",
        "last_stable_offset",
        "lent",
        "log_start_offset",
        "origin",
        "paused",
        "pending",
        "position",
        "position_epoch",
        "preferred",
        "preferred_until",
        "reset",
        "ticket",
        "validated_epoch",
        "where",
    )

    def __init__(self, where: TopicPartition) -> None:
        self.where = where
        self.position: int | None = None
        """The next offset the user gets; None until it is known where to begin."""
        self.position_epoch = -1
        """Leader epoch of the record before the position."""
        self.validated_epoch = -1
        """Leader epoch for which the position was found to be in the leader's log."""
        self.fetch_offset = -1
        """The next offset to ask a broker for: the position and what is buffered after it."""
        self.batches: deque[BatchView] = deque()
        self.pending: list[Any] = []
        """Records decoded and not handed out yet."""
        self.origin: BatchView | None = None
        """The batch that `pending` was decoded from last."""
        self.lent = False
        """Whether batches from the position on are being decoded elsewhere; no records of it are returned meanwhile."""
        self.buffered = 0
        self.paused = False
        self.reset: int | None = None
        """Where to begin when it is not known: a timestamp, -1 the end, -2 the beginning."""
        self.preferred = -1
        self.preferred_until = 0.0
        self.error: KafkaError | None = None
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.ticket = 0
        """Counts seeks; an answer to an older fetch is thrown away."""

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Go on elsewhere; what was fetched is thrown away."""
        self.clear()
        self.position = self.fetch_offset = offset
        self.position_epoch = epoch
        self.validated_epoch = -1
        self.reset = None

    def need_reset(self, timestamp: int | None) -> None:
        """It is not known where to go on; `timestamp` says where to look, None asks for the committed offset."""
        self.clear()
        self.position = None
        self.reset = timestamp

    def clear(self) -> None:
        """Throw away what was fetched or is on its way."""
        self.batches.clear()
        self.pending.clear()
        self.origin = None
        self.lent = False
        self.buffered = 0
        self.error = None
        self.ticket += 1

    def undecode(self) -> None:
        """Have records that were decoded lie ready as a batch again; what cannot is fetched again."""
        if not self.pending:
            return
        assert self.position is not None
        if self.origin is None or self.origin.base_offset > self.pending[0].offset:
            self.seek(self.position, self.position_epoch)
            return
        self.batches.appendleft(self.origin)
        self.buffered += self.origin.size
        self.pending, self.origin = [], None

    def spoil(self, error: KafkaError) -> None:
        """What was fetched cannot be read: the next poll tells, and reading goes on from the position."""
        self.clear()
        self.fetch_offset = -1 if self.position is None else self.position
        self.error = error

    def raise_error(self) -> None:
        """Tell what went wrong with this partition, once."""
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def position_reached(self, offset: int) -> bool:
        """Whether everything before `offset` was handed out."""
        return self.position is not None and self.position >= offset

    @property
    def fetchable(self) -> bool:
        """Whether a broker should be asked for more."""
        return self.position is not None and not self.paused and self.error is None


class Subscription:
    """The consumer's side of an assignment."""

    def __init__(self) -> None:
        self.mode = Mode.NONE
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.assigned: dict[TopicPartition, Assigned] = {}

    def _enter(self, mode: Mode) -> None:
        if self.mode not in (Mode.NONE, mode):
            raise IllegalStateError(
                f"the consumer has subscribed to {self.mode.value}; unsubscribe before asking for {mode.value}"
            )
        self.mode = mode

    def subscribe(self, topics: Iterable[str]) -> None:
        """Want topics, shared with the group."""
        if not isinstance(topics, Iterable):
            raise TypeError(f"topics of subscribe are names or a compiled pattern, not {topics!r}")
        named = [topics] if isinstance(topics, str) else list(topics)
        if not all(isinstance(topic, str) for topic in named):
            raise TypeError(f"topics of subscribe are names or a compiled pattern, not {topics!r}")
        wanted = frozenset(named)
        if not wanted or not all(isinstance(partition, str) and partition for partition in wanted):
            raise ValueError("subscribe needs names of topics")
        for partition in wanted:
            if complaint := name_complaint(partition):
                raise ValueError(f"{complaint}; re.compile({partition!r}) subscribes to a pattern")
        self._enter(Mode.TOPICS)
        self.topics = wanted

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Want every topic whose whole name a pattern matches."""
        self._enter(Mode.PATTERN)
        self.pattern = pattern

    def match(self, names: Iterable[str]) -> bool:
        """Look which topics the pattern matches now; True when others than before."""
        if self.pattern is None:
            return False
        names_matched = frozenset(name for name in names if self.pattern.fullmatch(name))
        changed = names_matched != self.topics
        self.topics = names_matched
        return changed

    def assign_manually(self, partitions: Iterable[TopicPartition]) -> None:
        """Have these partitions, whatever a group thinks."""
        self._enter(Mode.PARTITIONS)
        self.take(partitions)

    def unsubscribe(self) -> None:
        """Want nothing."""
        self.mode = Mode.NONE
        self.topics = frozenset()
        self.pattern = None
        self.take(())

    def take(self, partitions: Iterable[TopicPartition]) -> None:
        """Have exactly these; those that stay keep their place."""
        wanted = dict.fromkeys(TopicPartition(*partition) for partition in partitions)
        for where in list(self.assigned):
            if where not in wanted:
                self.assigned.pop(where).clear()
        for where in wanted:
            if where not in self.assigned:
                self.assigned[where] = Assigned(where)

    def state(self, where: TopicPartition) -> Assigned:
        """One partition; IllegalStateError when it is not assigned."""
        assigned_state = self.assigned.get(TopicPartition(*where))
        if assigned_state is None:
            raise IllegalStateError(f"{TopicPartition(*where)} is not assigned to this consumer")
        return assigned_state

    @property
    def buffered(self) -> int:
        """Bytes fetched ahead."""
        return sum(state.buffered for state in self.assigned.values())
