"""All logs of a broker: locks, identities, starts and stops, deletion."""

import os
import shutil
import time
from pathlib import Path

import pytest

from klamm.model.clock import ManualClock
from klamm.model.errors import ConfigError, ErrorCode, KlammError, StorageFailure
from klamm.model.ids import TopicPartition
from klamm.storage import LogConfig, LogManager, StorageConfig, housekeeping

from .conftest import NOW, PRODUCER, FaultyDisk, ReadLog, batch, from_producer, no_space, read_all

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
ID = b"t" * 16


def started(*folders: Path, cluster_id: str | None = CLUSTER, node_id: int = 1, format_empty: bool = True, **kwargs):
    manager = LogManager(StorageConfig(log_dirs=tuple(map(str, folders))), clock=ManualClock(NOW), **kwargs)
    manager.start(cluster_id, node_id, format_empty=format_empty)
    return manager


def killed(folder: Path) -> Path:
    """What a kill leaves behind, as a copy; the lock is not held there."""
    other = folder.with_name(folder.name + "-killed")
    shutil.copytree(folder, other)
    return other


@pytest.mark.parametrize("clean", [True, False])
def test_logs_come_back_with_their_ids_and_records(tmp_path: Path, clean: bool):
    folder = tmp_path / "data"
    manager = started(folder)
    for name in ("orders", "with-dash", "__internal"):
        for partition in (0, 11):
            log = manager.create(name, partition, ID, LogConfig())
            log.append_as_leader(from_producer(0, 3), 2, NOW)
            log.advance_high_watermark(3)
    manager.checkpoint()
    if clean:
        manager.close(broker_epoch=9)
    else:
        folder = killed(folder)
        manager.close(clean=False)
    again = started(folder)
    assert again.previous_broker_epoch == (9 if clean else -1)
    assert len(again.logs()) == 6
    log = again.get("with-dash", 11)
    assert (log.topic_id, log.log_end_offset, log.high_watermark) == (ID, 3, 3)
    assert log.producers.entries[PRODUCER].next_sequence == 3
    assert len(read_all(log)) == 3
    again.close()
    assert again.get("orders", 0) is None


def test_a_clean_stop_is_marked_only_until_the_next_start(tmp_path: Path):
    manager = started(tmp_path)
    manager.close(broker_epoch=5)
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    manager = started(tmp_path)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    manager.close(clean=False)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


def test_two_processes_cannot_share_a_folder(tmp_path: Path):
    manager = started(tmp_path)
    with pytest.raises(ConfigError, match="in use by another process"):
        started(tmp_path)
    manager.close()
    started(tmp_path).close()


def test_folders_of_another_cluster_or_node_are_refused_and_untouched(tmp_path: Path):
    started(tmp_path).close()
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    with pytest.raises(ConfigError, match=f"belongs to cluster {CLUSTER}"):
        started(tmp_path, cluster_id="another")
    with pytest.raises(ConfigError, match=r"belongs to node 1, not to node 2; set node\.id=1"):
        started(tmp_path, node_id=2)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before
    manager = started(tmp_path, cluster_id=None)
    assert manager.cluster_id == CLUSTER
    manager.close()


def test_an_unformatted_folder_says_what_to_do(tmp_path: Path):
    with pytest.raises(ConfigError, match="klamm storage format"):
        started(tmp_path / "new", format_empty=False)


def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be written"):
        started(tmp_path / "file" / "data")


def test_new_logs_go_where_the_fewest_are_or_where_they_are_told(tmp_path: Path):
    manager = started(tmp_path / "a", tmp_path / "b")
    for partition in range(4):
        manager.create("t", partition, ID, LogConfig())
    homes = [os.path.basename(os.path.dirname(log.path)) for log in manager.logs()]
    assert sorted(homes) == ["a", "a", "b", "b"]
    directory = manager.directory_ids[str(tmp_path / "b")]
    log = manager.create("told", 0, ID, LogConfig(), directory_id=directory)
    assert manager.log_dir_of(log).path == str(tmp_path / "b")
    manager.create("replaced", 0, ID, LogConfig(), directory_id=b"\xff" * 16)
    manager.dirs[1].failure = "broken"
    with pytest.raises(StorageFailure, match="may be in a log directory that is offline"):
        manager.create("lost", 0, ID, LogConfig(), directory_id=b"\xff" * 16)
    manager.dirs[1].failure = None
    manager.create("anywhere", 0, ID, LogConfig(), directory_id=bytes(16))
    assert [fact.path for fact in manager.describe_dirs()] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert all(fact.total_bytes >= fact.usable_bytes > 0 for fact in manager.describe_dirs())
    manager.close()
    started(tmp_path / "a", tmp_path / "b").close()


