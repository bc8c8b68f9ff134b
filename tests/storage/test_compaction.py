"""Compaction: what it decides, what it leaves of a log, and what no crash can take."""

import os
import shutil
from concurrent.futures import Future
from pathlib import Path

import pytest

from klamm.model.clock import ManualClock
from klamm.model.errors import StorageFailure
from klamm.records import build_batch, iter_batches
from klamm.storage import CleanerConfig, LogConfig, LogManager, StorageConfig
from klamm.storage.compaction_policy import CleanedTransactions, ClosedSegment, group_segments, plan_compaction
from klamm.storage.txn_index import AbortedTxn

from .conftest import NOW, PRODUCER, FaultyDisk, ReadLog, append_end_txn_marker, no_space

DAY = 24 * 3600 * 1000
COMPACT = frozenset({"compact"})


class Inline:
    """An executor that does its work on the spot."""

    def submit(self, work, *args):
        future: Future = Future()
        try:
            future.set_result(work(*args))
        except Exception as error:  # noqa: BLE001
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True) -> None:
        pass


class CompactionNode:
    """A manager that cleans on the spot, on a clock of our own."""

    def __init__(self, folder: Path, *, disk=None, buffer: int = 1 << 20, threads: int = 1, **config) -> None:
        self.folder = folder
        self.clock = ManualClock(NOW)
        cleaner = CleanerConfig(dedupe_buffer_bytes=buffer, threads=threads, backoff_ms=1000)
        self.manager = LogManager(
            StorageConfig(log_dirs=(str(folder),), cleaner=cleaner), clock=self.clock, disk=disk or FaultyDisk()
        )
        self.manager.cleaner._threads = Inline()
        self.config = LogConfig(
            **{"segment_bytes": 500, "cleanup_policy": COMPACT, "index_interval_bytes": 100, **config}
        )
        # As the node does: when logs are opened, it is not known yet which topics are compacted.
        self.manager.start("MkU3OEVBNTcwNTJENDM2Qg", 1, format_empty=True)
        self.log = self.manager.create("t", 0, b"t" * 16, self.config)

    def put(self, *rows: tuple[bytes, bytes | None], **fields) -> int:
        records = [(self.clock.now_ms(), key, value, ()) for key, value in rows]
        offset = self.log.append_as_leader(memoryview(build_batch(records, **fields)), 0, self.clock.now_ms())
        self.log.advance_high_watermark(self.log.log_end_offset)
        return offset

    def roll(self) -> None:
        self.log.roll(self.clock.now_ms())

    def clean(self) -> None:
        """One round, whether it is worth it or not."""
        cleaner = self.manager.cleaner
        self.log.flush()
        assert cleaner.start(self.log, cleaner.plan(self.log, self.clock.now_ms()), self.clock.now_ms())
        [running] = cleaner._running
        cleaner.step()
        running.future.result()

    def rows(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(r.offset, r.key, r.value) for view in self.batches() if not view.is_control for r in view.decode()]

    def batches(self) -> list:
        log, offset, views = self.log, self.log.log_start_offset, []
        while offset < log.log_end_offset:
            piece = log.read(offset, 1 << 20, log.log_end_offset)
            if piece is None:
                break
            for view in iter_batches(piece.read()):
                view.check_crc()
                views.append(view)
                offset = view.next_offset
        return views

    def names(self) -> set[str]:
        return set(os.listdir(self.log.path))

    def reopened(self, *, killed: bool = False) -> "CompactionNode":
        folder = self.folder
        if killed:
            folder = self.folder.with_name(self.folder.name + "-killed")
            shutil.copytree(self.folder, folder)
        self.manager.close(clean=not killed)
        return CompactionNode(folder, **{f: getattr(self.config, f) for f in self.config.__slots__})


@pytest.fixture
def node(tmp_path: Path):
    node = CompactionNode(tmp_path / "data")
    yield node
    node.manager.close(clean=False)


# Deciding


def closed(*ages: int, size: int = 100) -> list[ClosedSegment]:
    """Segments of ten records each, as many days old."""
    return [ClosedSegment(10 * i, 10 * i + 10, size, 8, NOW - a * DAY, NOW - a * DAY) for i, a in enumerate(ages)]


