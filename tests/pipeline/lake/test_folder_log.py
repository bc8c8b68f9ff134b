"""Plain files: a batch is in the folder once, whichever of its steps the process dies at, and whoever comes next."""

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


class Killed(BaseException):
    """Nothing in the code waits for it."""


def stage(book, batch, parts, attempt=0):
    """Files as a batch's tasks leave them: `parts` are (folder, rows)."""
    moves = []
    for place, (folder, rows) in enumerate(parts):
        path = os.path.join(book.staging(APP, f"{batch}-{attempt}"), f"part-{place}.parquet")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        pq.write_table(pa.table({"n": rows}), path)
        moves.append(FileMove(os.path.relpath(path, book.side), os.path.join(folder, f"{batch:04d}-{place}.parquet")))
    return moves


def write(book, batch, parts, attempt=0):
    """As the sink does it."""
    with book.locked():
        if book.has_batch(APP, batch):
            return False
    moves = stage(book, batch, parts, attempt)
    with book.locked():
        if book.has_batch(APP, batch):
            return False
        book.commit_batch(APP, batch, moves)
        book.clear(APP)
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
            found = original(*args, **keywords)
            if mine == count:
                raise Killed
            return found

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
        book = FolderLog(path)
        write(book, 0, [("day=0", [0])])
        with pytest.MonkeyPatch.context() as patch:
            dies_at(patch, count, after)
            try:
                write(book, 1, PARTS)
                killed = False
            except Killed:
                pass
        found = seen(path)
        assert len(found) == len(set(found)), f"step {count}"
        assert set(found) <= {0, 1, 2, 3, 4, 5}
        again = FolderLog(path)
        write(again, 1, list(reversed(PARTS)), attempt=1)
        assert seen(path) == [0, 1, 2, 3, 4, 5], f"step {count}"
        assert not any(names for _, _, names in os.walk(os.path.join(again.side, "staging")))
        assert write(again, 2, [("day=3", [6])], attempt=2)
        assert seen(path) == [0, 1, 2, 3, 4, 5, 6]
    assert count > 8


