"""Reopening: after a clean stop, after a kill, after damage."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from klamm.model.clock import ManualClock
from klamm.model.errors import StorageFailure
from klamm.model.ids import TopicPartition
from klamm.storage import LogConfig, LogManager, StorageConfig
from klamm.storage.disk import Disk, OpenFiles
from klamm.storage.log_recovery import create_log, open_log
from klamm.storage.log_segment import LogSegment
from klamm.storage.recovery_progress import RecoveryProgress

from .conftest import NOW, PRODUCER, Home, ReadLog, append_end_txn_marker, batch, from_producer, read_all
from .tools import content


def fill(log, count: int = 30, epoch: int = 0) -> None:
    for i in range(count):
        log.append_as_leader(from_producer(i, value=b"value %d" % i, timestamp=NOW + i), epoch, NOW + i)


def state_of(log) -> dict:
    return {
        "records": read_all(log),
        "end": log.log_end_offset,
        "epochs": log.leader_epochs.entries(),
        "producers": {p: e.state() for p, e in log.producers.entries.items()},
        "last": log.offset_of_max_timestamp(),
        "some time": log.offset_for_timestamp(NOW + 11),
        "aborted": log.aborted_transactions(0, 10**9),
    }


@pytest.mark.parametrize("clean", [True, False])
def test_a_closed_log_comes_back_as_it_was(home: Home, clean: bool):
    log = home.open(segment_bytes=1000, index_interval_bytes=100)
    fill(log)
    log.append_as_leader(from_producer(0, 2, producer_id=8, transactional=True), 0, NOW)
    append_end_txn_marker(log, 8, 0, committed=False, coordinator_epoch=3, leader_epoch=0, now_ms=NOW + 1)
    before = state_of(log)
    log.close()
    assert state_of(home.open(clean=clean, segment_bytes=1000, index_interval_bytes=100)) == before


def test_a_killed_log_comes_back_as_it_was(home: Home):
    log = home.open(segment_bytes=1000, index_interval_bytes=100)
    fill(log)
    log.append_as_leader(from_producer(0, 2, producer_id=8, transactional=True), 1, NOW)
    append_end_txn_marker(log, 8, 0, committed=False, coordinator_epoch=3, leader_epoch=1, now_ms=NOW)
    assert state_of(home.crash().open(segment_bytes=1000, index_interval_bytes=100)) == state_of(log)


def test_indexes_rebuilt_are_the_indexes_written(home: Home):
    log = home.open(segment_bytes=2000, index_interval_bytes=150)
    fill(log, 60)
    log.close()
    written = {name: (home.path / name).read_bytes() for name in home.names() if "index" in name}
    for name in written:
        os.unlink(home.path / name)
    home.open(segment_bytes=2000, index_interval_bytes=150).close()
    assert {name: (home.path / name).read_bytes() for name in home.names() if "index" in name} == written


def test_a_clean_log_is_not_scanned(home: Home, monkeypatch: pytest.MonkeyPatch):
    log = home.open(segment_bytes=1000, index_interval_bytes=100)
    fill(log)
    log.close()
    scanned = []
    whole = LogSegment.batches
    monkeypatch.setattr(LogSegment, "batches", lambda self, *a: scanned.append(self.base_offset) or whole(self, *a))
    log = home.open(clean=True, segment_bytes=1000, index_interval_bytes=100)
    assert scanned == [], "a header or two, no batches"
    assert log.recovery_point == log.log_end_offset == 30


def test_only_segments_beyond_the_recovery_point_are_checked(home: Home, read_log: ReadLog):
    log = home.open(segment_bytes=1000)
    fill(log)
    bases = log.segments.bases
    first = home.path / f"{0:020d}.log"
    damaged = bytearray(first.read_bytes())
    damaged[70] ^= 1
    first.write_bytes(damaged)
    other = home.crash()
    assert other.open(recovery_point=bases[1], segment_bytes=1000).log_end_offset == 30
    assert home.crash().open(recovery_point=0, segment_bytes=1000).log_end_offset == 0
    assert "log truncated" in read_log()
    assert "position=0 offset=0" in read_log()


def test_a_tail_torn_at_any_byte_costs_the_last_batch_only(home: Home):
    log = home.open()
    fill(log, 3)
    kept = log.segments.active.size
    log.append_as_leader(from_producer(3, 2), 0, NOW)
    whole = log.segments.active.size
    path = log.segments.active.path(".log")
    with open(path, "rb") as file:
        data = file.read()
    for size in range(kept, whole + 1):
        with open(path, "wb") as file:
            file.write(data[:size])
        again = home.open()
        expected = 5 if size == whole else 3
        assert again.log_end_offset == expected
        assert again.producers.entries[PRODUCER].next_sequence == expected
        assert os.path.getsize(path) == (whole if size == whole else kept)
        assert len(read_all(again)) == expected
        again.close(clean=False)


def test_a_tail_of_zeros_is_no_batch(home: Home):
    log = home.open()
    fill(log, 3)
    with open(log.segments.active.path(".log"), "ab") as file:
        file.write(bytes(1000))
    again = home.crash().open()
    assert again.log_end_offset == 3
    assert again.append_as_leader(from_producer(3), 0, NOW) == 3


def test_damage_in_the_middle_ends_the_log_there(home: Home, read_log: ReadLog):
    log = home.open(segment_bytes=1000)
    fill(log)
    bases = log.segments.bases
    path = home.path / f"{bases[1]:020d}.log"
    data = bytearray(path.read_bytes())
    second = int.from_bytes(data[8:12], "big") + 12
    data[second + 70] ^= 1
    path.write_bytes(data)
    again = home.crash().open(segment_bytes=1000)
    assert again.log_end_offset == bases[1] + 1
    assert again.segments.bases == bases[:2]
    assert len(read_all(again)) == bases[1] + 1
    assert again.producers.entries[PRODUCER].next_sequence == bases[1] + 1
    assert f"position={second} offset={bases[1] + 1}" in read_log()
    assert "segment after the damage removed" in read_log()


def test_a_damaged_tail_is_found_despite_a_clean_stop(home: Home):
    log = home.open()
    fill(log, 5)
    log.close()
    path = home.path / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-3])
    assert home.open(clean=True).log_end_offset == 4


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_index_is_rebuilt(home: Home, suffix: str, clean: bool):
    log = home.open(segment_bytes=1000, index_interval_bytes=100)
    fill(log)
    before = state_of(log)
    log.close()
    for name in home.names():
        if name.endswith(suffix):
            os.unlink(home.path / name)
    assert state_of(home.open(clean=clean, segment_bytes=1000, index_interval_bytes=100)) == before


def test_an_index_that_cannot_be_is_rebuilt(home: Home):
    log = home.open(segment_bytes=1000, index_interval_bytes=100)
    fill(log)
    before = state_of(log)
    log.close()
    for name in home.names():
        if name.endswith(".index"):
            (home.path / name).write_bytes(b"\x7f" * 80)
    assert state_of(home.open(clean=True, segment_bytes=1000, index_interval_bytes=100)) == before


def test_the_zero_tail_that_a_killed_kafka_leaves_in_its_indexes(home: Home):
    log = home.open(segment_bytes=1000, index_interval_bytes=100)
    fill(log)
    before = state_of(log)
    log.close()
    for name in home.names():
        if name.endswith((".index", ".timeindex")):
            with open(home.path / name, "ab") as file:
                file.write(bytes(24 * 100))
    for clean in (True, False):
        assert state_of(home.crash().open(clean=clean, segment_bytes=1000, index_interval_bytes=100)) == before


def test_damaged_and_missing_snapshots_are_replaced_by_replay(home: Home):
    log = home.open(segment_bytes=1000)
    fill(log)
    log.close()
    for name in sorted(home.names()):
        if name.endswith(".snapshot"):
            (home.path / name).write_bytes(b"bad")
    again = home.crash().open(segment_bytes=1000)
    assert again.producers.entries[PRODUCER].next_sequence == 30
    assert again.append_as_leader(from_producer(29), 0, NOW) == 29, "a duplicate"


@pytest.mark.parametrize("clean", [True, False])
def test_all_five_batches_in_flight_are_known_after_a_restart(home: Home, clean: bool):
    log = home.open(segment_bytes=600)
    sent = [from_producer(i * 3, 3) for i in range(8)]
    copies = [memoryview(bytearray(view)) for view in sent]
    for view in sent:
        log.append_as_leader(view, 0, NOW)
    if clean:
        log.close()
        log = home.open(clean=True, segment_bytes=600)
    else:
        log = home.crash().open(segment_bytes=600)
    assert [log.append_as_leader(view, 0, NOW) for view in copies[3:]] == [9, 12, 15, 18, 21]
    assert log.log_end_offset == 24


def test_leader_epochs_that_were_not_written_are_found_in_the_log(home: Home):
    log = home.open()
    log.append_as_follower(batch(base_offset=0, leader_epoch=1))
    log.append_as_follower(batch(base_offset=1, leader_epoch=4))
    other = home.crash()
    os.unlink(other.path / "leader-epoch-checkpoint")
    assert other.open().leader_epochs.entries() == [(1, 0), (4, 1)]


@pytest.mark.parametrize("torn", [b"", b"0\n2\n1 0\n4"])
def test_leader_epochs_lost_with_the_power_are_found_below_the_recovery_point(home: Home, torn: bytes):
    log = home.open(segment_bytes=200)
    for i in range(6):
        log.append_as_follower(batch(base_offset=i, leader_epoch=i // 2))
    other = home.crash()
    (other.path / "leader-epoch-checkpoint").write_bytes(torn)
    assert other.open(recovery_point=5, segment_bytes=200).leader_epochs.entries() == [(0, 0), (1, 2), (2, 4)]


def test_a_start_that_was_not_saved_keeps_its_epochs(home: Home):
    log = home.open()
    fill(log, 5, epoch=1)
    log.advance_high_watermark(5)
    log.delete_records(4)
    assert home.crash().open().leader_epochs.entries() == [(1, 0)]


def test_epochs_beyond_the_end_are_forgotten(home: Home):
    log = home.open()
    fill(log, 3, epoch=1)
    log.leader_epochs.assign(2, 3)
    log.leader_epochs.assign(5, 40)
    assert home.crash().open().leader_epochs.entries() == [(1, 0)]


def test_strangers_are_left_alone_and_named_and_leftovers_removed(home: Home, read_log: ReadLog):
    log = home.open()
    fill(log, 2)
    log.close()
    for name in ("notes.txt", f"{7:020d}.index", f"{0:020d}.log.deleted", "leader-epoch-checkpoint.tmp"):
        (home.path / name).write_bytes(b"x")
    home.open()
    assert "notes.txt" in home.names()
    assert "notes.txt" in read_log()
    assert home.names() & {f"{7:020d}.index", f"{0:020d}.log.deleted", "leader-epoch-checkpoint.tmp"} == set()


def test_a_start_beyond_the_end_empties_the_log(home: Home):
    log = home.open()
    fill(log, 3)
    log.close()
    again = home.open(log_start_offset=10)
    assert (again.log_start_offset, again.log_end_offset) == (10, 10)
    assert again.append_as_leader(batch(), 0, NOW) == 10


def test_a_start_inside_the_log_stays(home: Home):
    log = home.open()
    fill(log, 5)
    log.advance_high_watermark(5)
    log.delete_records(3)
    log.close()
    again = home.open(clean=True, log_start_offset=3)
    assert again.log_start_offset == 3
    assert [o for o, _ in read_all(again)] == [3, 4]


def test_an_empty_last_segment_is_where_the_log_goes_on(home: Home):
    log = home.open()
    fill(log, 5)
    log.roll(NOW)
    again = home.crash().open()
    assert again.log_end_offset == 5
    assert again.append_as_leader(from_producer(5), 0, NOW) == 5
    log.close()
    assert home.open(clean=True).log_end_offset == 5


def test_a_log_opened_twice_grows_no_duplicate_index_entries(home: Home):
    log = home.open(index_interval_bytes=100)
    fill(log, 10)
    for i in range(10, 20):
        log.close()
        log = home.open(clean=True, index_interval_bytes=100)
        log.append_as_leader(from_producer(i), 0, NOW + i)
    log.close()
    entries = (home.path / f"{0:020d}.index").read_bytes()
    offsets = [int.from_bytes(entries[i : i + 4], "big") for i in range(0, len(entries), 8)]
    assert offsets == sorted(set(offsets))
    shutil.rmtree(home.path)


def test_producers_of_deleted_segments_are_known_by_the_first_snapshot(home: Home):
    log = home.open(segment_bytes=600)
    fill(log, 20)
    for _ in range(20):
        log.append_as_leader(batch(), 0, NOW)
    log.advance_high_watermark(40)
    log.delete_records(30)
    assert log.remove_segments_below_start() > 2
    again = home.crash().open(segment_bytes=600, log_start_offset=30)
    assert again.segments.bases[0] > 19
    assert again.append_as_leader(from_producer(20), 0, NOW) == 40


WRITER = """
import sys
from klamm.model.ids import TopicPartition
from klamm.records import build_batch
from klamm.storage import Disk, LogConfig, OpenFiles, open_log
now = 1_700_000_000_000
log = open_log(sys.argv[1], TopicPartition("topic", 0), LogConfig(segment_bytes=50_000), disk=Disk(), files=OpenFiles(),
               now_ms=now)