def plan(segments, *, cleaned=None, start=0, stable=1000, end=1000, **config):
    return plan_compaction(
        segments,
        LogConfig(**config),
        cleaned_offset=cleaned,
        log_start_offset=start,
        last_stable_offset=stable,
        log_end_offset=end,
        now_ms=NOW,
    )


def test_a_round_reaches_from_the_last_one_to_the_active_segment():
    first = plan(closed(3, 2, 1))
    assert (first.first_dirty_offset, first.end_offset, first.dirty_bytes, first.clean_bytes) == (0, 30, 300, 0)
    later = plan(closed(3, 2, 1), cleaned=20)
    assert (later.first_dirty_offset, later.end_offset, later.dirty_ratio) == (20, 30, 1 / 3)
    assert not later.worthwhile(LogConfig())
    assert later.worthwhile(LogConfig(min_cleanable_dirty_ratio=0.3))
    assert plan(closed(3, 2, 1), cleaned=5, start=15).first_dirty_offset == 15, "the start has moved on"
    assert plan(closed(3, 2, 1), cleaned=50, end=40).first_dirty_offset == 0, "the log was cut since"
    assert not plan([]).worthwhile(LogConfig(min_cleanable_dirty_ratio=0))


def test_what_may_still_be_aborted_or_is_young_is_left_alone():
    assert plan(closed(3, 2, 1), stable=25).end_offset == 20
    assert plan(closed(3, 2, 1), stable=20).end_offset == 20
    assert plan(closed(3, 2, 1), min_compaction_lag_ms=DAY + DAY // 2).end_offset == 20
    assert plan(closed(1, 1, 1), cleaned=20, min_compaction_lag_ms=2 * DAY).end_offset == 20
    assert plan(closed(3, 2, 1), cleaned=20, stable=10).dirty_bytes == 0


def test_records_that_wait_too_long_make_a_round_worthwhile():
    waiting = plan(closed(9, 3, 3), cleaned=10, max_compaction_lag_ms=2 * DAY)
    assert waiting.overdue
    assert waiting.worthwhile(LogConfig(min_cleanable_dirty_ratio=1))
    assert not plan(closed(9, 3, 3), cleaned=10, max_compaction_lag_ms=4 * DAY).overdue
    assert LogConfig(cleanup_policy=COMPACT, max_compaction_lag_ms=5, segment_ms=10).roll_ms == 5


def test_small_neighbours_become_one_segment():
    assert group_segments(closed(1, 1, 1, 1, 1), LogConfig(segment_bytes=250)) == [[0, 1], [2, 3], [4]]
    assert group_segments(closed(1, 1, 1), LogConfig(segment_index_bytes=16)) == [[0, 1], [2]]
    far = [closed(1)[0], closed(1)[0]._replace(base_offset=2**31, end_offset=2**31 + 5)]
    assert group_segments(far, LogConfig()) == [[0], [1]], "a segment spans no more than 2^31 offsets"


def test_markers_wait_until_a_round_meets_no_data_of_their_transaction():
    txn = AbortedTxn(7, 3, 9, 10)
    first = CleanedTransactions([txn, txn])
    assert not first.is_aborted(7, 2)
    assert not first.marker_is_idle(7, 2, True)
    assert first.is_aborted(7, 3)
    assert not first.is_aborted(8, 5), "another producer's transaction commits"
    assert not first.marker_is_idle(7, 9, False)
    assert not first.marker_is_idle(8, 10, True)
    assert first.retained == [txn]
    second = CleanedTransactions([txn])
    assert second.marker_is_idle(7, 9, False)
    assert second.marker_is_idle(8, 10, True)
    assert second.retained == []


# Doing


def test_the_newest_value_of_every_key_stays_under_its_offset(node: CompactionNode):
    for i in range(40):
        node.put((b"key%d" % (i % 4), b"value%d" % i))
    node.roll()
    before = node.log.size_bytes
    node.clean()
    assert node.rows() == [(i, b"key%d" % (i % 4), b"value%d" % i) for i in range(36, 40)]
    assert node.log.size_bytes < before / 5
    assert (node.log.log_start_offset, node.log.log_end_offset) == (0, 40)
    assert node.log.cleaned_offset == 40
    assert not {name for name in node.names() if name.endswith((".cleaned", ".swap"))}


@pytest.mark.parametrize("killed", [False, True])
def test_a_compacted_log_opens_again_as_it_was(node: CompactionNode, killed: bool):
    for i in range(60):
        node.put((b"key%d" % (i % 7), b"value%d" % i))
    node.clean()
    expected = node.rows()
    again = node.reopened(killed=killed)
    assert again.rows() == expected
    assert again.log.cleaned_offset == node.log.cleaned_offset
    assert again.log.log_end_offset == 60
    again.manager.close()


def test_every_offset_can_be_asked_for_afterwards(node: CompactionNode):
    for i in range(60):
        node.put((b"key%d" % (i * i % 23), b"value%d" % i))
    node.clean()
    offsets = [row[0] for row in node.rows()]
    for offset in range(60):
        piece = node.log.read(offset, 1000, 60)
        first = next(iter_batches(piece.read()))
        expected = min(o for o in offsets if o >= offset)
        assert first.base_offset <= expected <= first.last_offset


def test_readers_keep_what_they_had_and_times_are_found(node: CompactionNode):
    for i in range(40):
        node.clock.advance(1000)
        node.put((b"key%d" % (i % 4), b"value%d" % i))
    old = node.log.read(0, 10_000, 40)
    before = old.read()
    node.roll()
    node.clean()
    assert old.read() == before
    assert node.log.offset_for_timestamp(NOW).offset == 36
    assert node.log.offset_for_timestamp(NOW + 38_500).offset == 38
    assert node.log.offset_of_max_timestamp().offset == 39


def test_the_manager_cleans_what_is_dirty_enough_and_merges_small_segments(node: CompactionNode):
    for i in range(30):
        node.put((b"key%d" % (i % 3), b"value%d" % i))
    count = len(node.log.segments)
    assert count > 4
    for _ in range(2):
        node.clock.advance(1000)
        node.log.flush()
        node.manager.tick()
        node.manager.tick()
        node.put(*[(b"key0", b"more")] * 8)
        node.roll()
    node.clean()
    assert len(node.log.segments) == 2
    assert (node.folder / "cleaner-offset-checkpoint").read_text() == f"0\n1\nt 0 {node.log.cleaned_offset}\n"
    size = node.log.size_bytes
    node.clock.advance(1000)
    node.manager.tick()
    assert node.log.size_bytes == size, "it is clean"


def test_compressed_batches_are_opened_and_closed_again(tmp_path: Path):
    for codec in (1, 2, 3, 4):
        node = CompactionNode(tmp_path / str(codec))
        for i in range(30):
            node.put((b"a", b"1" * 50), (b"key%d" % (i % 3), b"value%d" % i), codec=codec)
        node.roll()
        node.clean()
        assert [row[:2] for row in node.rows()] == [(55, b"key0"), (57, b"key1"), (58, b"a"), (59, b"key2")]
        assert {view.codec for view in node.batches() if view.record_count} == {codec}
        node.manager.close()


@pytest.mark.parametrize("codec", [0, 4])
def test_a_tombstone_stays_readable_for_its_time_and_then_goes(tmp_path: Path, codec: int):
    node = CompactionNode(tmp_path, delete_retention_ms=DAY)
    node.put((b"gone", b"1"), (b"stays", b"2"), codec=codec)
    node.put((b"gone", None), codec=codec)
    node.roll()
    node.put((b"x", b"active"))
    node.clean()
    assert node.rows() == [(1, b"stays", b"2"), (2, b"gone", None), (3, b"x", b"active")]
    [tombstone] = [view for view in node.batches() if view.base_offset == 2]
    assert (tombstone.has_delete_horizon, tombstone.base_timestamp) == (True, NOW + DAY)
    assert tombstone.decode()[0].timestamp == NOW, "its own time is not lost"
    node.clock.advance(DAY - 1)
    node.clean()
    assert len(node.rows()) == 3
    node.clock.advance(1)
    node.clean()
    assert node.rows() == [(1, b"stays", b"2"), (3, b"x", b"active")]
    assert node.log.read(2, 1000, 4) is not None
    node.manager.close()


def test_the_last_batch_of_a_producer_leaves_its_sequence(node: CompactionNode):
    for i in range(5):
        node.put((b"k", b"%d" % i), producer_id=7, producer_epoch=1, base_sequence=i)
    node.put((b"k", b"newer"))
    node.roll()
    node.clean()
    assert [row[2] for row in node.rows()] == [b"newer"]
    [empty] = [view for view in node.batches() if view.record_count == 0]
    assert (empty.producer_id, empty.producer_epoch, empty.last_sequence, empty.base_offset) == (7, 1, 4, 4)
    for name in list(node.names()):
        if name.endswith(".snapshot"):
            os.unlink(os.path.join(node.log.path, name))
    again = node.reopened(killed=True)
    assert again.log.producers.entries[PRODUCER].next_sequence == 5
    assert again.put((b"k", b"4"), producer_id=7, producer_epoch=1, base_sequence=4) == 4, "a duplicate is known"
    assert again.put((b"k", b"5"), producer_id=7, producer_epoch=1, base_sequence=5) == 6
    again.manager.close()


def end(node: CompactionNode, producer_id: int, *, committed: bool) -> int:
    offset = append_end_txn_marker(
        node.log, producer_id, 0, committed=committed, coordinator_epoch=1, leader_epoch=0, now_ms=node.clock.now_ms()
    )
    node.log.advance_high_watermark(node.log.log_end_offset)
    return offset


def in_transaction(node: CompactionNode, sequence: int, *rows, producer_id: int = 9) -> int:
    return node.put(*rows, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True)


def test_aborted_records_go_and_their_marker_follows_when_nobody_needs_it(tmp_path: Path):
    node = CompactionNode(tmp_path, delete_retention_ms=DAY)
    node.put((b"a", b"old"), (b"b", b"old"))
    in_transaction(node, 0, (b"a", b"aborted"))
    in_transaction(node, 1, (b"c", b"aborted"))
    abort = end(node, 9, committed=False)
    in_transaction(node, 2, (b"b", b"committed"))
    commit = end(node, 9, committed=True)
    in_transaction(node, 3, (b"last", b"one"))
    end(node, 9, committed=True)
    node.roll()
    node.put((b"x", b"active"))
    node.clean()
    assert node.rows() == [(0, b"a", b"old"), (5, b"b", b"committed"), (7, b"last", b"one"), (9, b"x", b"active")]
    assert [t.first_offset for t in node.log.aborted_transactions(0, 10)] == [2], "this round has met its data"
    assert {v.base_offset for v in node.batches() if v.is_control} == {abort, commit, 8}
    node.clean()
    assert node.log.aborted_transactions(0, 10) == []
    markers = {v.base_offset: v for v in node.batches() if v.is_control}
    assert markers[abort].has_delete_horizon
    assert not markers[commit].has_delete_horizon, "its data is still there"
    node.put((b"b", b"newest"))
    node.roll()
    node.clock.advance(DAY)
    node.clean()
    assert abort not in {v.base_offset for v in node.batches()}
    assert (0, b"a", b"old") in node.rows()
    again = node.reopened(killed=True)
    assert again.log.last_stable_offset == again.log.high_watermark
    assert not again.log.producers.open_transactions()
    again.manager.close()


def test_an_open_transaction_holds_compaction_back(node: CompactionNode):
    node.put((b"a", b"1"))
    node.roll()
    in_transaction(node, 0, (b"a", b"2"))
    node.roll()
    node.put((b"a", b"3"))
    node.roll()
    node.clean()
    assert [row[2] for row in node.rows()] == [b"1", b"2", b"3"]
    end(node, 9, committed=True)
    node.clean()
    assert [row[2] for row in node.rows()] == [b"3"]


def test_a_small_table_makes_many_small_rounds(tmp_path: Path):
    node = CompactionNode(tmp_path, buffer=24 * 20)
    for i in range(200):
        node.put((b"key%03d" % (i % 50), b"value%d" % i))
    node.roll()
    rounds = 0
    while node.log.cleaned_offset != 200:
        before = node.log.cleaned_offset or 0
        node.clean()
        assert node.log.cleaned_offset > before
        rounds += 1
    assert rounds > 4
    node.clean()
    newest = {row[1]: row for row in node.rows()}
    assert newest == {b"key%03d" % (i % 50): (i, b"key%03d" % (i % 50), b"value%d" % i) for i in range(150, 200)}
    node.manager.close()


def test_batches_larger_than_the_buffer_are_read_whole(node: CompactionNode):
    big = CompactionNode(node.folder.with_name("big"), segment_bytes=10_000_000)
    for i in range(3):
        big.put((b"k", b"x" * 700_000), (b"k%d" % i, b"y" * 700))
    big.roll()
    big.clean()
    assert [row[:2] for row in big.rows()] == [(1, b"k0"), (3, b"k1"), (4, b"k"), (5, b"k2")]
    big.manager.close()


def test_compaction_and_deletion_go_together(tmp_path: Path):
    node = CompactionNode(tmp_path, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=DAY)
    for i in range(20):
        node.put((b"key%d" % (i % 3), b"value%d" % i))
    node.roll()
    node.clean()
    node.log.flush()
    node.clock.advance(2 * DAY)
    node.put((b"fresh", b"1"))
    node.log.roll(node.clock.now_ms())
    node.log.flush()
    node.log.apply_retention(node.clock.now_ms())
    assert node.rows() == [(20, b"fresh", b"1")]
    node.clean()
    assert node.rows() == [(20, b"fresh", b"1")]
    node.manager.close()


# When things go wrong


def test_damage_is_reported_with_its_place_and_nothing_is_changed(node: CompactionNode, read_log: ReadLog):
    for i in range(20):
        node.put((b"key%d" % (i % 3), b"value%d" % i))
    path = node.log.segments[0].path(".log")
    node.log.flush()
    with open(path, "r+b") as file:
        file.seek(100 + 80)
        byte = file.read(1)
        file.seek(100 + 80)
        file.write(bytes([byte[0] ^ 1]))
    bases = node.log.segments.bases
    node.clock.advance(1000)
    node.manager.tick()
    node.manager.tick()
    assert "compaction stopped" in read_log()
    assert path in read_log()
    assert node.log.segments.bases == bases
    assert not {name for name in node.names() if name.endswith((".cleaned", ".swap"))}


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path):
    disk = FaultyDisk()
    node = CompactionNode(tmp_path, disk=disk)
    for i in range(30):
        node.put((b"key%d" % (i % 3), b"value%d" % i))
    before = node.rows()

    def full(path, flags):
        if flags & os.O_CREAT and path.endswith(ending):
            no_space()

    disk.fail["open"] = full
    for ending in (".log.cleaned", ".timeindex.cleaned", ".tmp"):  # noqa: B007 - `full` looks at it
        with pytest.raises((OSError, StorageFailure), match="No space"):
            node.clean()
        assert not {name for name in node.names() if name.endswith((".cleaned", ".swap"))}
    disk.fail.clear()
    assert node.rows() == before
    assert not node.log.failed
    node.clean()
    assert len(node.rows()) < len(before)
    node.manager.close()


