"""Plain files: a batch is in the folder once, whichever step the process dies at, and whichever process is next."""

import json
import os

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from klamm.pipeline import SinkError
from klamm.pipeline.lake import compaction, folder_log
from klamm.pipeline.lake.folder_log import FileMove, FolderLog, side_folder

APP = "klamm-pipeline-x.audit.0"
STEPS = ("os.replace", "os.fsync", "os.makedirs")
"""What changes something, or makes it last."""
TARGET_BYTES = 1 << 20
"""Larger than all files of a test together: everything is merged into one."""
BATCHES = 20


class Killed(BaseException):
    """Nothing in the code waits for it."""


def stage(log, batch, parts, attempt=0):
    """Files as a batch's tasks leave them: `parts` are (folder, rows)."""
    moves = []
    for place, (folder, rows) in enumerate(parts):
        path = os.path.join(log.staging(APP, f"{batch}-{attempt}"), f"part-{place}.parquet")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        pq.write_table(pa.table({"n": rows}), path)
        moves.append(FileMove(os.path.relpath(path, log.side), os.path.join(folder, f"{batch:04d}-{place}.parquet")))
    return moves


def write(log, batch, parts, attempt=0):
    """As the sink does it."""
    with log.hold_lock():
        if log.has_batch(APP, batch):
            return False
    moves = stage(log, batch, parts, attempt)
    with log.hold_lock():
        if log.has_batch(APP, batch):
            return False
        log.commit_batch(APP, batch, moves)
        log.clear(APP)
    return True


def seen(path):
    """What an independent reader finds."""
    if not os.path.isdir(path):
        return []
    table = ds.dataset(path, format="parquet", partitioning="hive").to_table()
    return sorted(table["n"].to_pylist()) if table.num_rows else []


def dies_at(monkeypatch, count, after):
    """Let the process die at the count-th step that changes something; returns how many there were."""
    steps = [0]

    def watched(original):
        def call(*args, **keywords):
            steps[0] += 1
            mine = steps[0]
            if mine == count and not after:
                raise Killed
            result = original(*args, **keywords)
            if mine == count:
                raise Killed
            return result

        return call

    for name in STEPS:
        monkeypatch.setattr(folder_log.os, name.removeprefix("os."), watched(getattr(os, name.removeprefix("os."))))
    return steps


PARTS = [("day=1", [1, 2]), ("day=2", [3]), ("day=2", [4, 5])]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_batch_is_there_once_wherever_its_driver_dies(tmp_path, after):
    """Every step of the decision and of the moves; readers see a part of the batch at most, and never a row twice."""
    killed = True
    count = 0
    while killed:
        count += 1
        path = str(tmp_path / f"{after}-{count}" / "table")
        log = FolderLog(path)
        write(log, 0, [("day=0", [0])])
        with pytest.MonkeyPatch.context() as patch:
            dies_at(patch, count, after)
            try:
                write(log, 1, PARTS)
                killed = False
            except Killed:
                pass
        rows = seen(path)
        assert len(rows) == len(set(rows)), f"step {count}"
        assert set(rows) <= {0, 1, 2, 3, 4, 5}
        again = FolderLog(path)
        write(again, 1, list(reversed(PARTS)), attempt=1)
        assert seen(path) == [0, 1, 2, 3, 4, 5], f"step {count}"
        assert not any(names for _, _, names in os.walk(os.path.join(again.side, "staging")))
        assert write(again, 2, [("day=3", [6])], attempt=2)
        assert seen(path) == [0, 1, 2, 3, 4, 5, 6]
    assert count > 8


