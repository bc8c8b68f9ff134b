"""A log against a plain list: whatever is done to both, they must agree, also after stops and kills."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from klamm.records import iter_batches

from .conftest import NOW, Home, append_end_txn_marker, batch, from_producer

CONFIG = {"segment_bytes": 900, "index_interval_bytes": 150}


class LogAgainstList(RuleBasedStateMachine):
    """`self.model` holds (base offset, values, sequence or None) of every batch the log must have.

    `self.transactions` holds what producer 9 did: (offset, number of records, what), what being one of "write",
    "commit", "abort".
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.home = Home(self.folder)
        self.log = self.home.open(**CONFIG)
        self.model: list[tuple[int, list[bytes], int | None]] = []
        self.transactions: list[tuple[int, int, str]] = []
        self.start = 0
        self.epoch = 0
        self.clock = NOW
        self.made = 0

    def teardown(self) -> None:
        self.log.close(clean=False)
        shutil.rmtree(self.folder)

    @property
    def end(self) -> int:
        return self.model[-1][0] + len(self.model[-1][1]) if self.model else self.start

    @property
    def next_sequence(self) -> int:
        sequences = [(s + len(v)) for _, v, s in self.model if s is not None]
        return sequences[-1] if sequences else 0

    def new_batch(self, count: int, idempotent: bool):
        self.made += 1
        self.clock += 1
        value = b"%06d-" % self.made
        sequence = self.next_sequence if idempotent else None
        if idempotent:
            view = from_producer(sequence, count, timestamp=self.clock, value=value)
        else:
            view = batch(count, timestamp=self.clock, value=value)
        self.model.append((self.end, [value + b"%d" % i for i in range(count)], sequence))
        return view

    @rule(groups=st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=12))
    def append(self, groups: list[tuple[int, bool]]) -> None:
        for count, idempotent in groups:
            expected = self.end
            assert self.log.stage(self.new_batch(count, idempotent), self.epoch, self.clock) == expected
        self.log.write_staged()

    @precondition(lambda self: any(s is not None for _, _, s in self.model))
    @rule(which=st.integers(0, 4))
    def retry(self, which: int) -> None:
        known = self.log.producers.entries.get(7)
        sent = [(o, v, s) for o, v, s in self.model if s is not None]
        if known is None or which >= min(len(sent), len(known.batches)):
            return
        offset, values, sequence = sent[-1 - which]
        assert self.log.append_as_leader(from_producer(sequence, len(values)), self.epoch, self.clock) == offset

    @rule(count=st.integers(1, 3))
    def write_in_transaction(self, count: int) -> None:
        sequence = sum(n for _, n, what in self.transactions if what == "write")
        self.made += 1
        value = b"%06d-" % self.made
        view = from_producer(sequence, count, producer_id=9, transactional=True, timestamp=self.clock, value=value)
        offset = self.end
        self.model.append((offset, [value + b"%d" % i for i in range(count)], None))
        self.transactions.append((offset, count, "write"))
        assert self.log.append_as_leader(view, self.epoch, self.clock) == offset

    @precondition(lambda self: self.transactions)
    @rule(committed=st.booleans())
    def end_transaction(self, committed: bool) -> None:
        offset = append_end_txn_marker(
            self.log, 9, 0, committed=committed, coordinator_epoch=1, leader_epoch=self.epoch, now_ms=self.clock
        )
        assert offset == self.end
        self.model.append((offset, [b"\0\0\0\0\0\1"], None))
        self.transactions.append((offset, 1, "commit" if committed else "abort"))

    @rule()
    def replicate(self) -> None:
        self.log.advance_high_watermark(self.log.log_end_offset)
        first, _ = self.judge_transactions()
        if self.log.log_start_offset == 0:
            assert self.log.last_stable_offset == (self.end if first is None else first)

    def judge_transactions(self) -> tuple[int | None, list[tuple[int, int]]]:
        """The first offset of the open transaction, and (first, last) of the aborted ones."""
        first, aborted = None, []
        for offset, _, what in self.transactions:
            if what == "write":
                first = offset if first is None else first
            elif first is not None:
                if what == "abort":
                    aborted.append((first, offset))
                first = None
        return first, aborted

    @rule()
    def roll(self) -> None:
        self.log.roll(self.clock)

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        target = data.draw(st.integers(self.log.log_start_offset, self.end))
        self.log.truncate_to(target)
        self.model = [entry for entry in self.model if entry[0] + len(entry[1]) <= target]
        self.transactions = [entry for entry in self.transactions if entry[0] + entry[1] <= target]
        self.start = min(target, self.start)
        self.log.advance_high_watermark(self.log.log_end_offset)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.log.advance_high_watermark(self.log.log_end_offset)
        self.log.delete_records(data.draw(st.integers(self.log.log_start_offset, self.end)))

    @rule()
    def stop_and_start(self) -> None:
        start = self.log.log_start_offset
        self.log.close()
        self.log = self.home.open(clean=True, log_start_offset=start, **CONFIG)

    @rule(synced=st.booleans())
    def kill_and_start(self, synced: bool) -> None:
        start = self.log.log_start_offset
        point = self.log.log_end_offset if synced else 0
        old, self.home = self.home, self.home.crash()
        self.log.close(clean=False)
        shutil.rmtree(old.path)
        self.log = self.home.open(log_start_offset=start, recovery_point=point, **CONFIG)

    @rule(data=st.data(), max_bytes=st.integers(0, 2000))
    def read_somewhere(self, data: st.DataObject, max_bytes: int) -> None:
        if self.log.log_start_offset >= self.end:
            return
        offset = data.draw(st.integers(self.log.log_start_offset, self.end - 1))
        piece = self.log.read(offset, max_bytes, self.end)
        views = list(iter_batches(piece.read()))
        assert views[0].base_offset <= offset <= views[0].last_offset
        assert len(views) == 1 or piece.length <= max_bytes
        expected = {o: v for o, v, _ in self.model}
        for view in views:
            assert [r.value for r in view.decode()] == expected[view.base_offset]

    @invariant()
    def agree(self) -> None:
        log = self.log
        assert log.log_end_offset == log.next_offset == self.end
        offset = log.log_start_offset
        while offset < self.end:
            piece = log.read(offset, 1 << 20, self.end)
            for view in iter_batches(piece.read()):
                view.check_crc()
                offset = view.next_offset
        assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset
        if log.log_start_offset == 0:
            known = log.producers.entries.get(7)
            assert (known.next_sequence if known else 0) == self.next_sequence
            first, aborted = self.judge_transactions()
            assert list(log.producers.open_transactions()) == ([] if first is None else [first])
            assert [(t.first_offset, t.last_offset) for t in log.aborted_transactions(0, 10**9)] == aborted


LogAgainstList.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestLogAgainstList = LogAgainstList.TestCase