for i in range(10**9):
    for j in range(3):
        log.stage(memoryview(build_batch([(now, b"k", b"%d" % (i * 3 + j), ())])), 0, now)
    log.write_staged()
    print(log.log_end_offset, flush=True)
"""


def test_what_a_killed_process_acknowledged_is_there(home: Home):
    with subprocess.Popen([sys.executable, "-c", WRITER, str(home.path)], stdout=subprocess.PIPE, text=True) as writer:
        acknowledged = 0
        while acknowledged < 2000:
            acknowledged = int(writer.stdout.readline())
        writer.kill()
        for line in writer.stdout:
            if line.endswith("\n"):
                acknowledged = int(line)
    log = home.open()
    assert log.log_end_offset >= acknowledged
    assert read_all(log)[:acknowledged] == [(i, b"%d" % i) for i in range(acknowledged)]


def hurt(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_damage_to_what_was_durable_is_named_and_nothing_is_cut(home: Home, read_log: ReadLog):
    log = home.open(segment_bytes=1000)
    fill(log)
    bases = log.segments.bases
    log.close(clean=False)
    path = home.path / f"{bases[1]:020d}.log"
    second = int.from_bytes(path.read_bytes()[8:12], "big") + 12
    hurt(path, second + 70)
    before = {name: (home.path / name).read_bytes() for name in home.names() if name.endswith(".log")}
    for _ in range(2):
        again = home.open(recovery_point=bases[1] + 3, segment_bytes=1000)
        assert again.failed
        assert (again.log_end_offset, again.recovery_point) == (bases[1] + 1, bases[1] + 3)
        assert [o for o, _ in read_all(again)] == list(range(bases[1] + 1)), "what is sound is served"
        with pytest.raises(StorageFailure):
            again.append_as_leader(from_producer(bases[1] + 1), 0, NOW)
        again.close(clean=False)
        assert {name: (home.path / name).read_bytes() for name in before} == before
    assert f"path={path} position={second} offset={bases[1] + 1}" in read_log()
    assert "klamm storage check" in read_log()
    hurt(path, second + 70)
    assert home.open(recovery_point=bases[1] + 3, segment_bytes=1000).log_end_offset == 30, (
        "restored, it is whole again"
    )


@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.parametrize("bit", [0, 1, 9, 29])
def test_an_offset_that_is_too_large_is_found_by_the_batch_behind_it(home: Home, bit: int, synced: bool):
    """Offsets lie outside of the checksum. Taken at its word, such a batch would make all behind it look wrong."""
    log = home.open()
    fill(log, 10)
    log.close(clean=False)
    path = home.path / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    at = 0
    for _ in range(4):
        at += int.from_bytes(data[at + 8 : at + 12], "big") + 12
    data[at + 7 - bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    again = home.open(recovery_point=10 if synced else 0)
    assert (again.log_end_offset, again.failed) == (4, synced)
    assert [o for o, _ in read_all(again)] == [0, 1, 2, 3]
    assert [entry.next_sequence for entry in again.producers.entries.values()] == [4]
    assert path.stat().st_size == (len(data) if synced else at), "what was durable is left for a repair"


def test_a_manager_serves_the_other_logs_beside_a_damaged_one(tmp_path: Path):
    clock = ManualClock(NOW)

    def started(folder: Path) -> LogManager:
        manager = LogManager(StorageConfig(log_dirs=(str(folder),)), clock=clock)
        manager.start("MkU3OEVBNTcwNTJENDM2Qg", 1, format_empty=True)
        return manager

    manager = started(tmp_path / "a")
    for name in ("hurt", "sound"):
        log = manager.create(name, 0, name.encode().ljust(16), LogConfig())
        fill(log, 5)
        log.flush()
        log.advance_high_watermark(5)
    manager.checkpoint()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    manager.close(clean=False)
    hurt(tmp_path / "b" / "hurt-0" / f"{0:020d}.log", 70)
    again = started(tmp_path / "b")
    assert again.get("hurt", 0).failed
    assert again.get("sound", 0).append_as_leader(from_producer(5), 0, NOW) == 5
    again.tick()
    again.close()
    assert not (tmp_path / "b" / ".kafka_cleanshutdown").exists(), "the next start looks again"
    last = started(tmp_path / "b")
    assert last.get("hurt", 0).failed
    last.close()


def test_a_long_check_says_how_far_it_is(read_log: ReadLog):
    clock = ManualClock(NOW)
    progress = RecoveryProgress(clock, 10_000_000)
    progress.advance("t-0", 1_000_000)
    assert read_log() == ""
    clock.advance(2000)
    progress.advance("t-0", 4_000_000)
    assert "recovering logs percent=50 mb=5 total_mb=10 mb_per_second=2.5 seconds_left=2 partition=t-0" in read_log()
    progress.advance("t-1", 1)
    assert read_log().count("recovering logs") == 1


def test_a_log_begun_in_a_new_folder_is_one_opened_in_an_empty_one(tmp_path: Path):
    """Beginning looks for nothing; all that follows must be as if it had."""
    disk, files, partition = Disk(), OpenFiles(), TopicPartition("orders", 0)
    config = LogConfig(segment_bytes=900, index_interval_bytes=150)
    begun = create_log(str(tmp_path / "begun"), partition, config, disk=disk, files=files, now_ms=NOW)
    opened = open_log(str(tmp_path / "opened"), partition, config, disk=disk, files=files, now_ms=NOW, clean=True)
    for log in (begun, opened):
        fill(log)
    assert state_of(begun) == state_of(opened)
    for log in (begun, opened):
        log.close()
    assert content(tmp_path / "begun") == content(tmp_path / "opened")
    with pytest.raises(FileExistsError):
        create_log(str(tmp_path / "begun"), partition, config, disk=disk, files=files, now_ms=NOW)
