"""Repair: does what its plan says and nothing else, and a node starts on what it leaves."""

from pathlib import Path

import pytest

from harness.damage import flip
from klamm.model.clock import ManualClock
from klamm.model.errors import ConfigError
from klamm.storage import LogManager, StorageConfig
from klamm.storage.offline_check import check_folders
from klamm.storage.offline_repair import hold, make_plan

from .conftest import NOW, PRODUCER, read_all
from .tools import CLUSTER, CONFIG, content, make_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "data")


def mend(folder: Path) -> set[str]:
    """Carry out the plan; the names of files that are not as they were."""
    before = content(folder)
    plan = make_plan([str(folder)])
    assert content(folder) == before, "a plan changes nothing"
    for step in plan.steps:
        step.run()
    after = content(folder)
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def started(folder: Path) -> LogManager:
    manager = LogManager(StorageConfig(log_dirs=(str(folder),)), clock=ManualClock(NOW))
    manager.start(CLUSTER, 1, config_for=lambda _topic: CONFIG)
    return manager


def names(folder: Path, partition: str, suffix: str = ".log") -> list[str]:
    return [f"{partition}/{path.name}" for path in sorted((folder / partition).glob(f"*{suffix}"))]


def test_a_sound_folder_needs_nothing(folder: Path):
    assert make_plan([str(folder)]).steps == []
    assert mend(folder) == set()


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_an_index_is_rebuilt_and_nothing_else(folder: Path, suffix: str):
    partition = "paid-0" if suffix == ".txnindex" else "orders-0"
    name = names(folder, partition, suffix)[0]
    before = (folder / name).read_bytes()
    flip(folder / name, 5)
    changed = mend(folder)
    assert name in changed
    assert {Path(path).stem for path in changed} == {Path(name).stem}
    assert check_folders([str(folder)]).problems == []
    if suffix == ".txnindex":
        assert (folder / name).read_bytes() == before


def test_a_torn_tail_is_cut(folder: Path):
    name = names(folder, "orders-1")[-1]
    size = (folder / name).stat().st_size
    with open(folder / name, "ab") as file:
        file.write(b"torn")
    plan = make_plan([str(folder)])
    assert any(step.what.startswith(f"cut {folder / name} at position") for step in plan.steps)
    assert mend(folder) <= {
        name,
        *(name.replace(".log", s) for s in (".index", ".timeindex")),
        "recovery-point-offset-checkpoint",
        f"{name}.{size}.damaged",
    }
    assert (folder / f"{name}.{size}.damaged").read_bytes() == b"torn"
    assert check_folders([str(folder)]).problems == []
    manager = started(folder)
    assert len(read_all(manager.get("orders", 1))) == 40
    manager.close()


def test_damage_in_the_middle_sets_the_rest_aside(folder: Path):
    logs = names(folder, "orders-0")
    flip(folder / logs[1], 70)
    before = content(folder)
    mend(folder)
    after = content(folder)
    for name in logs[2:]:
        assert after[name + ".damaged"] == before[name], "nothing is deleted"
    assert all(after[name] == before[name] for name in before if not name.startswith("orders-0") and "/" in name)
    assert check_folders([str(folder)]).problems == []
    manager = started(folder)
    log = manager.get("orders", 0)
    assert log.log_end_offset == int(Path(logs[1]).stem)
    assert len(read_all(log)) == log.log_end_offset
    manager.close()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("orders-0/leader-epoch-checkpoint", "0\n2\n3 0\n4 2"),
        ("orders-0/leader-epoch-checkpoint", "0\n2\n3 0\n4 21\n"),
        ("recovery-point-offset-checkpoint", "0\n9\norders 0 40\nord"),
        ("orders-1/partition.metadata", "version: 0\n"),
    ],
)
def test_small_files_are_written_anew(folder: Path, name: str, text: str):
    (folder / name).write_text(text)
    assert mend(folder) == {name}
    assert check_folders([str(folder)]).problems == []
    if "epoch" in name:
        assert (folder / name).read_text() == "0\n2\n3 0\n4 20\n"
    if "recovery" in name:
        assert (folder / name).read_text() == "0\n1\norders 0 40\n"


def test_a_damaged_snapshot_goes_and_strangers_stay(folder: Path):
    name = names(folder, "orders-0", ".snapshot")[0]
    flip(folder / name, 20)
    (folder / "orders-0" / "notes.txt").write_text("mine")
    (folder / "mine").mkdir()
    assert mend(folder) == {name}
    assert (folder / "orders-0" / "notes.txt").read_text() == "mine"
    manager = started(folder)
    assert manager.get("orders", 0).producers.entries[PRODUCER].next_sequence == 40
    manager.close()


def test_a_folder_that_a_node_holds_is_refused(folder: Path):
    manager = started(folder)
    for path in (folder, folder / "orders-0"):
        with pytest.raises(ConfigError, match="in use"):
            hold([str(path)])
    manager.close()
    for log_dir in hold([str(folder), str(folder / "orders-0")]):
        log_dir.release()