def test_a_crash_between_any_two_renames_loses_nothing(tmp_path: Path):
    """Copies the folder before every rename and removal of a round, and opens each copy."""
    copies: list[Path] = []

    class Watching(FaultyDisk):
        def rename(self, source, target):
            self.copy()
            os.rename(source, target)

        def unlink(self, path):
            self.copy()
            os.unlink(path)

        def copy(self):
            if self.watched is not None:
                copies.append(tmp_path / f"copy-{len(copies)}")
                shutil.copytree(self.watched, copies[-1])

        watched: Path | None = None

    disk = Watching()
    node = CompactionNode(tmp_path / "data", disk=disk)
    for i in range(30):
        node.put((b"key%d" % (i % 4), b"value%d" % i))
    in_transaction(node, 0, (b"key0", b"aborted"))
    end(node, 9, committed=False)
    node.roll()
    node.manager.checkpoint()
    newest = {key: value for _, key, value in node.rows() if value != b"aborted"}
    disk.watched = node.folder
    node.clean()
    disk.watched = None
    after = node.rows()
    assert len(copies) > 10
    for copy in copies:
        again = CompactionNode(copy)
        rows = [row for row in again.rows() if row[2] != b"aborted"]
        assert {key: value for _, key, value in rows} == newest
        assert again.log.log_end_offset == node.log.log_end_offset
        assert not {name for name in again.names() if name.endswith((".cleaned", ".swap", ".deleted"))}
        again.clean()
        assert again.rows() == after
        again.manager.close()
    node.manager.close()


