"""A bit that has flipped in a file of a stopped node: the next start mends it, works around it, or says what is wrong.

tests/storage/test_flipped_bits.py flips more of them, without a process.
"""

import json
import re
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from harness import KlammFailed, KlammProcess, Wire, batch
from harness.damage import DERIVED, flip
from klamm.records import build_batch

STORAGE_ERROR = 56
PATIENCE_S = 120
NODE = {
    "log.cleaner.backoff.ms": "100",
    "log.flush.offset.checkpoint.interval.ms": "200",
    "metadata.log.max.record.bytes.between.snapshots": "500",
}
SMALL = {"internal_segment_bytes": "2000", "index_interval_bytes": "100"}


class Home(NamedTuple):
    """A data folder with every kind of file, as a clean stop and as a kill leaves it, and what its topics hold."""

    stopped: Path
    killed: Path
    plain: list[bytes | None]
    keyed: dict[bytes | None, bytes | None]


def wait_for(condition, what: str):
    deadline = time.monotonic() + PATIENCE_S
    while not (result := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return result


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("home")
    with KlammProcess(folder, overrides=NODE) as klamm, Wire(klamm.port) as wire:
        wire.create_topic("plain", **SMALL)
        for i in range(60):
            records = batch(b"%d" % i, producer_id=1000, producer_epoch=0, base_sequence=i)
            assert wire.produce("plain", records).error_code == 0
        wire.create_topic("worn", flush_messages="1", **SMALL)
        for i in range(60):
            assert wire.produce("worn", batch(b"%d" % i)).error_code == 0
        wire.create_topic("cut")
        wire.produce("cut", batch(b"0", b"1", b"2", b"3"))
        requested = {"name": "cut", "partitions": [{"partition_index": 0, "offset": 2}]}
        wire.call("delete_records", 2, topics=[requested], timeout=10_000)
        wire.create_topic("keyed", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", **SMALL)
        for i in range(60):
            rows = [(int(time.time() * 1000), b"key %d" % (i % 5), b"%d" % i, ())]
            assert wire.produce("keyed", bytes(build_batch(rows))).error_code == 0
        data = klamm.data
        points = data / "recovery-point-offset-checkpoint"
        wait_for(lambda: "compacted partition=keyed-0" in klamm.log(), "nothing was compacted")
        wait_for(lambda: points.exists() and "worn 0 60" in points.read_text(), "no recovery point")
        wait_for(lambda: "cut 0 2" in (data / "log-start-offset-checkpoint").read_text(), "no log start")
        wait_for(lambda: list(data.glob("__cluster_metadata-0/*.checkpoint")), "no snapshot of the metadata")
        plain, keyed = wire.values("plain"), latest(wire)
        klamm.pause()
        shutil.copytree(data, folder / "killed")
        klamm.resume()
        klamm.stop()
    return Home(data, folder / "killed", plain, keyed)


def latest(wire: Wire) -> dict[bytes | None, bytes | None]:
    values, offset, end = {}, 0, wire.end_offset("keyed")
    while offset < end:
        for view in wire_batches(wire.fetch("keyed", offset).records):
            values.update((row[2], row[3]) for row in view.decode_rows())
            offset = view.next_offset
    return values


def wire_batches(records):
    from klamm.records import iter_batches

    for view in iter_batches(records or b""):
        view.check_crc()
        yield view


def node_of(folder: Path, data: Path) -> KlammProcess:
    """A node on a copy of the data."""
    shutil.copytree(data, folder / "data")
    return KlammProcess(folder, overrides=NODE)


def check_topics(home: Home, klamm: KlammProcess) -> None:
    with Wire(klamm.port) as wire:
        assert wire.values("plain") == home.plain, klamm.stderr()
        assert latest(wire) == home.keyed, klamm.stderr()
        assert wire.values("cut", 2) == [b"2", b"3"]
        assert (
            wire.produce("plain", batch(b"60", producer_id=1000, producer_epoch=0, base_sequence=60)).base_offset == 60
        )
        again = batch(b"59", producer_id=1000, producer_epoch=0, base_sequence=59)
        assert wire.produce("plain", again).base_offset == 59, "the producer's last batches are known"
        assert wire.end_offset("plain") == 61


@pytest.mark.parametrize("stop", ["stopped", "killed"])
def test_what_a_log_or_the_metadata_tells_again(tmp_path: Path, home: Home, stop: str):
    klamm = node_of(tmp_path, getattr(home, stop))
    for pattern in DERIVED:
        paths = [path for path in klamm.data.glob(pattern) if path.stat().st_size and "__cluster" not in str(path)]
        assert paths, pattern
        for path in paths:
            flip(path)
    with klamm:
        check_topics(home, klamm)
        klamm.stop()


def test_a_log_that_was_synced(tmp_path: Path, home: Home):
    """It is served up to the damage and takes no appends; the others are none the worse."""
    klamm = node_of(tmp_path, home.killed)
    last = max(klamm.data.glob("worn-0/*.log"))
    flip(last, 62)
    size = last.stat().st_size
    with klamm:
        check_topics(home, klamm)
        with Wire(klamm.port) as wire:
            values = wire.values("worn")
            assert values == [b"%d" % i for i in range(int(last.stem))]
            assert wire.produce("worn", batch(b"more")).error_code == STORAGE_ERROR
        assert re.search(rf"ERROR storage log damaged .*path={re.escape(str(last))} position=0 ", klamm.log())
        klamm.stop()
    assert last.stat().st_size == size, "nothing of it is gone"


@pytest.mark.parametrize("line", ["cluster.id", "node.id", "version", "directory.id"])
def test_the_identity_of_a_folder(tmp_path: Path, home: Home, line: str):
    """A start goes on with all there is, or says which file is wrong; nothing is made anew in its place."""
    klamm = node_of(tmp_path, home.stopped)
    path = klamm.data / "meta.properties"
    text = path.read_bytes()
    flip(path, text.index(line.encode() + b"=") + len(line) + 1, 1)
    judge(home, klamm, path, text)


@pytest.mark.parametrize("field", ["leaderEpoch", "votedId", "data_version", "leaderId"])
def test_the_vote_of_a_quorum_member(tmp_path: Path, home: Home, field: str):
    klamm = node_of(tmp_path, home.stopped)
    path = klamm.data / "__cluster_metadata-0" / "quorum-state"
    text = path.read_bytes()
    assert field in json.loads(text)
    flip(path, text.index(field.encode()) + len(field) + 2, 1)
    judge(home, klamm, path, text)


def judge(home: Home, klamm: KlammProcess, path: Path, text: bytes) -> None:
    """The node serves everything, or it names the folder and starts once the file is as it was."""
    try:
        klamm.start()
    except KlammFailed:
        output = klamm.stderr()
        assert str(path.parent) in output, output
        assert "Traceback" not in output, output
        path.write_bytes(text)
        klamm.start()
    with Wire(klamm.port):
        check_topics(home, klamm)
    klamm.stop()


def test_a_snapshot_of_the_metadata(tmp_path: Path, home: Home):
    """There is another, or the log."""
    klamm = node_of(tmp_path, home.stopped)
    newest = max(klamm.data.glob("__cluster_metadata-0/*.checkpoint"))
    flip(newest)
    judge(home, klamm, newest, (home.stopped / "__cluster_metadata-0" / newest.name).read_bytes())


def test_the_log_of_the_metadata(tmp_path: Path, home: Home):
    klamm = node_of(tmp_path, home.stopped)
    log = max(klamm.data.glob("__cluster_metadata-0/*.log"))
    flip(log)
    judge(home, klamm, log, (home.stopped / "__cluster_metadata-0" / log.name).read_bytes())