def test_a_decided_batch_is_finished_without_computing_it_again(tmp_path):
    log = FolderLog(str(tmp_path / "table"))
    moves = stage(log, 0, PARTS)
    with log.hold_lock(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(FolderLog, "_finish", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            log.commit_batch(APP, 0, moves)
    assert seen(log.path) == []
    with log.hold_lock():
        assert log.has_batch(APP, 0)
        assert not log.has_batch(APP, 1)
    assert seen(log.path) == [1, 2, 3, 4, 5]


def test_an_old_driver_that_comes_back_adds_nothing(tmp_path):
    """Its files are staged; another has done the batch meanwhile, and cleared what lay around."""
    log = FolderLog(str(tmp_path / "table"))
    stage(log, 0, PARTS, attempt=7)
    assert write(log, 0, PARTS)
    with log.hold_lock():
        assert log.has_batch(APP, 0)
    assert seen(log.path) == [1, 2, 3, 4, 5]


def test_writers_do_not_know_each_other(tmp_path):
    log = FolderLog(str(tmp_path / "table"))
    assert write(log, 5, PARTS)
    with log.hold_lock():
        assert not log.has_batch("another", 0)
        log.commit_batch("another", 0, [])
        assert log.has_batch("another", 0)


def test_a_decision_whose_files_are_gone_is_told(tmp_path):
    log = FolderLog(str(tmp_path / "table"))
    with log.hold_lock():
        log.commit_batch(APP, 0, [])
        entry = {"app": APP, "batch": 1, "moves": [["staging/gone", "gone.parquet"]]}
        with open(log._file(APP), "w") as file:
            json.dump(entry, file)
        with pytest.raises(SinkError, match="staging/gone does not exist"):
            log.has_batch(APP, 1)
        with open(log._file(APP), "w") as file:
            file.write("{")
        with pytest.raises(SinkError, match="is not a record of the batches"):
            log.has_batch(APP, 1)


def test_nothing_of_ours_lies_where_readers_look(tmp_path):
    log = FolderLog(str(tmp_path / "table"))
    stage(log, 0, PARTS)
    assert not os.path.exists(log.path)
    assert side_folder(log.path) == str(tmp_path / ".table.klamm")


# Compaction


def many(log, count, folders=("",)):
    for batch in range(count):
        write(log, batch, [(folder, [batch * 100 + place]) for place, folder in enumerate(folders)])


@pytest.mark.parametrize("folders", [("",), ("day=1", "day=2/kind=a")])
def test_compaction_keeps_every_row(tmp_path, folders):
    log = FolderLog(str(tmp_path / "table"))
    many(log, BATCHES, folders)
    before = seen(log.path)
    merges = compaction.plan_merges(log, TARGET_BYTES)
    assert [(merge.partition, merge.files, merge.into) for merge in merges] == [
        (folder, BATCHES, 1) for folder in folders
    ]
    progress = []
    assert compaction.compact_folder(log, TARGET_BYTES, progress.append) == BATCHES * len(folders)
    assert progress[-1] == BATCHES * len(folders)
    assert seen(log.path) == before
    assert compaction.plan_merges(log, TARGET_BYTES) == []
    many(log, BATCHES + 1, folders)
    assert len(seen(log.path)) == (BATCHES + 1) * len(folders)
    assert sum(len(names) for _, _, names in os.walk(log.path)) == 2 * len(folders)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_readers_never_see_a_row_twice_or_miss_one_wherever_a_compaction_dies(tmp_path, after):
    killed, count = True, 0
    while killed:
        count += 1
        log = FolderLog(str(tmp_path / str(count) / "table"))
        many(log, 3, ("day=1", "day=2"))
        expected = seen(log.path)
        steps = [0]

        def watched(original, log=log, expected=expected, steps=steps, count=count):
            def call(*args):
                steps[0] += 1
                mine = steps[0]
                if mine == count and not after:
                    raise Killed
                original(*args)
                assert seen(log.path) == expected
                if mine == count:
                    raise Killed

            return call

        with pytest.MonkeyPatch.context() as patch:
            for name in ("exchange_folders", "fsync_path", "_merge"):
                patch.setattr(compaction, name, watched(getattr(compaction, name)))
            try:
                compaction.compact_folder(log, TARGET_BYTES, lambda _: None)
                killed = False
            except Killed:
                pass
        assert seen(log.path) == expected
        compaction.compact_folder(log, TARGET_BYTES, lambda _: None)
        assert compaction.plan_merges(log, TARGET_BYTES) == []
        assert seen(log.path) == expected
    assert count > 6


def test_a_compaction_finishes_what_a_dead_driver_has_decided(tmp_path):
    """Its first file is in its place; were it merged away, the next driver would look for it in vain."""
    log = FolderLog(str(tmp_path / "table"))
    many(log, 2, ("day=1",))
    moves = stage(log, 2, [("day=1", [7]), ("day=2", [8])])
    with log.hold_lock(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_log, "_move", lambda *files: os.replace(*files) or (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            log.commit_batch(APP, 2, moves)
    assert compaction.compact_folder(log, TARGET_BYTES, lambda _: None) == 3
    assert seen(log.path) == [0, 7, 8, 100]
    with log.hold_lock():
        assert log.has_batch(APP, 2)
    assert seen(log.path) == [0, 7, 8, 100]


def test_a_batch_that_comes_while_files_are_merged_is_kept(tmp_path, monkeypatch):
    """Writers need not wait: what came is there; and files that were replaced meanwhile do not come back."""
    log = FolderLog(str(tmp_path / "table"))
    many(log, 3, ("day=1", "day=2"))
    original = compaction._merge

    def merge(paths, target):
        original(paths, target)
        batch = log.entry(APP).batch + 1
        if "day=1" in paths[0]:
            write(log, batch, [("day=1", [1000])])
        else:
            moves = stage(log, batch, [("day=2", [2000])])
            with log.hold_lock():
                compaction.replace_partitions(log, moves)

    monkeypatch.setattr(compaction, "_merge", merge)
    assert compaction.compact_folder(log, TARGET_BYTES, lambda _: None) == 3
    assert seen(log.path) == [0, 100, 200, 1000, 2000]


def test_columns_that_came_later_are_kept(tmp_path):
    folder = tmp_path / "table"
    folder.mkdir()
    pq.write_table(pa.table({"n": [1]}), folder / "a.parquet")
    pq.write_table(pa.table({"n": [2], "m": ["x"]}), folder / "b.parquet")
    (folder / "notes.txt").write_text("mine")
    assert compaction.compact_folder(FolderLog(str(folder)), TARGET_BYTES, lambda _: None) == 2
    table = ds.dataset(sorted(str(path) for path in folder.glob("*.parquet"))).to_table()
    assert sorted(table.to_pylist(), key=lambda row: row["n"]) == [{"n": 1, "m": None}, {"n": 2, "m": "x"}]
    assert (folder / "notes.txt").read_text() == "mine"
