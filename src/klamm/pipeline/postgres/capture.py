"""The loop that captures a table: its rows once, then its changes, batch by batch.

The order makes it exactly once: records and position are committed together, then the slot is advanced. A process that
ends between the two reads the same changes again, and skips those up to the position. The rows of the snapshot are one
transaction: until it is committed the topic has none of them, and a process that ends before begins with a new slot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from klamm.client.errors import KafkaError
from klamm.model.errors import ConfigError, KlammError
from klamm.pipeline.polled_query import POLL_S, PolledQuery, PolledWriter
from klamm.pipeline.postgres.capture_options import CaptureOptions
from klamm.pipeline.postgres.change_topic import ChangeTopic
from klamm.pipeline.postgres.core.capture_position import (
    SNAPSHOT,
    STREAMING,
    CapturePosition,
    CaptureStep,
    choose_step,
)
from klamm.pipeline.postgres.core.change_records import (
    READ,
    ChangeAssembler,
    ChangeOrigin,
    ChangeRecord,
    RowChange,
    TransactionEnd,
    Truncation,
    encode_change,
    encode_deletion,
    encode_json,
)
from klamm.pipeline.postgres.core.pgoutput import RelationMessage, format_lsn, parse_message
from klamm.pipeline.postgres.database import PostgresTable, now_us
from klamm.pipeline.postgres.live_keys import LiveKeys

_log = logging.getLogger(__name__)
_REPORT_S: Final = 1.0
_IDLE_STORE_S: Final = 10.0
"""How often the slot is advanced while other tables change: without that PostgreSQL would keep its log."""
_IDLE_REPORT_S: Final = 5.0


class _StoppedError(Exception):
    """Ends a snapshot on request; the next start begins it again."""


class PostgresCapture(PolledQuery):
    """A running capture."""

    def __init__(
        self, name: str, table: PostgresTable, topic: ChangeTopic, *, once: bool, interval_s: float = POLL_S
    ) -> None:
        super().__init__(name, once=once, interval_s=interval_s)
        self._table = table
        self._topic = topic
        self._position = CapturePosition(SNAPSHOT, table.options.slot)
        self._seen_lsn = 0
        self._stored_at = time.monotonic()
        self._live_keys = LiveKeys(topic)
        self._has_transaction = False
        self._reported_at = 0.0

    def interrupt(self) -> None:
        """Cancel the statement that runs in PostgreSQL."""
        self._table.cancel()

    def wrap_error(self, error: Exception) -> Exception:
        """Return an error that may be shown; errors of PostgreSQL have secrets of the URL masked."""
        return error if isinstance(error, KlammError | ConfigError | KafkaError) else self._table.wrap_error(error)

    def run_loop(self) -> None:
        """Capture until stopped, or with `once` up to where the log ends at the start."""
        try:
            self._begin()
            self._follow()
        except _StoppedError:
            _log.info("snapshot stopped source=%s", self.name)
        finally:
            self._topic.close()
            self._table.close()

    def _begin(self) -> None:
        """Recover the position, or capture the rows of the table."""
        stored = self._topic.open()
        topic_id = self._topic.topic_id()
        options = self._table.options
        database = self._table.state()
        step = choose_step(stored, options.slot, self._topic.topic, topic_id, database)
        if stored is not None and step is CaptureStep.CONTINUE:
            self._position = stored
            # A process that ended before this step has left the slot behind.
            self._table.advance(stored.lsn)
            return
        self._table.ensure_publication()
        self._position = CapturePosition(
            SNAPSHOT, options.slot, topic_id=topic_id, system=database.system, batch=stored.batch if stored else -1
        )
        # Before the slot exists: a slot without a position would be taken for one of another reader.
        self._topic.store(self._position)
        if step is CaptureStep.SNAPSHOT_AGAIN:
            self._table.drop_slots((options.slot,))
        self._take_snapshot()
        # After the snapshot: an earlier generation's slot is of no use once this one has all rows.
        self._table.drop_slots(options.older_slots)

    def _take_snapshot(self) -> None:
        started = time.monotonic()
        self.busy = True
        try:
            with self._table.new_slot() as slot:
                self._begin_transaction()
                rows = self._send_rows(slot.snapshot, slot.lsn) if self._table.options.with_rows else 0
            self._commit(replace(self._position, phase=STREAMING, lsn=slot.lsn, reached=slot.lsn))
        finally:
            self._end_batch()
        _log.info("snapshot done source=%s rows=%d lsn=%s", self.name, rows, format_lsn(slot.lsn))
        self._report_batch(rows, started, f"snapshot of {rows} rows done")

    def _send_rows(self, snapshot: str, lsn: int) -> int:
        """Send the rows of the snapshot, and deletions of keys that the topic has from before and the table has not."""
        # Read first: the consumer would not see the records of this transaction, but would read past them.
        stale = self._topic.live_keys()
        origin, estimate, read_us = self._table.origin(), self._table.estimate_rows(), now_us()
        rows, reported = 0, time.monotonic()
        for row in self._table.snapshot_rows(snapshot):
            key = {name: row[name] for name in self._table.options.key}
            change = RowChange(READ, key, None, row, lsn=lsn, commit_us=read_us)
            self._topic.send(encode_change(change, origin, now_us() // 1000))
            stale.pop(encode_json(key), None)
            rows += 1
            if time.monotonic() - reported > _REPORT_S:
                reported = time.monotonic()
                of = f" of about {estimate}" if estimate else ""
                self.report(self._position.batch + 1, 0, None, detail=f"snapshot: {rows}{of} rows")
                if self.stopping.is_set():
                    raise _StoppedError
        for key_bytes in stale:
            self._topic.send(encode_deletion(key_bytes, origin, lsn, read_us, now_us() // 1000))
        return rows

    def _follow(self) -> None:
        last_lsn = self._table.current_lsn() if self.once else None
        while not self.stopping.is_set():
            upto = self._table.current_lsn()
            if upto != self._seen_lsn:
                complete = self._capture_changes(upto)
                # Other transactions may have changes up to the same position.
                self._seen_lsn = upto if complete else 0
            if last_lsn is not None and self._seen_lsn >= last_lsn:
                return
            if self._seen_lsn:
                self._report_idle()
                self.stopping.wait(self.interval_s)

    def _capture_changes(self, upto: int) -> bool:
        """Capture one batch; return whether the slot has no more changes up to a position."""
        started = time.monotonic()
        self.busy = True
        try:
            messages, rows, position = self._send_changes(upto)
            complete = messages < self._table.options.batch_size
            if complete:
                position = replace(position, reached=max(upto, position.lsn))
            if rows:
                self._commit(position)
                self._table.advance(position.lsn)
            elif complete:
                self._mark_idle(position)
            else:
                # Only other tables have changed: without this the next batch would read the same changes again.
                self._pass_over(replace(position, reached=max(position.reached, position.lsn)))
        finally:
            self._end_batch()
        if rows:
            self._report_batch(rows, started)
        return complete

    def _begin_transaction(self) -> None:
        self._topic.begin()
        self._has_transaction = True

    def _end_batch(self) -> None:
        """Abort the transaction of a batch that failed."""
        if self._has_transaction:
            self._topic.abort()
        self._has_transaction = False
        self._live_keys.forget()
        self.busy = False

    def _send_changes(self, upto: int) -> tuple[int, int, CapturePosition]:
        """Send the changes of whole transactions; return the numbers of messages and rows, and the new position."""
        table, options = self._table, self._table.options
        assembler = ChangeAssembler(
            options.schema, options.table, options.key, table.catalog(), after_lsn=self._position.lsn
        )
        origin, position = table.origin(), self._position
        messages = rows = 0
        for lsn, data in table.changes(upto):
            messages += 1
            message = parse_message(data)
            if message is None:
                continue
            if isinstance(message, RelationMessage):
                # The table may have a column of a type that was created since.
                self._check_types(assembler, message)
            for change in assembler.take(lsn, message):
                if isinstance(change, TransactionEnd):
                    position = replace(position, lsn=change.end_lsn)
                    continue
                if not self._has_transaction:
                    self._begin_transaction()
                for record in self._records(change, origin):
                    self._live_keys.add(record)
                    self._topic.send((record,))
                rows += 1
        return messages, rows, position

    def _check_types(self, assembler: ChangeAssembler, relation: RelationMessage) -> None:
        known = self._table.options
        if (relation.schema, relation.name) == (known.schema, known.table):
            self._table.forget_types()
            assembler.catalog = self._table.catalog()

    def _records(self, change: RowChange | Truncation, origin: ChangeOrigin) -> Iterator[ChangeRecord]:
        now_ms = now_us() // 1000
        if isinstance(change, Truncation):
            for key in self._live_keys.read_all():
                yield from encode_deletion(key, origin, change.lsn, change.commit_us, now_ms)
            return
        if change.missing:
            # The log has no unchanged large values: the row has them, as they are now.
            change = change.complete(self._table.current_values(change.key, change.missing))
        yield from encode_change(change, origin, now_ms)

    def _commit(self, position: CapturePosition) -> None:
        self._position = replace(position, batch=position.batch + 1)
        self._topic.commit(self._position)
        self._has_transaction = False
        self._stored_at = time.monotonic()

    def _mark_idle(self, position: CapturePosition) -> None:
        """Store from time to time that the table has no changes up to a position, and advance the slot to it."""
        is_due = self.once or time.monotonic() - self._stored_at >= _IDLE_STORE_S
        if position.reached > self._position.reached and is_due:
            self._pass_over(position)

    def _pass_over(self, position: CapturePosition) -> None:
        """Advance to a position up to which the table has no changes."""
        self._topic.store(position)
        self._position = position
        self._stored_at = time.monotonic()
        # After it was stored: a slot that is ahead of the position would look as if another reader used it.
        self._table.advance(position.reached)

    def _report_idle(self) -> None:
        """Report the slot's lag from time to time: it grows while other tables change."""
        if time.monotonic() - self._reported_at >= _IDLE_REPORT_S:
            self._report_batch(0, None)

    def _report_batch(self, rows: int, started: float | None, detail: str | None = None) -> None:
        took_ms = None if started is None else max(int((time.monotonic() - started) * 1000), 1)
        self._reported_at = time.monotonic()
        lag = self._table.lag_bytes()
        sources = [{"description": "postgres", "endOffset": format_lsn(self._position.lsn)}]
        self.report(self._position.batch, rows, took_ms, sources=sources, detail=detail, slot_lag_bytes=lag)


class CaptureWriter(PolledWriter):
    """Starts a capture for the engine."""

    def __init__(self, options: CaptureOptions, topic: ChangeTopic) -> None:
        super().__init__()
        self._options = options
        self._topic = topic

    def start(self) -> PostgresCapture:
        """Start capturing."""
        table = PostgresTable(self._options)
        return PostgresCapture(self.name, table, self._topic, once=self.once, interval_s=self.interval_s).start()
