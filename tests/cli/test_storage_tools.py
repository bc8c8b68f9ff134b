"""`klamm storage check`, `dump` and `repair` as a person meets them."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from klamm.cli.main import cli
from klamm.model.clock import ManualClock
from klamm.records import build_batch
from klamm.storage import LogConfig, LogManager, StorageConfig

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
NOW = 1_700_000_000_000


def run(*args: str):
    return CliRunner().invoke(cli, ["storage", *args], prog_name="klamm")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    manager = LogManager(StorageConfig(log_dirs=(str(tmp_path / "data"),)), clock=ManualClock(NOW))
    manager.start(CLUSTER, 1, format_empty=True)
    log = manager.create("orders", 0, b"o" * 16, LogConfig())
    for i in range(3):
        log.append_as_leader(memoryview(build_batch([(NOW, b"key", b"value %d" % i, ())])), 0, NOW)
    manager.close()
    return tmp_path / "data"


def tear(folder: Path) -> Path:
    path = folder / "orders-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes() + b"torn")
    return path


def test_a_clean_folder(folder: Path):
    result = run("check", str(folder))
    assert result.exit_code == 0
    assert result.stdout.startswith("clean: 1 partition, 1 segment, 3 batches")
    assert run("repair", str(folder), "--dry-run").stdout == "clean: nothing to do\n"


def test_a_torn_tail_is_named_shown_and_mended(folder: Path):
    path = tear(folder)
    size = path.stat().st_size - 4
    checked = run("check", str(folder))
    assert checked.exit_code == 1
    assert f"{path} at position {size}: 4 bytes from offset 3 on are no batches" in checked.stdout
    assert "repair would cut the file there" in checked.stdout
    dry = run("repair", str(folder), "--dry-run")
    assert dry.exit_code == 1
    assert f"step 1: cut {path} at position {size}: 4 bytes" in dry.stdout
    assert path.stat().st_size == size + 4
    done = run("repair", str(folder), "--yes")
    assert done.exit_code == 0, done.stdout
    assert "0 problems remain" in done.stdout
    assert path.stat().st_size == size
    assert run("check", str(folder)).exit_code == 0


def test_json(folder: Path):
    path = tear(folder)
    lines = [json.loads(line) for line in run("check", str(folder), "-o", "jsonl").stdout.splitlines()]
    assert lines[0]["problem"]["file"] == str(path)
    assert lines[-1] == {
        "checked": {"partitions": 1, "segments": 1, "batches": 3, "size_bytes": path.stat().st_size},
        "problems": 1,
    }
    whole = json.loads(run("check", str(folder), "-o", "json").stdout)
    assert whole["problems"] == [line["problem"] for line in lines if "problem" in line]
    assert run("check", str(folder), "-o", "csv").stdout.splitlines()[0] == "file,position,what,repair"
    assert f'file: "{path}"' in run("check", str(folder), "-o", "yaml").stdout
    dumped = run("dump", str(path), "--records", "-o", "jsonl")
    assert dumped.exit_code == 1
    rows = [json.loads(line) for line in dumped.stdout.splitlines()]
    assert [row["kind"] for row in rows] == ["batch", "record"] * 3 + ["damage"]
    assert rows[1]["value"] == "value 0"
    assert json.loads(run("dump", str(path), "--records", "-o", "json").stdout) == rows
    assert run("dump", str(path), "--records", "-o", "yaml").stdout.count("- kind:") == len(rows)
    table = run("dump", str(path), "--records", "-o", "csv").stdout.splitlines()
    assert table[0].startswith("base_offset,last_offset,count,position")
    assert len(table) == 4
    empty = folder / "orders-0" / f"{0:020d}.txnindex"
    empty.write_bytes(b"")
    assert json.loads(run("dump", str(empty), "-o", "json").stdout) == []


def test_dump_is_a_table(folder: Path):
    lines = run("dump", str(folder / "orders-0" / f"{0:020d}.log"), "--deep").stdout.splitlines()
    assert lines[0].split()[:4] == ["base_offset", "last_offset", "count", "position"]
    assert lines[1].split()[:4] == ["0", "0", "1", "0"]
    assert lines[2] == f'  | offset=0 timestamp={NOW} key=key value="value 0"'
    assert len({len(line) for line in lines if not line.startswith("  |")}) == 1
    assert len(run("dump", str(folder / "orders-0" / f"{0:020d}.log"), "--limit", "2").stdout.splitlines()) == 3


def test_repair_asks_for_one_of_its_flags(folder: Path):
    assert run("repair", str(folder)).exit_code == 2
    assert run("repair", str(folder), "--yes", "--dry-run").exit_code == 2


def test_a_running_node_is_told_by_check_and_refused_by_repair(folder: Path):
    manager = LogManager(StorageConfig(log_dirs=(str(folder),)), clock=ManualClock(NOW))
    manager.start(CLUSTER, 1)
    checked = run("check", str(folder))
    assert "a node is running" in checked.stderr
    refused = run("repair", str(folder), "--yes")
    assert refused.exit_code == 1
    assert "in use by another process" in refused.stderr
    manager.close()


def test_wrong_paths_are_refused_in_one_sentence(folder: Path):
    for args in (
        ("check", "/nowhere"),
        ("dump", "/nowhere.log"),
        ("dump", str(folder)),
        ("repair", "/nowhere", "--yes"),
    ):
        result = run(*args)
        assert result.exit_code == 1
        assert result.stderr.startswith("klamm: ")
        assert len(result.stderr.splitlines()) == 1


def test_a_terminal_sees_a_bar(folder: Path, monkeypatch: pytest.MonkeyPatch):
    from klamm.cli.storage_check import Bar

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Bar() as bar:
        bar.show(1, 2)
