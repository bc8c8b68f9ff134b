"""A disk that refuses: nothing half-written stays, and nothing in memory believes in it."""

import errno
import os

import pytest

from klamm.model.errors import StorageFailure
from klamm.storage import Log
from klamm.storage.log_state import LogListener

from .conftest import NOW, FullSoon, Home, batch, from_producer, no_space, read_all


def short_write(fd, buffers, position):
    """Take all but one byte, as a full disk may."""
    data = b"".join(bytes(b) for b in buffers)
    return os.pwrite(fd, data[:-1], position)


def picture(log: Log) -> tuple:
    return (
        log.log_end_offset,
        log.next_offset,
        log.segments.bases,
        [s.size for s in log.segments],
        {p: e.state() for p, e in log.producers.entries.items()},
        log.producers.first_unstable_offset,
        read_all(log),
    )


@pytest.mark.parametrize("fault", [no_space, short_write])
def test_a_failed_write_leaves_everything_as_it_was(home: Home, fault):
    log = home.open()
    log.append_as_leader(from_producer(0, 2), 0, NOW)
    before = picture(log)
    home.disk.fail["pwritev"] = fault
    log.stage(from_producer(2), 0, NOW)
    log.stage(from_producer(0, producer_id=9, transactional=True), 0, NOW)
    log.stage(batch(), 0, NOW)
    with pytest.raises(StorageFailure):
        log.write_staged()
    assert picture(log) == before
    assert os.path.getsize(log.segments.active.path(".log")) == log.segments.active.size
    home.disk.fail.clear()
    assert log.append_as_leader(from_producer(2), 0, NOW) == 2
    assert home.crash().open().log_end_offset == 3


@pytest.mark.parametrize("fault", [no_space, short_write])
def test_the_first_write_of_a_log_may_fail_too(home: Home, fault):
    log = home.open()
    home.disk.fail["pwritev"] = fault
    with pytest.raises(StorageFailure):
        log.append_as_leader(from_producer(0), 3, NOW)
    assert (log.log_end_offset, log.producers.entries) == (0, {})
    home.disk.fail.clear()
    assert log.append_as_leader(from_producer(0), 3, NOW) == 0
    assert log.leader_epochs.entries() == [(3, 0)]


def test_a_group_that_fails_after_a_roll_is_taken_back_whole(home: Home):
    log = home.open(segment_bytes=500)
    log.append_as_leader(from_producer(0), 0, NOW)
    before = picture(log)
    writes = home.disk.fail["pwritev"] = FullSoon(after=2)
    for i in range(1, 20):
        log.stage(from_producer(i), 0, NOW)
    with pytest.raises(StorageFailure):
        log.write_staged()
    assert writes.calls == 3
    assert picture(log) == before
    home.disk.fail.clear()
    for i in range(1, 20):
        assert log.append_as_leader(from_producer(i), 0, NOW) == i
    assert len(read_all(home.crash().open(segment_bytes=500))) == 20


def test_a_roll_that_cannot_create_its_file_keeps_what_was_there(home: Home):
    log = home.open(segment_bytes=500)
    for i in range(3):
        log.append_as_leader(from_producer(i), 0, NOW)

    def no_new_log(path, flags):
        if flags & os.O_CREAT and path.endswith(".log"):
            no_space()

    home.disk.fail["open"] = no_new_log

    def go_on() -> None:
        for i in range(3, 10):
            log.append_as_leader(from_producer(i), 0, NOW)

    with pytest.raises(StorageFailure):
        go_on()
    end = log.log_end_offset
    assert [o for o, _ in read_all(log)] == list(range(end)), "readers are still served"
    assert home.crash().open().log_end_offset == end
    home.disk.fail.clear()
    assert log.append_as_leader(from_producer(end), 0, NOW) == end, "there is room again"
    assert len(log.segments) == 2
    assert [o for o, _ in read_all(home.crash().open())] == list(range(end + 1))


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", ".log"])
def test_a_roll_goes_on_when_there_is_room_again_whichever_file_found_none(home: Home, suffix: str):
    log = home.open(segment_bytes=300)
    log.append_as_leader(from_producer(0), 0, NOW)
    log.append_as_leader(from_producer(1), 0, NOW)

    def full(path, flags):
        if flags & os.O_CREAT and path.endswith(suffix):
            no_space()

    home.disk.fail["open"] = full
    before = picture(log)
    with pytest.raises(StorageFailure):
        log.append_as_leader(from_producer(2, 6), 0, NOW)
    assert picture(log) == before
    home.disk.fail.clear()
    assert log.append_as_leader(from_producer(2, 6), 0, NOW) == 2
    assert len(log.segments) == 2
    assert len(read_all(home.crash().open())) == 8


def test_a_broken_disk_is_not_a_full_one(home: Home):
    def broken(*_args):
        raise OSError(errno.EIO, "Input/output error")

    failures = []
    log = home.open()
    log.listener = LogListener(on_failure=lambda _, failure: failures.append(failure.message))
    home.disk.fail["pwritev"] = broken
    with pytest.raises(StorageFailure):
        log.append_as_leader(batch(), 0, NOW)
    home.disk.fail.clear()
    assert log.failed
    assert len(failures) == 1
    with pytest.raises(StorageFailure):
        log.append_as_leader(batch(), 0, NOW)
    assert len(failures) == 1


def test_when_not_even_cutting_back_works_the_log_takes_no_more(home: Home):
    log = home.open()
    log.append_as_leader(batch(), 0, NOW)
    home.disk.fail["pwritev"] = short_write
    home.disk.fail["ftruncate"] = no_space
    with pytest.raises(StorageFailure, match="could not be truncated"):
        log.append_as_leader(batch(), 0, NOW)
    home.disk.fail.clear()
    assert log.failed
    with pytest.raises(StorageFailure):
        log.append_as_leader(batch(), 0, NOW)
    assert len(read_all(log)) == 1
    assert home.crash().open().log_end_offset == 1


def test_a_failed_sync_fails_the_log(home: Home):
    def broken(_fd):
        raise OSError(errno.EIO, "Input/output error")

    log = home.open()
    log.append_as_leader(batch(), -1, NOW)
    home.disk.fail["fsync"] = broken
    with pytest.raises(StorageFailure):
        log.flush()
    home.disk.fail.clear()
    assert log.recovery_point == 0
    with pytest.raises(StorageFailure):
        log.append_as_leader(batch(), 0, NOW)


def test_flush_moves_the_recovery_point(home: Home):
    log = home.open(segment_bytes=300)
    for _ in range(10):
        log.append_as_leader(batch(), 0, NOW)
    synced = []
    home.disk.fail["fsync"] = synced.append
    log.flush()
    assert log.recovery_point == 10
    assert len(synced) > len(log.segments), "every segment and what belongs to it"
    log.append_as_leader(batch(), 0, NOW)
    log.flush()
    log.append_as_leader(batch(), 0, NOW)
    synced.clear()
    log.flush()
    assert synced == [log.segments.active.file.fd], "going on in a segment costs one sync"
    log.flush()
    assert log.recovery_point == 12
    assert len(synced) == 1


def test_new_settings_do_not_revive_a_failed_log(home: Home):
    log = home.open()
    log.append_as_leader(batch(), 0, NOW)
    log.fail()
    log.config = type(log.config)(max_message_bytes=5000)
    with pytest.raises(StorageFailure):
        log.append_as_leader(batch(), 0, NOW)
