"""One flipped bit in any file: a start succeeds, and no record is lost, changed or passed over.

KLAMM_SIM_FLIPS sets how many bits of each kind of file (8), KLAMM_SIM_SEED which.
"""

import os
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from harness.damage import DERIVED, flip
from klamm.model.clock import ManualClock
from klamm.model.errors import CorruptBatch
from klamm.model.ids import TopicPartition
from klamm.records.batch import BatchView
from klamm.storage import Log, LogConfig, LogManager, StorageConfig
from klamm.storage.offline_check import check_folders
from klamm.telemetry.log import _SINK, Level

from .campaign.trace import QuickDisk
from .conftest import NOW, append_end_txn_marker, batch, from_producer

pytestmark = pytest.mark.timeout(900)
FLIPS = int(os.environ.get("KLAMM_SIM_FLIPS", "8"))
SEED = int(os.environ.get("KLAMM_SIM_SEED", "0"))
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
LOG = LogConfig(segment_bytes=2500, index_interval_bytes=150, retention_ms=10 * 365 * 86_400_000)
KEYED = LogConfig(segment_bytes=2500, index_interval_bytes=150, cleanup_policy=frozenset({"compact"}))
IDS = {"orders": b"o" * 16, "paid": b"p" * 16, "keyed": b"k" * 16}
DELETED_TO = 37
"""Where DeleteRecords has moved the start of orders-1."""
MARKER = ".kafka_cleanshutdown"
CASES = [(pattern, stop) for pattern in DERIVED for stop in ("clean", "killed")] + [(MARKER, "clean")]


def config_for(topic: str) -> LogConfig:
    return KEYED if topic == "keyed" else LOG


def started(folder: Path) -> LogManager:
    manager = LogManager(StorageConfig(log_dirs=(str(folder),)), clock=ManualClock(NOW + 1000), disk=QuickDisk())
    manager.start(CLUSTER, 1, format_empty=True, config_for=config_for)
    known = {TopicPartition(t, p): IDS[t] for t in IDS for p in ((0, 1) if t == "orders" else (0,))}
    assert manager.strays(known) == [], "a damaged topic id does not send a log away"
    for partition, topic_id in known.items():
        manager.create(*partition, topic_id, config_for(partition.topic))
    return manager


def facts(log: Log) -> dict[str, object]:
    """What can be read of a log."""
    start, end = log.log_start_offset, log.log_end_offset
    return {
        "id": log.topic_id,
        "start": start,
        "end": end,
        "records": [_batch_at(log, offset) for offset in range(start, end)],
        "times": [log.offset_for_timestamp(NOW + i) for i in range(-1, 45, 4)],
        "largest": log.offset_of_max_timestamp(),
        "epochs": [log.leader_epochs.epoch_for_offset(offset) for offset in range(start, end)],
        "aborted": log.aborted_transactions(start, end),
        "producers": {
            entry.producer_id: (entry.epoch, entry.next_sequence, entry.txn_first_offset)
            for entry in log.producers.entries.values()
        },
        "deleted by retention": log.count_deletable_segments(NOW + 1000),
    }


def _batch_at(log: Log, offset: int) -> list[tuple[int, bytes | None]]:
    piece = log.read(offset, 1, log.log_end_offset)
    assert piece is not None
    view = BatchView(piece.read())
    view.check_crc()
    return [(row.offset, row.value) for row in view.decode()]


def everything(manager: LogManager) -> dict[str, dict[str, object]]:
    return {log.name: facts(log) for log in manager.logs()}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, object]]]:
    """A folder with every kind of file, and what is in it."""
    folder = tmp_path_factory.mktemp("sound") / "data"
    manager = LogManager(StorageConfig(log_dirs=(str(folder),)), clock=ManualClock(NOW))
    manager.start(CLUSTER, 1, format_empty=True)
    for partition in (0, 1):
        log = manager.create("orders", partition, IDS["orders"], LOG)
        for i in range(40):
            log.append_as_leader(from_producer(i, value=b"value %d" % i, timestamp=NOW + i), 3 + i // 20, NOW + i)
        log.advance_high_watermark(40)
    log.delete_records(DELETED_TO)
    log = manager.create("paid", 0, IDS["paid"], LOG)
    for i in range(30):
        log.append_as_leader(from_producer(2 * i, 2, producer_id=8, transactional=True, timestamp=NOW + i), 0, NOW)
        log.append_as_leader(batch(timestamp=NOW + i), 0, NOW)
        append_end_txn_marker(log, 8, 0, committed=i % 3 == 1, coordinator_epoch=2, leader_epoch=0, now_ms=NOW + i)
    log.advance_high_watermark(log.log_end_offset)
    log = manager.create("keyed", 0, IDS["keyed"], KEYED)
    for i in range(40):
        log.append_as_leader(batch(timestamp=NOW + i), 0, NOW + i)
    log.advance_high_watermark(40)
    log.state.cleaned_offset = log.segments[1].base_offset
    manager._cleaner_checkpoint(log)()
    manager.close()
    copy = folder.with_name("looked at")
    shutil.copytree(folder, copy)
    manager = started(copy)
    expected = everything(manager)
    manager.close()
    assert expected["orders-1"]["start"] == DELETED_TO
    assert expected["paid-0"]["aborted"]
    return folder, expected


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_SINK, "level", Level.OFF)


