"""Checking: a sound folder is clean, any flipped bit is findings, and nothing is changed."""

import shutil
from pathlib import Path

import pytest

from harness.damage import flip
from klamm.model.errors import ConfigError
from klamm.storage import offline_check, txn_index
from klamm.storage.check_findings import Fix
from klamm.storage.offline_check import check_folders, partition_tasks

from .tools import content, make_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "data")


def problems(folder: Path) -> list[tuple[str, Fix]]:
    before = content(folder)
    findings = check_folders([str(folder)])
    assert content(folder) == before, "a check changes nothing"
    return [(str(Path(problem.path).relative_to(folder)), problem.fix) for problem in findings.problems]


def segments(folder: Path, partition: str, suffix: str = ".log") -> list[Path]:
    return sorted((folder / partition).glob(f"*{suffix}"))


@pytest.mark.parametrize("clean", [True, False])
def test_a_sound_folder_is_clean(tmp_path: Path, clean: bool):
    folder = make_folder(tmp_path / "data", clean=clean)
    assert problems(folder) == []
    findings = check_folders([str(folder)])
    assert (findings.partitions, findings.notes) == (3, [])
    assert findings.batches == 40 + 40 + 9
    assert findings.segments == len(list(folder.glob("*/*.log")))


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".snapshot"])
def test_every_flipped_bit_of_a_segment_is_found(folder: Path, suffix: str):
    path = segments(folder, "orders-0", suffix)[1]
    data = path.read_bytes()
    assert data
    missed = []
    for position in range(len(data)):
        flip(path, position, position % 8)
        if not offline_check.inspect_partition(offline_check.Task(str(folder / "orders-0"), True, False, 0)).problems:
            missed.append(position)
        path.write_bytes(data)
    assert missed == []


def test_every_flipped_bit_of_a_transaction_index_is_found(folder: Path):
    (path,) = segments(folder, "paid-0", ".txnindex")
    data = path.read_bytes()
    assert len(data) == 2 * txn_index.ENTRY_SIZE
    for position in range(len(data)):
        flip(path, position, position % 8)
        assert (str(path.relative_to(folder)), Fix.REBUILD) in problems(folder), position
        path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "position", "fix"),
    [
        ("orders-0/leader-epoch-checkpoint", -2, Fix.EPOCHS),
        ("orders-0/leader-epoch-checkpoint", 0, Fix.EPOCHS),
        ("orders-0/partition.metadata", -3, Fix.NOTHING),
        ("orders-0/partition.metadata", 0, Fix.REMOVE),
        ("recovery-point-offset-checkpoint", 2, Fix.CHECKPOINT),
        ("replication-offset-checkpoint", 0, Fix.CHECKPOINT),
        ("meta.properties", 3, Fix.NOTHING),
        (".kafka_cleanshutdown", 1, Fix.REMOVE),
    ],
)
def test_damage_to_small_files_is_found(folder: Path, name: str, position: int, fix: Fix):
    if name.endswith("leader-epoch-checkpoint") and position == 0:
        (folder / name).write_text("nothing\n")
    else:
        flip(folder / name, position, 0 if position < 0 else 4)
    assert fix in [how for _, how in problems(folder)]


def test_damage_in_the_middle_is_named_with_its_place(folder: Path):
    path = segments(folder, "orders-1")[1]
    size = int.from_bytes(path.read_bytes()[8:12], "big") + 12
    flip(path, size + 70)
    findings = check_folders([str(folder)])
    (problem,) = [problem for problem in findings.problems if problem.fix is Fix.CUT]
    assert (problem.path, problem.position) == (str(path), size)
    assert "checksum" in problem.what
    assert f"at position {size}" in str(problem)
    assert "repair would cut the file there" in str(problem)
    assert any("follows the damage" in note for note in findings.notes)


def test_torn_tails_and_zeros_are_told_apart(folder: Path):
    path = segments(folder, "orders-1")[-1]
    data = path.read_bytes()
    for tail, words in (
        (b"\1" * 20, "inside a batch's header"),
        (bytes(100), "zeros"),
        (data[:70], "inside a batch of"),
    ):
        path.write_bytes(data + tail)
        (problem,) = check_folders([str(folder)]).problems
        assert words in problem.what
        assert problem.position == len(data)


def test_missing_orphaned_and_unknown_files(folder: Path):
    segments(folder, "orders-0", ".timeindex")[0].unlink()
    (folder / "orders-0" / f"{777:020d}.index").write_bytes(b"")
    (folder / "orders-0" / "notes.txt").write_bytes(b"")
    (folder / "what").mkdir()
    assert [fix for _, fix in problems(folder)] == [Fix.REBUILD, Fix.REMOVE]
    assert [Path(note.split(":")[0]).name for note in check_folders([str(folder)]).notes] == ["what", "notes.txt"]


def test_missing_offsets_are_a_problem_unless_compaction_took_them(folder: Path):
    name = segments(folder, "orders-0")[1].stem
    for path in (folder / "orders-0").glob(f"{name}.*"):
        path.unlink()
    assert problems(folder) != []
    (folder / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 40\n")
    assert problems(folder) == []


def test_one_partition_and_processes(folder: Path, monkeypatch: pytest.MonkeyPatch):
    assert len(partition_tasks([str(folder / "orders-0")])) == 1
    assert check_folders([str(folder / "orders-0")]).partitions == 1
    flip(segments(folder, "paid-0")[0], 100)
    alone = check_folders([str(folder)])
    monkeypatch.setattr(offline_check, "_INLINE_BYTES", 0)
    progress: list[tuple[int, int]] = []
    together = check_folders([str(folder)], workers=2, on_progress=lambda done, total: progress.append((done, total)))
    assert together.problems == alone.problems
    assert together.batches == alone.batches
    assert progress[-1][1] == alone.size_bytes


def test_other_folders_are_refused(tmp_path: Path, folder: Path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(ConfigError):
            check_folders([str(path)])
    shutil.rmtree(folder)