def test_a_log_that_is_cut_or_deleted_meanwhile_is_let_go(tmp_path: Path):
    for change in ("truncate", "delete"):
        node = CompactionNode(tmp_path / change)
        for i in range(30):
            node.put((b"key%d" % (i % 3), b"value%d" % i))
        cleaner = node.manager.cleaner
        name_swap = cleaner._name_swap

        def meddle(log, job, group, node=node, change=change, name_swap=name_swap):
            name_swap(log, job, group)
            if change == "truncate":
                log.truncate_to(4)
            else:
                node.manager.delete("t", 0)

        cleaner._name_swap = meddle
        now = node.clock.now_ms()
        node.log.flush()
        cleaner.start(node.log, cleaner.plan(node.log, now), now)
        cleaner.step()
        assert not cleaner.busy
        if change == "truncate":
            assert [row[0] for row in node.rows()] == [0, 1, 2, 3]
            assert not {name for name in node.names() if name.endswith((".cleaned", ".swap"))}
        node.manager.close()


def test_cleaning_in_a_real_thread_leaves_the_log_usable(tmp_path: Path):
    node = CompactionNode(tmp_path)
    for i in range(300):
        node.put((b"key%d" % (i % 5), b"value%d" % i))
    node.manager.cleaner.close()
    manager = LogManager(
        StorageConfig(log_dirs=(str(tmp_path / "other"),), cleaner=CleanerConfig(backoff_ms=0)), clock=node.clock
    )
    manager.start("MkU3OEVBNTcwNTJENDM2Qg", 1, format_empty=True)
    log = manager.create("t", 0, b"t" * 16, node.config)
    for i in range(300):
        batch = build_batch([(NOW, b"key%d" % (i % 5), b"value%d" % i, ())])
        log.append_as_leader(memoryview(batch), 0, NOW)
    log.advance_high_watermark(300)
    log.flush()
    manager.tick()
    assert manager.cleaner.busy
    while manager.cleaner.busy:
        manager.cleaner.step()
    node.log = log
    assert len(node.rows()) < 12
    assert {row[1] for row in node.rows()} == {b"key%d" % i for i in range(5)}
    manager.close()


def test_stopping_does_not_wait_for_a_round(tmp_path: Path):
    clock = ManualClock(NOW)
    manager = LogManager(
        StorageConfig(
            log_dirs=(str(tmp_path),), cleaner=CleanerConfig(backoff_ms=0, bytes_per_second=1.0, io_buffer_bytes=1)
        ),
        clock=clock,
    )
    manager.start("MkU3OEVBNTcwNTJENDM2Qg", 1, format_empty=True)
    config = LogConfig(segment_bytes=40_000, cleanup_policy=COMPACT)
    log = manager.create("t", 0, b"t" * 16, config)
    for i in range(100):
        batch = build_batch([(NOW, b"key%d" % (i % 5), b"v" * 1000, ())])
        log.append_as_leader(memoryview(batch), 0, NOW)
    log.advance_high_watermark(100)
    log.flush()
    manager.tick()
    assert manager.cleaner.busy
    manager.close()
    assert not [name for name in os.listdir(tmp_path / "t-0") if name.endswith(".cleaned")]