def test_a_partition_in_two_folders_is_a_mistake(tmp_path: Path):
    manager = started(tmp_path / "a", tmp_path / "b")
    manager.create("t", 0, ID, LogConfig())
    manager.close()
    shutil.copytree(tmp_path / "a" / "t-0", tmp_path / "b" / "t-0")
    with pytest.raises(ConfigError, match="two data folders"):
        started(tmp_path / "a", tmp_path / "b")


def test_creating_again_gives_the_same_log_with_new_settings(tmp_path: Path):
    manager = started(tmp_path)
    log = manager.create("t", 0, ID, LogConfig())
    assert manager.create("t", 0, ID, LogConfig(max_message_bytes=77)) is log
    assert log.config.max_message_bytes == 77
    with pytest.raises(KlammError) as refused:
        manager.create("t", 0, b"u" * 16, LogConfig())
    assert refused.value.code is ErrorCode.INCONSISTENT_TOPIC_ID
    manager.close()


def test_a_deleted_log_is_gone_at_once_and_its_files_after_the_delay(tmp_path: Path):
    manager = started(tmp_path)
    log = manager.create("t", 0, ID, LogConfig(file_delete_delay_ms=1000))
    log.append_as_leader(batch(), 0, NOW)
    piece = log.read(0, 1000, 1)
    manager.delete("t", 0)
    manager.delete("t", 0)
    assert manager.get("t", 0) is None
    [folder] = [name for name in os.listdir(tmp_path) if name.endswith("-delete")]
    assert folder.startswith("t-0.")
    manager.tick(NOW + 999)
    assert folder in os.listdir(tmp_path)
    assert piece.read()
    again = manager.create("t", 0, b"u" * 16, LogConfig())
    assert again.log_end_offset == 0
    manager.tick(NOW + 1000)
    manager.close()
    assert folder not in os.listdir(tmp_path)
    assert "t-0" in os.listdir(tmp_path)


def test_an_interrupted_removal_is_finished_at_the_next_start(tmp_path: Path):
    manager = started(tmp_path)
    manager.create("t", 0, ID, LogConfig())
    manager.delete("t", 0)
    manager.close()
    assert any(name.endswith("-delete") for name in os.listdir(tmp_path))
    manager = started(tmp_path)
    assert manager.logs() == []
    manager.tick(NOW)
    manager.close()
    assert not any(name.endswith("-delete") for name in os.listdir(tmp_path))


def test_a_very_long_topic_name_can_be_deleted(tmp_path: Path):
    manager = started(tmp_path)
    manager.create("t" * 249, 0, ID, LogConfig())
    manager.delete("t" * 249, 0)
    manager.close()
    started(tmp_path).close()


def test_strange_things_in_a_data_folder_are_left_alone_and_named(tmp_path: Path, read_log: ReadLog):
    started(tmp_path).close()
    (tmp_path / "lost+found").mkdir()
    (tmp_path / f"t-0.{'a' * 32}-stray").mkdir()
    (tmp_path / "__cluster_metadata-0").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    manager = started(tmp_path)
    assert manager.logs() == []
    manager.close()
    for name in ("lost+found", "notes.txt", "-stray"):
        assert name in read_log()
    assert "__cluster_metadata" not in read_log()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_roll_is_synced_in_the_background_and_moves_the_recovery_point(tmp_path: Path):
    manager = started(tmp_path)
    log = manager.create("t", 0, ID, LogConfig(segment_bytes=200))
    for _ in range(10):
        log.append_as_leader(batch(), 0, NOW)
    manager.close(clean=False)
    assert log.recovery_point == log.segments.active.base_offset > 0


