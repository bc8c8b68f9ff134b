"""Reading as a member of a group, one record at a time, for `consume --group`."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.client import Consumer
    from klamm.client.types import OffsetAndMetadata, Record, TopicPartition

POLL_S = 0.2
COMMIT_S = 5.0
LOOK_S = 0.5
"""How often a member looks whether it has read enough while records come."""
POSITION_S = 1.0
PATIENCE_S = 3.0
"""How long a member waits for its partitions before it says that it waits."""


class Silence:
    """Tells a cluster that is gone from one that has nothing to give, for a member that waits for either.

    `ask` sends any request; OSError means that no broker answers. `tell` is given a sentence when that is so,
    and another when it is over.
    """

    def __init__(self, ask: Callable[[], None], tell: Callable[[str], None]) -> None:
        self._ask = ask
        self._tell = tell
        self._since = time.monotonic()
        self._told = False

    def look(self, has_records: bool) -> None:
        """Called after every look for records."""
        now = time.monotonic()
        if not has_records and now - self._since < PATIENCE_S:
            return
        self._since = now
        try:
            if not has_records:
                self._ask()
        except OSError as error:
            if not self._told:
                self._told = True
                self._tell(f"waiting, Ctrl-C ends it: {error}")
            return
        if self._told:
            self._told = False
            self._tell("the cluster answers again")


def read_what_is_there(
    settings: Mapping[str, Any], topics: Sequence[str], waits: Callable[[], None], follow: Silence | None = None
) -> Generator[Record, None, None]:
    """As a member, what the group has not read yet; ends where partitions ended when they came, unless it follows.

    A group gives partitions when it is ready to, which may take as long as a member that died is believed to live:
    `waits` is called once when that takes longer than a moment, and nothing ends before.
    """
    member = _Member(settings, topics, endless=follow is not None)
    began: float | None = time.monotonic()
    looked = 0.0

    def is_over(has_records: bool) -> bool:
        nonlocal began, looked
        if follow is not None:
            follow.look(has_records)
        if member.goals:
            if follow is not None or (has_records and time.monotonic() - looked < LOOK_S):
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

    def __init__(self, settings: Mapping[str, Any], topics: Sequence[str], *, endless: bool) -> None:
        self._settings = settings
        self._endless = endless
        self._topics = topics
        self._consumer: Consumer | None = None
        self._read: dict[TopicPartition, OffsetAndMetadata] = {}
        self._unread: set[TopicPartition] = set()
        """Partitions of which nothing has come: their beginning counts, or what comes later would be passed over."""
        self.goals: dict[TopicPartition, int | None] = {}

    def read(self, is_over: Callable[[bool], bool]) -> Generator[Record, None, None]:
        """Each record; `is_over` is asked after every look for more, and told whether it found any."""
        from klamm.cli.signals import WholeRecords
        from klamm.client import Consumer
        from klamm.client.types import OffsetAndMetadata

        with (
            WholeRecords() as whole,
            Consumer({"bootstrap.timeout.ms": 0, **self._settings, "enable.auto.commit": "false"}) as consumer,
        ):
            self._consumer = consumer
            consumer.subscribe(self._topics, on_assign=self._came, on_revoke=self._go, on_lost=self._lost)
            committed = time.monotonic()
            read = self._read
            try:
                over = False
                while not over:
                    records = consumer.poll(POLL_S)
                    self._unread -= {record.topic_partition for record in records}
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
                        self._commit_if_possible()
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

    def _commit_if_possible(self) -> None:
        """Commit; where a cluster that is waited for does not take it, the next time will."""
        from klamm.client.errors import CommitFailedError, RetriableError

        try:
            self._commit()
        except (RetriableError, CommitFailedError):
            if not self._endless:
                raise

    def _commit(self) -> None:
        from klamm.client.errors import KafkaError
        from klamm.client.types import OffsetAndMetadata

        assert self._consumer is not None
        for where in self._unread:
            with suppress(KafkaError):  # its start offset is not known yet
                self._read[where] = OffsetAndMetadata(self._consumer.position(where, POSITION_S))
        if self._read:
            self._consumer.commit(dict(self._read))
        self._read.clear()

    def _came(self, partitions: list[TopicPartition]) -> None:
        self.goals.update(dict.fromkeys(partitions))
        self._unread.update(partitions)

    def _go(self, partitions: list[TopicPartition]) -> None:
        self._commit_if_possible()
        self._lost(partitions)

    def _lost(self, partitions: list[TopicPartition]) -> None:
        for where in partitions:
            self.goals.pop(where, None)
            self._read.pop(where, None)
            self._unread.discard(where)
