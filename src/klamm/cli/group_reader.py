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
"""How often a member checks while records come whether it has read to the end."""
POSITION_S = 1.0
PATIENCE_S = 3.0
"""How long a member waits for its partitions before it prints that it waits."""


class Silence:
    """Distinguishes an unreachable cluster from one without new records, for a member that waits.

    `probe` sends any request; OSError means that no broker answers. `report` is called with a sentence when that
    happens, and with another when a broker answers again.
    """

    def __init__(self, probe: Callable[[], None], report: Callable[[str], None]) -> None:
        self._probe = probe
        self._report = report
        self._since = time.monotonic()
        self._reported = False

    def check(self, has_records: bool) -> None:
        """Called after every poll."""
        now = time.monotonic()
        if not has_records and now - self._since < PATIENCE_S:
            return
        self._since = now
        try:
            # Records prove that a broker answers; a poll without any proves nothing, since a consumer retries silently.
            if not has_records:
                self._probe()
        except OSError as error:
            if not self._reported:
                self._reported = True
                self._report(f"waiting, Ctrl-C ends it: {error}")
            return
        if self._reported:
            self._reported = False
            self._report("the cluster answers again")


def read_what_is_there(
    settings: Mapping[str, Any], topics: Sequence[str], waits: Callable[[], None], follow: Silence | None = None
) -> Generator[Record, None, None]:
    """The records that the group has not read; ends at the log ends of the time of assignment, unless it follows.

    A rebalance may last for the session timeout of a member that died: `waits` is called once when the assignment
    takes longer than PATIENCE_S, and reading does not end before it.
    """
    member = _Member(settings, topics, endless=follow is not None)
    began: float | None = time.monotonic()
    looked = 0.0

    def is_over(has_records: bool) -> bool:
        nonlocal began, looked
        if follow is not None:
            follow.check(has_records)
        if member.goals:
            # Comparing the positions of all partitions after every poll would slow down reading.
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
    """One member; `goals` are its partitions, with the log end of each when it was assigned."""

    def __init__(self, settings: Mapping[str, Any], topics: Sequence[str], *, endless: bool) -> None:
        self._settings = settings
        self._endless = endless
        self._topics = topics
        self._consumer: Consumer | None = None
        self._read: dict[TopicPartition, OffsetAndMetadata] = {}
        self._unread: set[TopicPartition] = set()
        """Partitions without a record so far. Their start positions are committed too: without a commit, a member with
        auto.offset.reset=latest would skip records that arrive between this run and the next."""
        self.goals: dict[TopicPartition, int | None] = {}

    def read(self, is_over: Callable[[bool], bool]) -> Generator[Record, None, None]:
        """Each record; `is_over` is called after every poll, with whether it returned records."""
        from klamm.cli.signals import WholeRecords
        from klamm.client import Consumer
        from klamm.client.types import OffsetAndMetadata

        with (
            WholeRecords() as whole,
            # Commits are made by hand, because only printed records count as read; a setting of the user must not undo
            # that.
            Consumer({"bootstrap.timeout.ms": 0, **self._settings, "enable.auto.commit": "false"}) as consumer,
        ):
            self._consumer = consumer
            consumer.subscribe(
                self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
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
                        except GeneratorExit:  # enough was read; any other error means that this record was not written
                            read[record.topic_partition] = OffsetAndMetadata(record.offset + 1)
                            raise
                        read[record.topic_partition] = OffsetAndMetadata(record.offset + 1)
                        # A signal ends the command between two records, never inside a written line.
                        whole.raise_pending()
                    whole.raise_pending()
                    if time.monotonic() - committed > COMMIT_S:
                        self._commit_if_possible()
                        committed = time.monotonic()
                    over = is_over(bool(records))
            finally:
                self._commit()

    def has_come_to_the_ends(self) -> bool:
        """Whether every partition was read to the end it had when it was assigned."""
        assert self._consumer is not None
        unknown = [where for where, end in self.goals.items() if end is None]
        if unknown:
            self.goals.update(self._consumer.end_offsets(unknown))
        return all(self._consumer.position(where) >= (end or 0) for where, end in self.goals.items())

    def _commit_if_possible(self) -> None:
        """Commit; a command that follows retries a failed commit the next time."""
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

    def _on_assign(self, partitions: list[TopicPartition]) -> None:
        self.goals.update(dict.fromkeys(partitions))
        self._unread.update(partitions)

    def _on_revoke(self, partitions: list[TopicPartition]) -> None:
        # The last moment at which these offsets can be committed: the next owner reads from them.
        self._commit_if_possible()
        self._on_lost(partitions)

    def _on_lost(self, partitions: list[TopicPartition]) -> None:
        for where in partitions:
            # Lost partitions belong to another member already; committing their offsets would move it back.
            self.goals.pop(where, None)
            self._read.pop(where, None)
            self._unread.discard(where)
