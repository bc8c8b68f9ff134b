import gc
import os
from pathlib import Path

import pytest

from klamm.model.errors import StorageFailure
from klamm.storage.disk import Disk, FileSlice, OpenFiles, SegmentFile


def is_open(fd: int, inode: int) -> bool:
    """Whether the descriptor is that file's; other threads may have been given its number since."""
    try:
        return os.fstat(fd).st_ino == inode
    except OSError:
        return False


def test_a_file_closes_when_nobody_needs_it_any_more(tmp_path: Path):
    (tmp_path / "x.log").write_bytes(b"hello")
    file = SegmentFile(Disk(), str(tmp_path / "x.log"))
    fd, inode = file.fd, os.fstat(file.fd).st_ino
    piece = FileSlice(file, 1, 3, 0)
    del file
    os.unlink(tmp_path / "x.log")
    gc.collect()
    assert is_open(fd, inode)
    assert piece.read() == b"ell"
    del piece
    gc.collect()
    assert not is_open(fd, inode)


def test_a_missing_file_is_a_storage_failure(tmp_path: Path):
    with pytest.raises(StorageFailure, match=r"x\.log"):
        SegmentFile(Disk(), str(tmp_path / "x.log"))


def test_a_slice_beyond_the_file_is_a_storage_failure(tmp_path: Path):
    (tmp_path / "x.log").write_bytes(b"hello")
    with pytest.raises(StorageFailure, match="too early"):
        FileSlice(SegmentFile(Disk(), str(tmp_path / "x.log")), 2, 10, 0).read()


def test_the_least_recently_used_goes_first():
    files = OpenFiles(2)
    opened = []

    def get(key: str) -> str:
        return files.get(key, lambda: opened.append(key) or key)

    for key in "abaca":
        get(key)
    assert opened == ["a", "b", "c"]
    get("b")
    assert opened == ["a", "b", "c", "b"]
    assert len(files) == 2
    files.forget("b")
    files.forget("unknown")
    assert len(files) == 1


def test_replacing_a_file_leaves_no_half_written_one(tmp_path: Path):
    path = tmp_path / "checkpoint"
    disk = Disk()
    disk.replace_file(str(path), b"old")

    class Full(Disk):
        def pwrite(self, fd, data, position):
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        Full().replace_file(str(path), b"new")
    assert path.read_bytes() == b"old"