def test_a_sync_that_fails_in_the_background_fails_the_log(tmp_path: Path):
    disk = FaultyDisk()
    manager = started(tmp_path, disk=disk)
    failures = []
    manager.on_failure = lambda log, failure: failures.append(log.name)
    log = manager.create("t", 0, ID, LogConfig(segment_bytes=200))
    log.append_as_leader(batch(), 0, NOW)
    disk.fail["fsync"] = no_space
    log.append_as_leader(batch(value=b"x" * 100), 0, NOW)
    log.roll(NOW)
    manager._threads.shutdown(wait=True)
    disk.fail.clear()
    manager.tick(NOW)
    assert failures == ["t-0"] * len(failures) != []
    assert log.failed
    assert log.recovery_point == 0
    manager.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists(), "a stop after a failure is not clean"


def test_checkpoints_and_expiry_follow_the_clock(tmp_path: Path):
    manager = started(tmp_path)
    log = manager.create("t", 0, ID, LogConfig())
    log.append_as_leader(from_producer(0, timestamp=NOW - 24 * 3600 * 1000), 0, NOW)
    log.append_as_leader(from_producer(0, producer_id=8), 0, NOW)
    log.advance_high_watermark(2)
    manager.tick(NOW + 59_999)
    assert not (tmp_path / "replication-offset-checkpoint").exists()
    manager.tick(NOW + 60_000)
    manager._background._checkpoint.result()
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n1\nt 0 2\n"
    assert set(log.producers.entries) == {7, 8}
    manager.tick(NOW + 600_000)
    assert set(log.producers.entries) == {8}
    manager.close()


def test_log_starts_are_remembered(tmp_path: Path):
    manager = started(tmp_path)
    log = manager.create("t", 0, ID, LogConfig())
    log.append_as_leader(batch(5), 0, NOW)
    log.advance_high_watermark(5)
    log.delete_records(3)
    manager.close()
    manager = started(tmp_path)
    assert manager.get("t", 0).log_start_offset == 3
    manager.close()


def test_strays_are_logs_the_metadata_does_not_know(tmp_path: Path):
    manager = started(tmp_path)
    for partition in range(3):
        manager.create("t", partition, ID, LogConfig())
    known = {TopicPartition("t", 0): ID, TopicPartition("t", 1): b"u" * 16}
    assert [log.partition for log in manager.strays(known)] == [1, 2]
    manager.close()


def test_a_folder_that_got_no_segment_before_the_crash_is_opened_empty(tmp_path: Path):
    started(tmp_path).close(clean=False)
    (tmp_path / "orders-0").mkdir()
    manager = started(tmp_path)
    assert manager.get("orders", 0).log_end_offset == 0
    manager.close()


def test_retention_gets_to_every_log_however_little_time_a_tick_has(tmp_path: Path, monkeypatch):
    """Logs that must become durable first wait for a later tick and do not keep the others waiting."""
    monkeypatch.setattr(housekeeping, "_RETENTION_SLICE_MS", 2)

    class Slow(ManualClock):
        def monotonic_ms(self) -> int:
            self.advance(1)
            return super().monotonic_ms()

    clock = Slow(NOW)
    manager = LogManager(StorageConfig(log_dirs=(str(tmp_path),), retention_check_interval_ms=1), clock=clock)
    manager.start(CLUSTER, 1, format_empty=True)
    config = LogConfig(segment_bytes=300, retention_bytes=0, file_delete_delay_ms=0)
    logs = [manager.create("t", index, ID, config) for index in range(5)]
    for log in logs:
        for _ in range(10):
            log.append_as_leader(batch(), 0, NOW)
        log.advance_high_watermark(10)
    deadline = time.monotonic() + 60
    while any(log.log_start_offset < 9 for log in logs):
        manager.tick(clock.monotonic_ms())
        assert time.monotonic() < deadline, [log.log_start_offset for log in logs]
    manager.close()
