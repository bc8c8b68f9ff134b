"""Dumping: every kind of file, internal topics decoded, damage told."""

import struct
from pathlib import Path

import pytest

from harness.damage import flip
from klamm.model.errors import ConfigError
from klamm.protocol.codec import encode
from klamm.protocol.messages.control_records import LeaderChangeMessage, LeaderChangeVoter
from klamm.protocol.messages.group_records import OffsetCommitKey, OffsetCommitValue
from klamm.protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue
from klamm.records import build_batch
from klamm.records.control import ControlType, build_control_batch
from klamm.storage.dump import dump_file

from .conftest import NOW
from .tools import make_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("dump") / "data")


def rows(path: Path, **options) -> list[tuple[str, dict]]:
    return [tuple(row) for row in dump_file(str(path), **options)]


def first(folder: Path, pattern: str) -> Path:
    return min(folder.glob(pattern))


def test_batches_and_records(folder: Path):
    path = first(folder, "paid-0/*.log")
    batches = rows(path)
    assert [kind for kind, _ in batches] == ["batch"] * 9
    fields = batches[0][1]
    assert (fields["base_offset"], fields["last_offset"], fields["count"], fields["producer_id"]) == (0, 1, 2, 8)
    assert (fields["transactional"], fields["control"], fields["codec"], fields["valid"]) == (True, False, "none", True)
    assert batches[1][1]["position"] == fields["size"]
    deep = rows(path, records=True)
    assert deep[1] == ("record", {"offset": 0, "timestamp": NOW, "key": "key", "value": "value0"})
    markers = [fields for kind, fields in deep if "control" in fields and kind == "record"]
    assert [marker["control"] for marker in markers] == ["ABORT", "COMMIT", "ABORT"]
    assert markers[0]["coordinator_epoch"] == 2


def test_indexes_snapshots_and_small_files(folder: Path):
    base = int(first(folder, "orders-0/*1*.index").stem)
    index = rows(first(folder, "orders-0/*1*.index"))
    assert index[0][0] == "index"
    assert index[0][1]["offset"] > base
    assert rows(first(folder, "orders-0/*.timeindex"))[0][1].keys() == {"timestamp", "offset"}
    assert rows(first(folder, "paid-0/*.txnindex")) == [
        (
            "txnindex",
            {"version": 0, "producer_id": 8, "first_offset": f, "last_offset": f + 3, "last_stable_offset": f + 4},
        )
        for f in (0, 8)
    ]
    producer = rows(max(folder.glob("orders-0/*.snapshot")))[0][1]
    assert (producer["producer_id"], producer["last_sequence"], producer["last_offset"]) == (7, 39, 39)
    assert rows(folder / "orders-0" / "leader-epoch-checkpoint") == [
        ("epoch", {"leader_epoch": 3, "start_offset": 0}),
        ("epoch", {"leader_epoch": 4, "start_offset": 20}),
    ]
    assert ("offset", {"topic": "orders", "partition": 0, "offset": 40}) in rows(
        folder / "replication-offset-checkpoint"
    )
    settings = {fields["name"]: fields["value"] for _, fields in rows(folder / "meta.properties")}
    assert settings["node.id"] == "1"
    assert rows(folder / "orders-0" / "partition.metadata")[0] == ("setting", {"name": "version", "value": "0"})
    assert rows(folder / ".kafka_cleanshutdown") == [("state", {"version": 0, "brokerEpoch": -1})]


def internal(tmp_path: Path, topic: str, *records: tuple[bytes, bytes | None]) -> list[dict]:
    path = tmp_path / f"{topic}-0" / f"{0:020d}.log"
    path.parent.mkdir()
    path.write_bytes(build_batch([(NOW, key, value, ()) for key, value in records]))
    return [fields for kind, fields in rows(path, records=True) if kind == "record"]


def test_committed_offsets_are_decoded(tmp_path: Path):
    key = struct.pack(">h", 1) + encode(OffsetCommitKey(group="g", topic="orders", partition=3), 0)
    value = struct.pack(">h", 3) + encode(OffsetCommitValue(offset=42, metadata="m", commit_timestamp=NOW), 3)
    written, removed, unread = internal(tmp_path, "__consumer_offsets", (key, value), (key, None), (b"\x7f\xff?", b"x"))
    assert written["type"] == "OffsetCommit"
    assert written["key"] == {"group": "g", "topic": "orders", "partition": 3}
    assert (written["value"]["offset"], written["version"]) == (42, 3)
    assert removed["value"] is None
    assert unread["key"] == "hex:7fff3f"


def test_transactions_are_decoded(tmp_path: Path):
    key = struct.pack(">h", 0) + encode(TransactionLogKey(transactional_id="t"), 0)
    value = struct.pack(">h", 1) + encode(TransactionLogValue(producer_id=9, transaction_partitions=None), 1)
    (record,) = internal(tmp_path, "__transaction_state", (key, value))
    assert record["key"] == {"transactional_id": "t"}
    assert record["value"]["producer_id"] == 9


def test_the_quorums_log_and_its_control_records(tmp_path: Path):
    value = encode(LeaderChangeMessage(leader_id=1, voters=[LeaderChangeVoter(voter_id=1)]), 0)
    path = tmp_path / f"{5:020d}-{1:010d}.checkpoint"
    path.write_bytes(
        build_control_batch(ControlType.LEADER_CHANGE, value, timestamp=NOW) + build_batch([(NOW, None, b"abc", ())])
    )
    dumped = rows(path, records=True, metadata=lambda _key, value: {"said": len(value)})
    assert dumped[1][1]["control"] == "LEADER_CHANGE"
    assert dumped[1][1]["leader_id"] == 1
    assert dumped[3][1]["said"] == 3


def test_damage_is_the_last_row(folder: Path, tmp_path: Path):
    path = tmp_path / f"{0:020d}.log"
    data = first(folder, "paid-0/*.log").read_bytes()
    path.write_bytes(data[:-5])
    kind, fields = rows(path)[-1]
    assert kind == "damage"
    assert 0 < fields["position"] < len(data)
    aside = tmp_path / f"{0:020d}.log.190.damaged"
    aside.write_bytes(data)
    assert len(rows(aside)) == 9
    path.write_bytes(data)
    flip(path, 70)
    assert rows(path)[0][1]["valid"] is False
    for name, content in ((f"{0:020d}.index", b"abc"), (f"{0:020d}.snapshot", b"abc"), ("quorum-state", b"{")):
        (tmp_path / name).write_bytes(content)
        assert rows(tmp_path / name)[-1][0] == "damage"


def test_the_zeros_kafka_reserves_are_no_entries(tmp_path: Path):
    path = tmp_path / f"{10:020d}.index"
    path.write_bytes(struct.pack(">iiii", 3, 70, 9, 140) + bytes(800))
    assert rows(path) == [("index", {"offset": 13, "position": 70}), ("index", {"offset": 19, "position": 140})]


def test_other_files_are_refused(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("x")
    for path in (tmp_path / "notes.txt", tmp_path, tmp_path / "nowhere.log"):
        with pytest.raises(ConfigError):
            rows(path)
