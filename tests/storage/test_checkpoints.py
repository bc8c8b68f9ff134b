from pathlib import Path

import pytest

from klamm.model.errors import ConfigError
from klamm.model.ids import TopicPartition, Uuid, uuid_to_str
from klamm.storage.checkpoints import (
    read_lines,
    read_offsets,
    read_topic_id,
    take_clean_shutdown,
    write_clean_shutdown,
    write_offsets,
    write_topic_id,
)
from klamm.storage.disk import Disk
from klamm.storage.meta_properties import MetaProperties, read_meta_properties, write_meta_properties

from .conftest import ReadLog

ID = Uuid(bytes(range(16)))


def test_offsets_in_kafkas_format(tmp_path: Path):
    path = str(tmp_path / "recovery-point-offset-checkpoint")
    offsets = {TopicPartition("b", 1): 7, TopicPartition("a", 0): 2**40}
    write_offsets(Disk(), path, offsets)
    assert Path(path).read_text() == f"0\n2\na 0 {2**40}\nb 1 7\n"
    assert read_offsets(Disk(), path) == offsets


@pytest.mark.parametrize("text", ["0\n", "1\n0\n", "0\n2\na 0 5\n", "0\nmany\n", "0\n1\na 0\n", "0\n1\na zero 5\n"])
def test_an_unreadable_checkpoint_counts_as_empty(tmp_path: Path, text: str, read_log: ReadLog):
    (tmp_path / "c").write_text(text)
    assert read_offsets(Disk(), str(tmp_path / "c")) == {}
    assert "unreadable checkpoint" in read_log()


def test_a_missing_or_new_checkpoint_is_empty(tmp_path: Path):
    assert read_lines(Disk(), str(tmp_path / "none")) == []
    (tmp_path / "just made").write_text("")
    assert read_lines(Disk(), str(tmp_path / "just made")) == []


def test_the_topic_id_of_a_folder(tmp_path: Path):
    assert read_topic_id(Disk(), str(tmp_path)) is None
    write_topic_id(Disk(), str(tmp_path), ID)
    assert (tmp_path / "partition.metadata").read_text() == f"version: 0\ntopic_id: {uuid_to_str(ID)}\n"
    assert read_topic_id(Disk(), str(tmp_path)) == ID
    for torn in ("", "version: ", "version: 0\ntopic_id: nonsense\n", "\0" * 40):
        (tmp_path / "partition.metadata").write_text(torn)
        assert read_topic_id(Disk(), str(tmp_path)) is None, "the file is not synced; the metadata log knows the id"
    (tmp_path / "partition.metadata").write_text(f"version: 3\ntopic_id: {uuid_to_str(ID)}\n")
    assert read_topic_id(Disk(), str(tmp_path)) == ID, "the caller compares it with the id in the metadata"


def test_the_clean_shutdown_marker_is_used_once(tmp_path: Path):
    assert take_clean_shutdown(Disk(), str(tmp_path)) is None
    write_clean_shutdown(Disk(), str(tmp_path), 42)
    assert (tmp_path / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":42}'
    assert take_clean_shutdown(Disk(), str(tmp_path)) == 42
    assert take_clean_shutdown(Disk(), str(tmp_path)) is None
    (tmp_path / ".kafka_cleanshutdown").write_text("")
    assert take_clean_shutdown(Disk(), str(tmp_path)) == -1


def test_meta_properties_round_trip(tmp_path: Path):
    assert read_meta_properties(Disk(), str(tmp_path)) is None
    made = MetaProperties("MkU3OEVBNTcwNTJENDM2Qg", 3, ID)
    write_meta_properties(Disk(), str(tmp_path), made)
    assert read_meta_properties(Disk(), str(tmp_path)) == made


def test_meta_properties_as_java_writes_them(tmp_path: Path):
    (tmp_path / "meta.properties").write_text(
        f"#\n#Sun Nov 15 21:00:00 UTC 2026\ncluster.id=a\\=b\ndirectory.id={uuid_to_str(ID)}\nnode.id=1\nversion=1\n"
    )
    assert read_meta_properties(Disk(), str(tmp_path)) == MetaProperties("a=b", 1, ID)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version=0\nbroker.id=1\n", "version 0"),
        ("version=1\nnode.id=1\n", "cluster.id"),
        ("version=1\ncluster.id=x\nnode.id=one\n", "damaged"),
    ],
)
def test_meta_properties_that_make_no_sense_say_so(tmp_path: Path, text: str, words: str):
    (tmp_path / "meta.properties").write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_meta_properties(Disk(), str(tmp_path))