def damaged(sound: Path, folder: Path, pattern: str, chance: random.Random, number: int) -> tuple[Path, str]:
    """A copy with one flipped bit in a file of a kind, and which."""
    copy = folder / f"{number}"
    shutil.copytree(sound, copy)
    path = chance.choice([path for path in sorted(copy.glob(pattern)) if path.stat().st_size])
    position, bit = chance.randrange(path.stat().st_size), chance.randrange(8)
    flip(path, position, bit)
    return copy, f"bit {bit} of byte {position} of {path.relative_to(copy)}"


@pytest.mark.parametrize(("pattern", "stop"), CASES)
def test_what_can_be_told_from_the_log_is_told_from_the_log(tmp_path: Path, sound, pattern: str, stop: str):
    folder, expected = sound
    chance = random.Random(f"{SEED} {pattern} {stop}")
    for number in range(FLIPS):
        copy, where = damaged(folder, tmp_path, pattern, chance, number)
        if stop == "killed":
            (copy / MARKER).unlink()
        manager = started(copy)
        observed = everything(manager)
        for name, wanted in expected.items():
            if pattern == "log-start-offset-checkpoint" and name == "orders-1":
                # What was deleted may come back as far as its segment goes; nothing else may go.
                assert observed[name]["start"] <= DELETED_TO, where
                observed[name] = {
                    **wanted,
                    **{key: observed[name][key] for key in ("id", "end", "aborted", "producers")},
                }
            assert observed[name] == wanted, f"{where}: {name}"
        for log in manager.logs():
            assert log.append_as_leader(batch(), 9, NOW) == expected[log.name]["end"], where
        manager.close(clean=False)
        shutil.rmtree(copy)


def test_an_index_of_aborted_transactions_is_right_or_refused(tmp_path: Path, sound):
    """Readers of committed data never get aborted records, or miss others, because of it."""
    folder, expected = sound
    chance = random.Random(SEED)
    for number in range(2 * FLIPS):
        copy, where = damaged(folder, tmp_path, "paid-0/*.txnindex", chance, number)
        manager = started(copy)
        log = manager.get("paid", 0)
        with suppress(CorruptBatch):
            aborted = log.aborted_transactions(0, log.log_end_offset)
            kept = [(txn.producer_id, txn.first_offset, txn.last_offset) for txn in aborted]
            assert kept == [(t.producer_id, t.first_offset, t.last_offset) for t in expected["paid-0"]["aborted"]], (
                where
            )
        manager.close(clean=False)
        shutil.rmtree(copy)


@pytest.mark.parametrize("synced", [True, False])
def test_a_damaged_log_is_served_up_to_the_damage_and_cut_only_where_nobody_had_synced(tmp_path: Path, sound, synced):
    """Offsets and leader epochs of a batch lie outside its checksum; what follows tells."""
    folder, expected = sound
    chance = random.Random(SEED)
    for number in range(FLIPS):
        copy, where = damaged(folder, tmp_path, "orders-0/*.log", chance, number)
        sizes = {path.name: path.stat().st_size for path in copy.glob("orders-0/*.log")}
        (copy / MARKER).unlink()
        points = copy / "recovery-point-offset-checkpoint"
        points.write_text(f"0\n1\norders 0 {40 if synced else 0}\n")
        manager = started(copy)
        log = manager.get("orders", 0)
        wanted = [row for (row,) in expected["orders-0"]["records"]]
        read_back, noticed = [], log.failed
        with suppress(CorruptBatch):  # what a client says of bytes below the recovery point, which no start reads
            noticed = True
            while len(read_back) < min(log.log_end_offset, len(wanted)):
                if log.read(len(read_back), 1, log.log_end_offset) is None:
                    break
                read_back += _batch_at(log, len(read_back))
            noticed = log.failed
        ends_here = noticed or len(read_back) == min(log.log_end_offset, len(wanted))
        manager.close(clean=False)
        if read_back != wanted[: len(read_back)] or not ends_here:
            # Only a check of the whole log can know: no start reads this segment, and no checksum covers an offset.
            assert synced, f"{where}: a hole"
            assert _hit_an_offset(folder, copy), f"{where}: a hole"
            assert any("orders-0" in problem.path for problem in check_folders([str(copy)]).problems), where
        elif len(read_back) < len(wanted) and synced:
            assert noticed, where
            kept = {path.name: path.stat().st_size for path in copy.glob("orders-0/*.log")}
            assert kept == sizes, f"{where}: nothing is cut that was durable"
        shutil.rmtree(copy)


def _hit_an_offset(folder: Path, copy: Path) -> bool:
    """Whether the byte that differs is one of a batch's base offset."""
    for path in copy.glob("orders-0/*.log"):
        sound, hurt, start = (folder / "orders-0" / path.name).read_bytes(), path.read_bytes(), 0
        at = next((i for i, (one, other) in enumerate(zip(sound, hurt, strict=True)) if one != other), None)
        while at is not None:
            if start <= at < start + 8:
                return True
            start += int.from_bytes(sound[start + 8 : start + 12], "big") + 12
            if start > at:
                break
    return False
