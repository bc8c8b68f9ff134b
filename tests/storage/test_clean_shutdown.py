"""A clean stop of many logs: few syncs, nothing trusted that is not durable, no failed sync tried again."""

import errno
import os
from pathlib import Path

import pytest

from klamm.model.clock import ManualClock
from klamm.storage import Disk, LogConfig, LogManager, StorageConfig, clean_shutdown

from .conftest import NOW, PRODUCER, batch, from_producer
from .tools import CLUSTER


class CountingDisk(Disk):
    def __init__(self) -> None:
        self.syncs = 0
        self.together = 0
        self.failure: OSError | None = None

    def fsync(self, fd):
        self.syncs += 1
        os.fsync(fd)

    def fdatasync(self, fd):
        self.syncs += 1
        os.fdatasync(fd)

    def sync_file_system(self, path):
        self.together += 1
        if self.failure is not None:
            raise self.failure
        return super().sync_file_system(path)


def started(folder: Path, disk: Disk | None = None) -> LogManager:
    manager = LogManager(StorageConfig(log_dirs=(str(folder),)), clock=ManualClock(NOW), disk=disk)
    manager.start(CLUSTER, 1, format_empty=True)
    return manager


def filled(folder: Path, count: int, disk: Disk) -> LogManager:
    manager = started(folder, disk)
    for index in range(count):
        manager.create("topic", index, b"t" * 16, LogConfig()).append_as_leader(batch(), 0, NOW)
    disk.syncs = 0
    return manager


def test_many_logs_share_one_sync(tmp_path):
    disk = CountingDisk()
    filled(tmp_path, clean_shutdown.SYNCFS_LOGS_MIN, disk).close()
    assert disk.together in (0, 1)
    if Disk().sync_file_system(str(tmp_path)):
        assert disk.together == 1
        assert disk.syncs < clean_shutdown.SYNCFS_LOGS_MIN  # the checkpoints and the marker alone
    manager = started(tmp_path)
    assert manager.previous_broker_epoch == -1
    assert all(log.log_end_offset == log.recovery_point == 1 for log in manager.logs())
    manager.close()


def test_where_the_file_system_cannot_be_synced_every_log_is(tmp_path, monkeypatch):
    monkeypatch.setattr(Disk, "sync_file_system", lambda *_: False)
    disk = CountingDisk()
    filled(tmp_path, clean_shutdown.SYNCFS_LOGS_MIN, disk).close()
    assert disk.syncs > clean_shutdown.SYNCFS_LOGS_MIN
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_failed_sync_leaves_no_clean_marker_and_is_not_tried_again(tmp_path, read_log):
    disk = CountingDisk()
    manager = filled(tmp_path, clean_shutdown.SYNCFS_LOGS_MIN, disk)
    disk.failure = OSError(errno.EIO, "Input/output error")
    manager.close()
    assert disk.together == 1
    assert disk.syncs < clean_shutdown.SYNCFS_LOGS_MIN
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert "log directory could not be synced" in read_log()
    again = started(tmp_path)
    assert all(log.log_end_offset == 1 for log in again.logs())
    again.close()


def test_logs_nothing_was_written_to_are_left_alone(tmp_path):
    disk = CountingDisk()
    filled(tmp_path, 3, disk).close()
    names = sorted(str(path) for path in tmp_path.rglob("*"))
    manager = started(tmp_path, disk)
    disk.syncs = 0
    manager.close()
    assert disk.syncs < 10  # checkpoints, marker, folders
    assert sorted(str(path) for path in tmp_path.rglob("*")) == names


def test_a_log_without_producers_gets_no_snapshot(tmp_path):
    manager = started(tmp_path)
    manager.create("quiet", 0, b"t" * 16, LogConfig()).append_as_leader(batch(), 0, NOW)
    manager.create("busy", 0, b"b" * 16, LogConfig()).append_as_leader(from_producer(0), 0, NOW)
    manager.close()
    assert not list((tmp_path / "quiet-0").glob("*.snapshot"))
    assert len(list((tmp_path / "busy-0").glob("*.snapshot"))) == 1
    manager = started(tmp_path)
    assert manager.get("busy", 0).producers.entries[PRODUCER].next_sequence == 1
    assert not manager.get("quiet", 0).producers.entries
    manager.close()


@pytest.mark.parametrize("gathered", [1, 3])
def test_a_high_watermark_may_go_as_far_as_flush_messages_allows(home, gathered):
    log = home.open(flush_messages=3)
    for _ in range(gathered):
        log.append_as_leader(batch(), 0, NOW)
    assert log.durable_offset == (0 if gathered == 3 else gathered)
    log.flush()
    assert log.durable_offset == gathered