def test_a_decided_batch_is_finished_without_computing_it_again(tmp_path):
    book = FolderLog(str(tmp_path / "table"))
    moves = stage(book, 0, PARTS)
    with book.locked(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(FolderLog, "_finish", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            book.commit_batch(APP, 0, moves)
    assert seen(book.path) == []
    with book.locked():
        assert book.has_batch(APP, 0)
        assert not book.has_batch(APP, 1)
    assert seen(book.path) == [1, 2, 3, 4, 5]


def test_an_old_driver_that_comes_back_adds_nothing(tmp_path):
    """Its files are staged; another has done the batch meanwhile, and cleared what lay around."""
    book = FolderLog(str(tmp_path / "table"))
    stage(book, 0, PARTS, attempt=7)
    assert write(book, 0, PARTS)
    with book.locked():
        assert book.has_batch(APP, 0)
    assert seen(book.path) == [1, 2, 3, 4, 5]


def test_writers_do_not_know_each_other(tmp_path):
    book = FolderLog(str(tmp_path / "table"))
    assert write(book, 5, PARTS)
    with book.locked():
        assert not book.has_batch("another", 0)
        book.commit_batch("another", 0, [])
        assert book.has_batch("another", 0)


def test_a_decision_whose_files_are_gone_is_told(tmp_path):
    book = FolderLog(str(tmp_path / "table"))
    with book.locked():
        book.commit_batch(APP, 0, [])
        entry = {"app": APP, "batch": 1, "moves": [["staging/gone", "gone.parquet"]]}
        with open(book._file(APP), "w") as file:
            json.dump(entry, file)
        with pytest.raises(SinkError, match="staging/gone does not exist"):
            book.has_batch(APP, 1)
        with open(book._file(APP), "w") as file:
            file.write("{")
        with pytest.raises(SinkError, match="is no record of the batches"):
            book.has_batch(APP, 1)


def test_nothing_of_ours_lies_where_readers_look(tmp_path):
    book = FolderLog(str(tmp_path / "table"))
    stage(book, 0, PARTS)
    assert not os.path.exists(book.path)
    assert side_folder(book.path) == str(tmp_path / ".table.klamm")


# Compaction


def many(book, count, folders=("",)):
    for batch in range(count):
        write(book, batch, [(folder, [batch * 100 + place]) for place, folder in enumerate(folders)])


@pytest.mark.parametrize("folders", [("",), ("day=1", "day=2/kind=a")])
def test_compaction_keeps_every_row(tmp_path, folders):
    book = FolderLog(str(tmp_path / "table"))
    many(book, 20, folders)
    before = seen(book.path)
    merges = compaction.plan_merges(book, 1 << 20)
    assert [(merge.partition, merge.files, merge.into) for merge in merges] == [(folder, 20, 1) for folder in folders]
    told = []
    assert compaction.compact_folder(book, 1 << 20, told.append) == 20 * len(folders)
    assert told[-1] == 20 * len(folders)
    assert seen(book.path) == before
    assert compaction.plan_merges(book, 1 << 20) == []
    many(book, 21, folders)
    assert len(seen(book.path)) == 21 * len(folders)
    assert sum(len(names) for _, _, names in os.walk(book.path)) == 2 * len(folders)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_readers_never_see_a_row_twice_or_miss_one_wherever_a_compaction_dies(tmp_path, after):
    killed, count = True, 0
    while killed:
        count += 1
        book = FolderLog(str(tmp_path / str(count) / "table"))
        many(book, 3, ("day=1", "day=2"))
        expected = seen(book.path)
        steps = [0]

        def watched(original, book=book, expected=expected, steps=steps, count=count):
            def call(*args):
                steps[0] += 1
                mine = steps[0]
                if mine == count and not after:
                    raise Killed
                original(*args)
                assert seen(book.path) == expected
                if mine == count:
                    raise Killed

            return call

        with pytest.MonkeyPatch.context() as patch:
            for name in ("exchange_folders", "fsync_path", "_merge"):
                patch.setattr(compaction, name, watched(getattr(compaction, name)))
            try:
                compaction.compact_folder(book, 1 << 20, lambda _: None)
                killed = False
            except Killed:
                pass
        assert seen(book.path) == expected
        compaction.compact_folder(book, 1 << 20, lambda _: None)
        assert compaction.plan_merges(book, 1 << 20) == []
        assert seen(book.path) == expected
    assert count > 6


def test_a_compaction_finishes_what_a_dead_driver_has_decided(tmp_path):
    """Its first file is in its place; were it merged away, the next driver would look for it in vain."""
    book = FolderLog(str(tmp_path / "table"))
    many(book, 2, ("day=1",))
    moves = stage(book, 2, [("day=1", [7]), ("day=2", [8])])
    with book.locked(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_log, "_move", lambda *files: os.replace(*files) or (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            book.commit_batch(APP, 2, moves)
    assert compaction.compact_folder(book, 1 << 20, lambda _: None) == 3
    assert seen(book.path) == [0, 7, 8, 100]
    with book.locked():
        assert book.has_batch(APP, 2)
    assert seen(book.path) == [0, 7, 8, 100]


def test_a_batch_that_comes_while_files_are_merged_is_kept(tmp_path, monkeypatch):
    """Writers need not wait: what came is there; and files that were replaced meanwhile do not come back."""
    book = FolderLog(str(tmp_path / "table"))
    many(book, 3, ("day=1", "day=2"))
    original = compaction._merge

    def merge(paths, target):
        original(paths, target)
        batch = book.entry(APP).batch + 1
        if "day=1" in paths[0]:
            write(book, batch, [("day=1", [1000])])
        else:
            moves = stage(book, batch, [("day=2", [2000])])
            with book.locked():
                compaction.replace_partitions(book, moves)

    monkeypatch.setattr(compaction, "_merge", merge)
    assert compaction.compact_folder(book, 1 << 20, lambda _: None) == 3
    assert seen(book.path) == [0, 100, 200, 1000, 2000]


def test_columns_that_came_later_are_kept(tmp_path):
    folder = tmp_path / "table"
    folder.mkdir()
    pq.write_table(pa.table({"n": [1]}), folder / "a.parquet")
    pq.write_table(pa.table({"n": [2], "m": ["x"]}), folder / "b.parquet")
    (folder / "notes.txt").write_text("mine")
    assert compaction.compact_folder(FolderLog(str(folder)), 1 << 20, lambda _: None) == 2
    table = ds.dataset(sorted(str(path) for path in folder.glob("*.parquet"))).to_table()
    assert sorted(table.to_pylist(), key=lambda row: row["n"]) == [{"n": 1, "m": None}, {"n": 2, "m": "x"}]
    assert (folder / "notes.txt").read_text() == "mine"
