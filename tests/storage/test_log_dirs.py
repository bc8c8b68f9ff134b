"""Several log dirs: where partitions go, and what one failing disk takes along."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from klamm.model.clock import ManualClock
from klamm.model.errors import ConfigError, ErrorCode, KlammError, StorageFailure
from klamm.storage import LogConfig, LogManager, StorageConfig

from .conftest import NOW, FaultyDisk, batch, from_producer, read_all

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"


class BrokenFolder(FaultyDisk):
    """A disk on which one folder can be made to fail."""

    broken = ""

    def pwritev(self, fd, buffers, position):
        self.check(fd)
        return os.pwritev(fd, buffers, position)

    def fdatasync(self, fd):
        self.check(fd)
        return os.fdatasync(fd)

    def check(self, fd) -> None:
        if self.broken and os.readlink(f"/proc/self/fd/{fd}").startswith(self.broken):
            raise OSError(errno.EIO, "Input/output error")


class Pair:
    """A manager of two log dirs, `a` (with the metadata log) and `b`."""

    def __init__(self, folder: Path, **config) -> None:
        self.disk = BrokenFolder()
        self.a, self.b = str(folder / "a"), str(folder / "b")
        self.manager = LogManager(
            StorageConfig(log_dirs=(self.a, self.b), vital_dirs=(self.a,), **config),
            clock=ManualClock(NOW),
            disk=self.disk,
        )
        self.manager.start(CLUSTER, 1, format_empty=True)
        self.stopped, self.offline = [], []
        self.manager.on_failure = lambda _, failure: self.stopped.append(failure)
        self.manager.on_dir_offline = lambda log_dir: self.offline.append(log_dir.path)
        ids = self.manager.directory_ids
        self.logs = {
            name: self.manager.create(name, 0, name.encode().ljust(16), LogConfig(), directory_id=ids[path])
            for name, path in (("a1", self.a), ("a2", self.a), ("b1", self.b), ("b2", self.b))
        }
        for log in self.logs.values():
            log.append_as_leader(from_producer(0), 0, NOW)


@pytest.mark.parametrize("how", ["write", "sync"])
def test_a_failed_disk_takes_its_own_logs_and_no_others(tmp_path: Path, how: str):
    pair = Pair(tmp_path)
    pair.disk.broken = pair.b
    log = pair.logs["b1"]
    fail = log.flush if how == "sync" else lambda: log.append_as_leader(from_producer(1), 0, NOW)
    with pytest.raises(StorageFailure):
        fail()
    assert pair.offline == [pair.b]
    assert pair.stopped == []
    for name in ("b1", "b2"):
        log = pair.logs[name]
        for use in (
            lambda log=log: log.append_as_leader(from_producer(1), 0, NOW),
            lambda log=log: log.read(0, 1000, 1),
            lambda log=log: log.offset_for_timestamp(0),
            lambda log=log: log.delete_records(0),
        ):
            with pytest.raises(KlammError) as refused:
                use()
            assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    for name in ("a1", "a2"):
        assert pair.logs[name].append_as_leader(from_producer(1), 0, NOW) == 1
        assert len(read_all(pair.logs[name])) == 2
    facts = {facts.path: facts.failure is None for facts in pair.manager.describe_dirs()}
    assert facts == {pair.a: True, pair.b: False}
    assert pair.manager.offline_directory_ids() == [pair.manager.directory_ids[pair.b]]
    assert os.path.dirname(pair.manager.create("new", 0, b"n" * 16, LogConfig()).path) == pair.a
    with pytest.raises(StorageFailure):
        pair.manager.create("x", 0, b"x" * 16, LogConfig(), directory_id=pair.manager.directory_ids[pair.b])
    pair.disk.broken = ""
    pair.manager.tick()
    pair.manager.close()
    assert os.path.exists(f"{pair.a}/.kafka_cleanshutdown")
    assert not os.path.exists(f"{pair.b}/.kafka_cleanshutdown"), "the next start looks at it"
    again = Pair(tmp_path)
    assert [len(read_all(again.logs[name])) for name in ("a1", "b1")] == [2, 1]
    again.manager.close()


def test_without_the_metadata_log_or_any_dir_the_node_stops(tmp_path: Path):
    pair = Pair(tmp_path)
    pair.disk.broken = pair.a
    with pytest.raises(StorageFailure):
        pair.logs["a1"].append_as_leader(batch(), 0, NOW)
    assert len(pair.stopped) == 1
    assert pair.offline == []
    pair.disk.broken = ""
    pair.manager.close(clean=False)


def test_a_folder_for_metadata_alone_gets_no_partitions(tmp_path: Path):
    pair = Pair(tmp_path, metadata_only_dirs=(str(tmp_path / "a"),))
    made = [pair.manager.create("t", i, b"t" * 16, LogConfig()) for i in range(5)]
    assert {os.path.dirname(log.path) for log in made} == {pair.b}
    pair.manager.close()


# --- a log dir that cannot be used at start --------------------------------------------------------------------------


class BrokenAtStart(Pair):
    """The same two log dirs, with something wrong in one of them before the start."""

    def __init__(self, folder: Path) -> None:
        self.a, self.b = str(folder / "a"), str(folder / "b")
        self.disk = FaultyDisk()
        self.manager = LogManager(
            StorageConfig(log_dirs=(self.a, self.b), vital_dirs=(self.a,)), clock=ManualClock(NOW), disk=self.disk
        )


def refuse(folder: str):
    def check(path, *_):
        if str(path).startswith(folder):
            raise OSError(errno.EIO, "Input/output error", path)

    return check


@pytest.mark.parametrize("what", ["a file in its place", "lock", "identity", "checkpoint", "segment"])
def test_a_log_dir_that_fails_at_start_fails_alone(tmp_path: Path, what: str, read_log):
    Pair(tmp_path).manager.close()
    pair = BrokenAtStart(tmp_path)
    if what == "a file in its place":
        os.rename(pair.b, pair.b + "-away")
        Path(pair.b).write_bytes(b"")
    else:
        inside = {
            "lock": "/.lock",
            "identity": "/meta.properties",
            "checkpoint": "/recovery-point-offset-checkpoint",
            "segment": "/b2-0/",
        }
        pair.disk.fail["open"] = refuse(pair.b + inside[what])
    pair.manager.start(CLUSTER, 1)
    assert sorted(log.topic for log in pair.manager.logs()) == ["a1", "a2"]
    facts = {log_dir.path: log_dir.failure for log_dir in pair.manager.describe_dirs()}
    assert facts[pair.a] is None
    assert facts[pair.b]
    assert pair.manager.online_directory_ids([pair.a, pair.b]) == [pair.manager.directory_ids[pair.a]]
    assert f"log directory failed folder={pair.b}" in read_log()
    assert pair.manager.get("a1", 0).append_as_leader(batch(), 0, NOW) == 1
    assert os.path.dirname(pair.manager.create("new", 0, b"n" * 16, LogConfig()).path) == pair.a
    assert pair.manager.previous_broker_epoch == -1
    pair.disk.fail.clear()
    pair.manager.close()
    if what == "a file in its place":
        os.unlink(pair.b)
        os.rename(pair.b + "-away", pair.b)
    again = BrokenAtStart(tmp_path)
    again.manager.start(CLUSTER, 1)
    assert len(read_all(again.manager.get("b2", 0))) == 1, "nothing of it was touched meanwhile"
    again.manager.close()


def test_without_a_log_dir_it_needs_a_node_does_not_start(tmp_path: Path):
    Pair(tmp_path).manager.close()
    for broken in ("a", "both"):
        pair = BrokenAtStart(tmp_path)
        pair.disk.fail["open"] = refuse(pair.a if broken == "a" else str(tmp_path))
        with pytest.raises(ConfigError, match="cannot be"):
            pair.manager.start(CLUSTER, 1)


def test_a_log_dir_somebody_else_holds_stops_the_start(tmp_path: Path):
    """That is a mistake of the operator: a broker must not start with half of its data."""
    holder = Pair(tmp_path)
    with pytest.raises(ConfigError, match="in use by another process"):
        BrokenAtStart(tmp_path).manager.start(CLUSTER, 1)
    holder.manager.close()


# --- names that come again -------------------------------------------------------------------------------------------


def test_a_new_log_inherits_nothing_from_a_deleted_one_of_its_name(tmp_path: Path):
    """Checkpoints are written once a minute; a crash before that must not judge the new log by the old offsets."""
    folder = tmp_path / "data"
    manager = LogManager(StorageConfig(log_dirs=(str(folder),)), clock=ManualClock(NOW))
    manager.start(CLUSTER, 1, format_empty=True)
    old = manager.create("t", 0, b"o" * 16, LogConfig())
    for sequence in range(50):
        old.append_as_leader(from_producer(sequence), 0, NOW)
    old.advance_high_watermark(50)
    old.delete_records(30)
    old.flush()
    old.state.cleaned_offset = 40
    manager._cleaner_checkpoint(old)()
    manager.checkpoint()
    manager.delete("t", 0)
    new = manager.create("t", 0, b"n" * 16, LogConfig())
    for _ in range(3):
        new.append_as_leader(batch(), 0, NOW)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    manager.close()
    torn = copy / "t-0" / "00000000000000000000.log"
    torn.write_bytes(torn.read_bytes()[:-5])
    again = LogManager(StorageConfig(log_dirs=(str(copy),)), clock=ManualClock(NOW))
    again.start(CLUSTER, 1)
    log = again.get("t", 0)
    assert (log.log_start_offset, log.log_end_offset, log.cleaned_offset) == (0, 2, None)
    assert log.append_as_leader(batch(), 0, NOW) == 2
    again.close()
