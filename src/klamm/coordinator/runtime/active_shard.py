"""A loaded shard: replays what it decides, appends it, and holds replies until the records are committed.

Usually records are replayed at once and appended when the turn ends, in one batch with those of other decisions. Large
decisions, and those of transactions, are appended as batches of their own, and replayed after that.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from klamm.coordinator.core.deadlines import Deadlines
from klamm.coordinator.core.shard import CoordinatorRecord, Decision, LoggedEvent, Now, ReplyTo, Shard
from klamm.model.clock import Clock
from klamm.model.errors import ErrorCode, KlammError
from klamm.records.batch import HEADER_SIZE, build_batch
from klamm.records.control import build_end_txn_marker
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.coordinator.runtime.coordinator_runtime import PartitionLog

log = get_logger("coordinator")

S = TypeVar("S", bound=Shard)
Replies = Sequence[tuple[ReplyTo, Any]]

BATCH_BYTES_MAX = 256 * 1024
"""How large a batch of a decision that need not be atomic becomes."""

TURN_BATCH_BYTES_MAX = 64 * 1024
"""How large the batch of a turn becomes; a decision that is larger has a batch of its own."""

RECORD_OVERHEAD = 24
"""What a batch adds to the key and value of a record, at most."""

_NO_HEADERS: tuple[()] = ()


@dataclass(slots=True)
class _HeldReplies:
    """Replies that leave when the log is committed up to `end_offset`."""

    end_offset: int
    replies: Replies
    deadline_ms: int


class ActiveShard(Generic[S]):
    """One shard, its log, its deadlines, and its replies that are held back.

    The decisions of one turn of the loop are written together: each is replayed at once and its records are
    added to the batch of the turn, which is appended when the turn ends, with one checksum.
    """

    def __init__(
        self,
        name: str,
        shard: S,
        partition_log: "PartitionLog",
        epoch: int,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        write_timeout_ms: int,
        on_failed_write: Callable[[ErrorCode], None],
        codec: int = 0,
    ) -> None:
        self.name = name
        self.shard = shard
        self.epoch = epoch
        self._log = partition_log
        self._loop = loop
        self._clock = clock
        self._write_timeout_ms = write_timeout_ms
        self._on_failed_write = on_failed_write
        self._codec = codec
        self._held: deque[_HeldReplies] = deque()
        self._rows: list[tuple[int, bytes, bytes | None, tuple[()]]] = []
        """The records of this turn, as `build_batch` takes them; their replies and events are beside them."""
        self._rows_bytes = self._rows_bytes_max = 0
        self._rows_offset = 0
        self._rows_since = Now(0, 0)
        self._rows_replies: list[tuple[ReplyTo, Any]] = []
        self._rows_events: list[LoggedEvent] = []
        self._deadlines = Deadlines()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._write_timer: asyncio.TimerHandle | None = None
        self._closed = False

    def now(self) -> Now:
        """Return the current time on both clocks."""
        return Now(self._clock.monotonic_ms(), self._clock.now_ms())

    def begin(self) -> None:
        """Hold replies until everything loaded is committed: followers may not have all of it yet."""
        self._await_commit(self._log.end_offset, (), self.now())

    def run(self, decide: Callable[[S, Now], Decision], reply_to: ReplyTo | None = None) -> None:
        """Let the shard decide and carry out the decision. Refusals and bugs are answered to `reply_to`."""
        if self._closed:
            return
        now = self.now()
        try:
            decision = decide(self.shard, now)
        except KlammError as refused:
            if reply_to is not None:
                # A refusal may rest on a decision that is not committed yet, so it waits like any reply.
                self._hold(((reply_to, refused),), now)
            return
        except Exception as error:  # noqa: BLE001 - a bug in one decision must not take the shard's other groups down
            log.failure("coordinator request failed", error, partition=self.name)
            if reply_to is not None:
                self._hold(((reply_to, KlammError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error))),), now)
            return
        self.carry_out(decision, now)

    def carry_out(self, decision: Decision, now: Now) -> None:
        """Carry out a decision made at `now`, in the same turn of the loop."""
        if not decision.records:
            _log_events(decision.events)
        elif not self._append(decision, now):
            return
        # Timers are set after the append: those of a decision that could not be appended must never fire.
        if decision.timers:
            for key, deadline_ms in decision.timers:
                self._deadlines.set(key, deadline_ms)
            self._arm(now.ms)
        # `_append` has queued the replies of a decision with records.
        if decision.replies and not decision.records:
            self._hold(decision.replies, now)

    def _append(self, decision: Decision, now: Now) -> bool:
        records = decision.records
        size = RECORD_OVERHEAD * len(records)
        for key, value in records:
            size += len(key) + len(value or b"")
        # Records of a transaction need a batch of their own: the producer id stands in the batch header.
        if decision.producer_id < 0 and size <= TURN_BATCH_BYTES_MAX and self._reserve_bytes(size):
            return self._add_to_turn_batch(decision, size, now)
        self._append_turn_batch()
        # The last batch carries the replies: a log commits in order, so all others are committed by then.
        runs = [records] if decision.atomic else list(_runs(records))
        for run in runs[:-1]:
            if not self._append_batch(decision, run, (), now):
                self._deliver(
                    decision.replies,
                    KlammError(ErrorCode.NOT_COORDINATOR, f"{self.name}: a part of the records could not be appended"),
                )
                return False
        if not self._append_batch(decision, runs[-1], decision.replies, now):
            return False
        _log_events(decision.events)
        return True

    # Decisions of one turn

    def _reserve_bytes(self, size: int) -> bool:
        """Append the turn's batch if `size` more bytes exceed it; return False when they exceed an empty one too."""
        if self._rows:
            if self._rows_bytes + size <= self._rows_bytes_max:
                return True
            self._append_turn_batch()
        self._rows_bytes = 0
        self._rows_bytes_max = min(TURN_BATCH_BYTES_MAX, self._log.batch_bytes_max - HEADER_SIZE)
        return size <= self._rows_bytes_max

    def _add_to_turn_batch(self, decision: Decision, size: int, now: Now) -> bool:
        records, replies = decision.records, decision.replies
        if self._closed:
            self._deliver(replies, KlammError(ErrorCode.NOT_COORDINATOR, f"{self.name} is no longer served here"))
            return False
        rows = self._rows
        if not rows:
            self._rows_since = now
            try:
                # The offset is reserved now, because replay needs it; the batch is built at the end of the turn.
                self._rows_offset = self._log.append_at_turn_end(self._append_turn_batch)
            except KlammError as error:
                self._fail_append(error, replies)
                return False
        # Replayed before it is written, so that the next decision of the turn sees it.
        if not self._replay(records, self._rows_offset + len(rows), -1, -1):
            self._deliver(replies, KlammError(ErrorCode.UNKNOWN_SERVER_ERROR, "a record could not be replayed"))
            return False
        stamp = now.wall_ms
        for key, value in records:
            rows.append((stamp, key, value, _NO_HEADERS))
        self._rows_bytes += size
        self._rows_replies.extend(replies)
        self._rows_events.extend(decision.events)
        return True

    def _append_turn_batch(self) -> None:
        """Append the records of the turn as one batch; the log calls this before it writes at the end of the turn."""
        rows, replies, events = self._rows, self._rows_replies, self._rows_events
        if not rows or self._closed:
            return
        self._rows, self._rows_replies, self._rows_events = [], [], []
        try:
            base = self._log.append(build_batch(rows, codec=self._codec))
        except KlammError as error:
            self._fail_append(error, replies)
            return
        if base != self._rows_offset:
            # Another writer has appended in this turn of the loop, so records were replayed with wrong offsets.
            log.warning(
                "unexpected append by another writer", partition=self.name, offset=base, expected=self._rows_offset
            )
            self._deliver(
                replies, KlammError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "unexpected append by another writer")
            )
            self._on_failed_write(ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        _log_events(events)
        self._await_commit(base + len(rows), replies, self._rows_since)

    def _fail_append(self, error: KlammError, replies: Replies) -> None:
        """Answer with an error and reload the shard: its soft state may have changed for a decision that is lost."""
        log.warning("coordinator append failed", partition=self.name, reason=error)
        self._deliver(replies, KlammError(_client_code(error.code), str(error)))
        self._on_failed_write(error.code)

    def _replay(self, records: Sequence[CoordinatorRecord], base: int, producer_id: int, producer_epoch: int) -> bool:
        try:
            self.shard.replay_run(records, base, producer_id, producer_epoch)
        except Exception as error:  # noqa: BLE001 - what is in memory is no longer what the log says
            log.failure("record replay failed", error, partition=self.name)
            self._on_failed_write(ErrorCode.UNKNOWN_SERVER_ERROR)
            return False
        return True

    # A batch of its own

    def _append_batch(
        self, decision: Decision, records: Sequence[CoordinatorRecord], replies: Replies, now: Now
    ) -> bool:
        if self._closed:
            self._deliver(replies, KlammError(ErrorCode.NOT_COORDINATOR, f"{self.name} is no longer served here"))
            return False
        stamp = now.wall_ms
        batch = build_batch(
            [(stamp, record.key, record.value, _NO_HEADERS) for record in records],
            codec=self._codec,
            producer_id=decision.producer_id,
            producer_epoch=decision.producer_epoch,
            transactional=decision.producer_id >= 0,
        )
        try:
            base = self._log.append(batch)
        except KlammError as error:
            self._fail_append(error, replies)
            return False
        if not self._replay(records, base, decision.producer_id, decision.producer_epoch):
            self._deliver(replies, KlammError(ErrorCode.UNKNOWN_SERVER_ERROR, "a record could not be replayed"))
            return False
        self._await_commit(base + len(records), replies, now)
        return True

    def end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
        reply_to: ReplyTo,
    ) -> None:
        """Write and replay a producer's marker."""
        # Records of this turn have been replayed with offsets before the marker's, so they are appended before it.
        self._append_turn_batch()
        if self._closed:
            reply_to(KlammError(ErrorCode.NOT_COORDINATOR, f"{self.name} is no longer served here"))
            return
        now = self.now()
        marker = build_end_txn_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=now.wall_ms,
        )
        try:
            base = self._log.append(marker, transaction_version)
        except KlammError as error:
            # Nothing was replayed, so shard and log still agree: no reload.
            reply_to(error)
            return
        self.shard.replay_marker(producer_id, producer_epoch, committed)
        self._await_commit(base + 1, ((reply_to, None),), now)

    # Replies

    def _await_commit(self, end_offset: int, replies: Replies, now: Now) -> None:
        self._held.append(_HeldReplies(end_offset, replies, now.ms + self._write_timeout_ms))
        self._log.when_committed(end_offset, partial(self._on_committed, end_offset))
        # The log may have reported the commit at once.
        if self._write_timer is None and self._held:
            self._write_timer = self._loop.call_later(self._write_timeout_ms / 1000, self._time_out_writes)

    def _hold(self, replies: Replies, now: Now) -> None:
        if self._rows:
            self._rows_replies.extend(replies)
        elif self._held:
            # A reply without records of its own must not show what is decided but not committed yet.
            self._held.append(_HeldReplies(self._held[-1].end_offset, replies, now.ms + self._write_timeout_ms))
        else:
            self._deliver(replies)

    def _on_committed(self, end_offset: int, error: ErrorCode) -> None:
        if self._closed:
            return
        if error:
            self._on_failed_write(error)
            return
        held = self._held
        while held and held[0].end_offset <= end_offset:
            self._deliver(held.popleft().replies)

    def _time_out_writes(self) -> None:
        """Answer requests whose write takes too long; the write may still succeed."""
        self._write_timer = None
        if self._closed or not self._held:
            return
        now_ms = self._clock.monotonic_ms()
        for held in self._held:
            if held.deadline_ms <= now_ms and held.replies:
                # The entry stays in the queue, to keep the order of offsets.
                replies, held.replies = held.replies, ()
                self._deliver(
                    replies, KlammError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the write to {self.name} timed out")
                )
        # One timer for all writes: the error is sent at most two timeouts after the decision.
        self._write_timer = self._loop.call_later(self._write_timeout_ms / 1000, self._time_out_writes)

    def _deliver(self, replies: Replies, error: KlammError | None = None) -> None:
        for reply_to, response in replies:
            try:
                reply_to(response if error is None else error)
            except Exception as failure:  # noqa: BLE001 - one reply that cannot be made must not hold back the others
                log.failure("reply failed", failure, partition=self.name, response=type(response).__name__)

    # Deadlines

    def _arm(self, now_ms: int) -> None:
        next_ms = self._deadlines.next_ms
        if next_ms is None or (self._timer is not None and self._timer_at_ms <= next_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = next_ms
        self._timer = self._loop.call_later(max(next_ms - now_ms, 0) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        for key in self._deadlines.due(self._clock.monotonic_ms()):
            self.run(partial(_decide_timer, key))
        if not self._closed:
            self._arm(self._clock.monotonic_ms())

    def close(self, error: KlammError) -> None:
        """Stop, and answer every waiting request with `error`."""
        self._closed = True
        for timer in (self._timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        # Oldest first: replies behind the log, those of this turn, then joins and syncs that wait in the shard.
        held, self._held = self._held, deque()
        for waiting in held:
            self._deliver(waiting.replies, error)
        turn_replies, self._rows, self._rows_replies, self._rows_events = self._rows_replies, [], [], []
        self._deliver(turn_replies, error)
        self._deliver(tuple((reply_to, error) for reply_to in self.shard.waiting()))


def _decide_timer(key: Hashable, shard: Shard, now: Now) -> Decision:
    return shard.on_timer(key, now)


def _runs(records: Sequence[CoordinatorRecord]) -> Iterator[Sequence[CoordinatorRecord]]:
    """Cut a long list into pieces that fit a batch."""
    start = size = 0
    for i, record in enumerate(records):
        size += len(record.key) + len(record.value or b"") + 16
        if size > BATCH_BYTES_MAX and i > start:
            yield records[start:i]
            start, size = i, 0
    yield records[start:]


def _client_code(code: ErrorCode) -> ErrorCode:
    """Translate the error of a log into one that clients of a coordinator handle."""
    if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
        return ErrorCode.NOT_COORDINATOR
    if code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if code in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.REQUEST_TIMED_OUT):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code


def _log_events(events: Sequence[LoggedEvent]) -> None:
    for event in events:
        log.info(event.text, **event.fields)
