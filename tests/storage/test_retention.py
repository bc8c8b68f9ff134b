"""What a log forgets, and what it never does."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.model.clock import ManualClock
from klamm.model.errors import ErrorCode, KlammError
from klamm.storage import LogConfig, LogManager, StorageConfig
from klamm.storage.retention_policy import SegmentFacts, segments_to_delete

from .conftest import NOW, Home, batch, read_all

DAY = 24 * 3600 * 1000


def decide(
    segments: list[SegmentFacts], *, start: int = 0, high_watermark: int = 10**9, now: int = NOW, **config
) -> int:
    return segments_to_delete(
        segments,
        LogConfig(**{"retention_ms": -1, **config}),
        size_bytes=sum(s.size for s in segments),
        log_start_offset=start,
        high_watermark=high_watermark,
        now_ms=now,
    )


def aged(*days: int, size: int = 100) -> list[SegmentFacts]:
    """Segments of ten records each, as many days old; the last is active."""
    return [SegmentFacts(10 * (i + 1), size, NOW - age * DAY, active=i == len(days) - 1) for i, age in enumerate(days)]


def test_segments_go_by_age_from_the_oldest_on():
    assert decide(aged(9, 8, 6, 8, 0), retention_ms=7 * DAY) == 2
    assert decide(aged(9, 8, 6, 8, 0), retention_ms=-1) == 0
    assert decide(aged(9, 8), retention_ms=7 * DAY) == 2, "the active one too: the log rolls first"


def test_segments_go_by_size_as_long_as_enough_stays():
    assert decide(aged(0, 0, 0, 0), retention_bytes=200) == 2
    assert decide(aged(0, 0, 0, 0), retention_bytes=201) == 1
    assert decide(aged(0, 0, 0, 0), retention_bytes=-1) == 0
    assert decide(aged(0, 0, 0, 0), retention_bytes=0) == 4


def test_the_policy_decides_what_counts():
    by_size_and_age = {"retention_bytes": 100, "retention_ms": DAY}
    assert decide(aged(2, 0, 0), cleanup_policy=frozenset({"delete", "compact"}), **by_size_and_age) == 2
    assert decide(aged(2, 0, 0), cleanup_policy=frozenset({"compact"}), **by_size_and_age) == 0
    assert decide(aged(2, 0, 0), cleanup_policy=frozenset(), **by_size_and_age) == 0
    assert decide(aged(2, 0, 0), cleanup_policy=frozenset({"compact"}), start=10) == 1
    assert decide(aged(2, 0, 0), cleanup_policy=frozenset(), start=29) == 2


def test_what_is_not_replicated_stays():
    assert decide(aged(9, 9, 9), retention_ms=DAY, high_watermark=19) == 1


def test_the_active_segment_stays_when_it_is_empty_or_merely_below_the_start():
    empty = [SegmentFacts(10, 0, NOW - 9 * DAY, active=True)]
    assert decide(empty, retention_ms=DAY) == 0
    assert decide(aged(0), start=10) == 0


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 200)), min_size=1, max_size=8),
    st.integers(-1, 600),
    st.integers(-1, 20),
    st.integers(0, 100),
)
def test_more_room_or_more_time_never_deletes_more(rows, retention_bytes, days, watermark):
    segments = [
        SegmentFacts(10 * (i + 1), size, NOW - age * DAY, active=i == len(rows) - 1)
        for i, (age, size) in enumerate(rows)
    ]
    ms = days * DAY if days >= 0 else -1
    count = decide(segments, retention_bytes=retention_bytes, retention_ms=ms, high_watermark=watermark)
    assert sum(1 for s in segments if s.end_offset <= watermark) >= count
    if retention_bytes >= 0:
        more = decide(segments, retention_bytes=retention_bytes + 50, retention_ms=ms, high_watermark=watermark)
        assert more <= count
    if ms >= 0:
        assert decide(segments, retention_bytes=retention_bytes, retention_ms=-1, high_watermark=watermark) <= count


# A manager that acts on it


class RetentionNode:
    """A manager on a clock of our own."""

    def __init__(self, folder, **config) -> None:
        self.clock = ManualClock(NOW)
        self.folder = folder
        self.manager = LogManager(
            StorageConfig(log_dirs=(str(folder),), retention_check_interval_ms=1000, **config), clock=self.clock
        )
        self.manager.start("MkU3OEVBNTcwNTJENDM2Qg", 1, format_empty=True, config_for=lambda _: self.config)

    config = LogConfig()

    def log(self, **config):
        return self.manager.create("t", 0, b"t" * 16, LogConfig(segment_bytes=300, **config))

    def wait(self, ms: int) -> None:
        """Let time pass and threads finish, in steps as the loop would."""
        self.clock.advance(ms)
        for _ in range(4):
            self.manager.tick()
            self.manager._background.threads.submit(int).result()
            self.manager._background.threads.submit(int).result()
            for job, *_ in list(self.manager._background._syncs):
                job.result()
        self.manager.tick()
        for job in self.manager._background._removing:
            job.result()


@pytest.fixture
def node(tmp_path):
    node = RetentionNode(tmp_path / "data")
    yield node
    node.manager.close()


def fill(log, count: int, timestamp: int = NOW) -> None:
    for _ in range(count):
        log.append_as_leader(batch(timestamp=timestamp), 0, NOW)
    log.advance_high_watermark(log.log_end_offset)


def test_old_segments_are_renamed_at_once_and_removed_after_the_delay(node: RetentionNode):
    log = node.log(retention_ms=DAY, file_delete_delay_ms=50_000)
    fill(log, 9, NOW - 2 * DAY)
    log.roll(NOW)
    fill(log, 4)
    reader = log.read(0, 10_000, 13)
    first = log.segments[0].path(".log")
    node.wait(1000)
    assert log.log_start_offset == 9
    assert not os.path.exists(first)
    assert os.path.exists(first + ".deleted")
    assert len(reader.read()) > 0, "a reply under way keeps its bytes"
    with pytest.raises(KlammError) as refused:
        log.read(8, 1000, 13)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert [o for o, _ in read_all(log)] == [9, 10, 11, 12]
    node.wait(50_000)
    assert not [name for name in os.listdir(log.path) if name.endswith(".deleted")]


def test_an_emptied_log_keeps_its_end_offset_through_a_restart(node: RetentionNode):
    log = node.log(retention_ms=DAY, file_delete_delay_ms=0)
    fill(log, 7, NOW - 2 * DAY)
    node.wait(1000)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (7, 7, 0)
    node.manager.close()
    again = RetentionNode(node.folder)
    log = again.log()
    assert (log.log_start_offset, log.log_end_offset) == (7, 7)
    fill(log, 1)
    assert [o for o, _ in read_all(log)] == [7]
    again.manager.close()


def test_a_log_shrinks_to_its_size(node: RetentionNode):
    log = node.log(retention_bytes=500, file_delete_delay_ms=0)
    fill(log, 40)
    assert log.size_bytes > 2000
    node.wait(1000)
    assert 500 <= log.size_bytes < 900
    assert log.log_end_offset == 40


def test_deleted_records_take_their_segments_along_whatever_the_policy(node: RetentionNode):
    log = node.log(cleanup_policy=frozenset({"compact"}), file_delete_delay_ms=0)
    fill(log, 40)
    log.delete_records(30)
    count = len(log.segments)
    node.wait(1000)
    assert len(log.segments) < count
    assert log.segments[0].base_offset <= 30 == log.log_start_offset
    node.manager.close()
    again = RetentionNode(node.folder)
    assert again.log().log_start_offset == 30
    again.manager.close()


def test_records_without_time_age_with_their_file(node: RetentionNode):
    log = node.log(retention_ms=DAY)
    fill(log, 6, -1)
    log.roll(NOW)
    fill(log, 1)
    stale = NOW / 1000 - 2 * 86400
    for segment in log.segments[:2]:
        os.utime(segment.path(".log"), (stale, stale))
    bases = log.segments.bases
    node.wait(1000)
    assert log.segments.bases == bases[2:]


def test_only_what_is_durable_is_outlived(home: Home):
    log = home.open(segment_bytes=300, retention_ms=DAY)
    fill(log, 9, NOW - 2 * DAY)
    assert log.apply_retention(NOW) == []
    assert log.segments.active.size == 0, "the log has rolled"
    assert log.log_start_offset == 0
    log.flush(9)
    log.state.recovery_point = 9
    assert log.apply_retention(NOW)
    assert log.log_start_offset == 9
