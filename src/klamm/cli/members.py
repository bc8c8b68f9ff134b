"""Reading as a member of a group, one record at a time: what `consume --group` and kafka-console-consumer share."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.client import Consumer
    from klamm.client.types import OffsetAndMetadata, Record, TopicPartition

POLL_S = 0.2
COMMIT_S = 5.0
LOOK_S = 0.5
"""How often a member looks whether it has read enough while records come."""
PATIENCE_S = 3.0
"""How long a member waits for its partitions before it says that it waits."""


def read_as_member(
    settings: Mapping[str, Any],
    topics: Sequence[str] | re.Pattern[str],
    *,
    idle_s: float | None = None,
    commit: bool = True,
) -> Generator[Record, None, None]:
    """Records as they come; ends after `idle_s` without one, whether the group has given partitions or not.

    Committed is what was handed out and not thrown back: every few seconds, before partitions go, and at the end.
    """
    last = time.monotonic()

    def is_over(found: bool) -> bool:
        nonlocal last
        last = time.monotonic() if found else last
        return idle_s is not None and time.monotonic() - last >= idle_s

    return _Member(settings, topics, commit=commit).read(is_over)


def read_what_is_there(
    settings: Mapping[str, Any], topics: Sequence[str], waits: Callable[[], None], *, follow: bool
) -> Generator[Record, None, None]:
    """As a member, what the group has not read yet; ends where partitions ended when they came, unless it follows.

    A group gives partitions when it is ready to, which may take as long as a member that died is believed to live:
    `waits` is called once when that takes longer than a moment, and nothing ends before.
    """
    member = _Member(settings, topics, commit=True)
    began: float | None = time.monotonic()
    looked = 0.0

    def is_over(found: bool) -> bool:
        nonlocal began, looked
        if member.goals:
            if follow or (found and time.monotonic() - looked < LOOK_S):
                return False
            looked = time.monotonic()
            return member.has_come_to_the_ends()
        if began is not None and time.monotonic() - began > PATIENCE_S:
            began = None
            waits()
        return False

    return member.read(is_over)


class _Member:
    """One member; `goals` are its partitions, with the end each had when it came."""

    def __init__(self, settings: Mapping[str, Any], topics: Sequence[str] | re.Pattern[str], *, commit: bool) -> None:
        self._settings = settings
        self._topics = topics
        self._commits = commit
        self._consumer: Consumer | None = None
        self._read: dict[TopicPartition, OffsetAndMetadata] = {}
        self.goals: dict[TopicPartition, int | None] = {}

    def read(self, is_over: Callable[[bool], bool]) -> Generator[Record, None, None]:
        """Each record; `is_over` is asked after every look for more, and told whether it found any."""
        from klamm.cli.stopping import WholeRecords
        from klamm.client import Consumer
        from klamm.client.types import OffsetAndMetadata

        topics = self._topics if isinstance(self._topics, re.Pattern) else list(self._topics)
        with WholeRecords() as whole, Consumer({**self._settings, "enable.auto.commit": "false"}) as consumer:
            self._consumer = consumer
            consumer.subscribe(topics, on_assign=self._came, on_revoke=self._go, on_lost=self._lost)
            committed = time.monotonic()
            read = self._read
            try:
                over = False
                while not over:
                    records = consumer.poll(POLL_S)
                    for record in records:
                        try:
                            yield record
                        except GeneratorExit:  # enough was read; any other error says that this one was not taken
                            read[record.topic_partition] = OffsetAndMetadata(record.offset + 1)
                            raise
                        read[record.topic_partition] = OffsetAndMetadata(record.offset + 1)
                        whole.obey()
                    whole.obey()
                    if time.monotonic() - committed > COMMIT_S:
                        self._commit()
                        committed = time.monotonic()
                    over = is_over(bool(records))
            finally:
                self._commit()

    def has_come_to_the_ends(self) -> bool:
        """Whether everything was read that was there when the partitions came."""
        assert self._consumer is not None
        unknown = [where for where, end in self.goals.items() if end is None]
        if unknown:
            self.goals.update(self._consumer.end_offsets(unknown))
        return all(self._consumer.position(where) >= (end or 0) for where, end in self.goals.items())

    def _commit(self) -> None:
        if self._commits and self._read and self._consumer is not None:
            self._consumer.commit(dict(self._read))
        self._read.clear()

    def _came(self, partitions: list[TopicPartition]) -> None:
        self.goals.update(dict.fromkeys(partitions))

    def _go(self, partitions: list[TopicPartition]) -> None:
        self._commit()
        self._lost(partitions)

    def _lost(self, partitions: list[TopicPartition]) -> None:
        for where in partitions:
            self.goals.pop(where, None)
            self._read.pop(where, None)
