"""A consumer's subscription and its assigned partitions with their positions. Pure."""

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
    """How a consumer gets its partitions; one way at a time, as in Java."""

    NONE = "nothing"
    TOPICS = "topics"
    PATTERN = "a pattern"
    PARTITIONS = "partitions"


class AssignedPartition:
    """One partition of a consumer: its position, what is buffered, what is being fetched."""

    __slots__ = (
        "batches",
        "buffered",
        "end_offset",
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
        """The offset of the next record to return; None until `FetchPositions` has found one."""
        self.position_epoch = -1
        """Leader epoch of the record before the position."""
        self.validated_epoch = -1
        """Leader epoch for which the position was validated against the leader's log (KIP-320)."""
        self.fetch_offset = -1
        """The offset of the next fetch: behind everything that is buffered."""
        self.batches: deque[BatchView] = deque()
        self.pending: list[Any] = []
        """Records that are decoded and not returned yet."""
        self.origin: BatchView | None = None
        """The batch that `pending` was decoded from last."""
        self.lent = False
        """Whether batches from the position on are being decoded elsewhere; no records of it are returned meanwhile."""
        self.buffered = 0
        self.paused = False
        self.end_offset: int | None = None
        """Nothing is fetched from here on: a reader of a range would wait for records that it does not need."""
        self.reset: int | None = None
        """What to look up for the position: a timestamp, -1 the end, -2 the beginning."""
        self.preferred = -1
        self.preferred_until = 0.0
        self.error: KafkaError | None = None
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.ticket = 0
        """Counts seeks; the response to a fetch of an older count is discarded."""

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Continue at another offset; what is buffered is discarded."""
        self.clear()
        self.position = self.fetch_offset = offset
        self.position_epoch = epoch
        self.validated_epoch = -1
        self.reset = None

    def need_reset(self, timestamp: int | None) -> None:
        """Look the position up: by `timestamp`, or with None from the committed offset."""
        self.clear()
        self.position = None
        self.reset = timestamp

    def clear(self) -> None:
        """Discard what is buffered, and the response that is under way."""
        self.batches.clear()
        self.pending.clear()
        self.origin = None
        self.lent = False
        self.buffered = 0
        self.error = None
        self.ticket += 1

    def restore_batch(self) -> None:
        """Put decoded records back as their batch, for a reader of columns; or fetch them again."""
        if not self.pending:
            return
        assert self.position is not None
        # `return_unread` may have put back records of more than the last batch.
        if self.origin is None or self.origin.base_offset > self.pending[0].offset:
            self.seek(self.position, self.position_epoch)
            return
        self.batches.appendleft(self.origin)
        self.buffered += self.origin.size
        self.pending, self.origin = [], None

    def fail(self, error: KafkaError) -> None:
        """Discard what cannot be decoded: the next poll raises, and fetching continues at the position."""
        self.clear()
        self.fetch_offset = -1 if self.position is None else self.position
        self.error = error

    def raise_error(self) -> None:
        """Raise the error of this partition, once."""
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def position_reached(self, offset: int) -> bool:
        """Whether everything before `offset` was returned."""
        return self.position is not None and self.position >= offset

    @property
    def fetchable(self) -> bool:
        """Whether more should be fetched; not after an error, until it was raised."""
        if self.position is None or self.paused or self.error is not None:
            return False
        return self.end_offset is None or self.fetch_offset < self.end_offset


class Subscription:
    """The subscribed topics and the assigned partitions of a consumer."""

    def __init__(self) -> None:
        self.mode = Mode.NONE
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.assigned: dict[TopicPartition, AssignedPartition] = {}

    def _enter(self, mode: Mode) -> None:
        if self.mode not in (Mode.NONE, mode):
            raise IllegalStateError(
                f"the consumer is subscribed to {self.mode.value}; unsubscribe before subscribing to {mode.value}"
            )
        self.mode = mode

    def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe to topics, shared with the group."""
        if not isinstance(topics, Iterable):
            raise TypeError(f"topics of subscribe are names or a compiled pattern, not {topics!r}")
        named = [topics] if isinstance(topics, str) else list(topics)
        if not all(isinstance(topic, str) for topic in named):
            raise TypeError(f"topics of subscribe are names or a compiled pattern, not {topics!r}")
        wanted = frozenset(named)
        if not wanted or not all(wanted):
            raise ValueError("subscribe needs names of topics")
        # A name that no topic can have is most often a pattern: librdkafka takes "^orders.*" as one, this client a
        # compiled pattern only.
        for name in wanted:
            if complaint := name_complaint(name):
                raise ValueError(f"{complaint}; re.compile({name!r}) subscribes to a pattern")
        self._enter(Mode.TOPICS)
        self.topics = wanted

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Subscribe to every topic whose whole name a pattern matches."""
        self._enter(Mode.PATTERN)
        self.pattern = pattern

    def match(self, names: Iterable[str]) -> bool:
        """Match the pattern against topic names; True when the subscription changed."""
        if self.pattern is None:
            return False
        names_matched = frozenset(name for name in names if self.pattern.fullmatch(name))
        changed = names_matched != self.topics
        self.topics = names_matched
        return changed

    def assign_manually(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign these partitions, without a group."""
        self._enter(Mode.PARTITIONS)
        self.take(partitions)

    def unsubscribe(self) -> None:
        """Drop the subscription and all partitions."""
        self.mode = Mode.NONE
        self.topics = frozenset()
        self.pattern = None
        self.take(())

    def take(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these; those that stay keep their state and what is buffered."""
        wanted = dict.fromkeys(TopicPartition(*partition) for partition in partitions)
        for where in list(self.assigned):
            if where not in wanted:
                # clear() counts the ticket up: a fetch or a lent batch that still refers to it is discarded.
                self.assigned.pop(where).clear()
        for where in wanted:
            if where not in self.assigned:
                self.assigned[where] = AssignedPartition(where)

    def state(self, where: TopicPartition) -> AssignedPartition:
        """One partition; IllegalStateError when it is not assigned."""
        assigned_state = self.assigned.get(TopicPartition(*where))
        if assigned_state is None:
            raise IllegalStateError(f"{TopicPartition(*where)} is not assigned to this consumer")
        return assigned_state

    @property
    def buffered(self) -> int:
        """Bytes fetched ahead."""
        return sum(state.buffered for state in self.assigned.values())
