"""A log in a temporary folder, and batches to put into it."""

import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from klamm.model.ids import TopicPartition
from klamm.records import build_batch, iter_batches
from klamm.records.control import build_end_txn_marker
from klamm.storage import Disk, Log, LogConfig, OpenFiles, Origin, open_log
from klamm.telemetry import log as telemetry

NOW = 1_700_000_000_000
PRODUCER = 7
"""The producer id of `from_producer`."""


class FaultyDisk(Disk):
    """A disk that fails where a test tells it to: `fail[call]` is a function of the call's arguments."""

    def __init__(self) -> None:
        self.fail: dict[str, Callable[..., object]] = {}

    def pwritev(self, fd, buffers, position):
        if "pwritev" in self.fail:
            return self.fail["pwritev"](fd, buffers, position)
        return os.pwritev(fd, buffers, position)

    def fsync(self, fd):
        if "fsync" in self.fail:
            return self.fail["fsync"](fd)
        return os.fsync(fd)

    def fdatasync(self, fd):
        if "fsync" in self.fail:
            return self.fail["fsync"](fd)
        return os.fdatasync(fd)

    def ftruncate(self, fd, length):
        if "ftruncate" in self.fail:
            return self.fail["ftruncate"](fd, length)
        return os.ftruncate(fd, length)

    def open(self, path, flags, mode=0o777):
        if "open" in self.fail:
            self.fail["open"](path, flags)
        return os.open(path, flags, mode)


def no_space(*_args: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class FullSoon:
    """Writes that succeed a few times and then find the disk full; `calls` counts them all."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.calls = 0

    def __call__(self, fd: int, buffers: list[memoryview], position: int) -> int:
        self.calls += 1
        if self.calls > self.after:
            no_space()
        return os.pwritev(fd, buffers, position)


def batch(
    count: int = 1, *, timestamp: int = NOW, value: bytes = b"value", key: bytes | None = b"key", **fields
) -> memoryview:
    return memoryview(build_batch([(timestamp + i, key, value + b"%d" % i, ()) for i in range(count)], **fields))


def from_producer(
    sequence: int, count: int = 1, *, producer_id: int = PRODUCER, epoch: int = 0, **fields
) -> memoryview:
    return batch(count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **fields)


def read_all(log: Log, start: int | None = None, max_bytes: int = 1 << 20) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record, through `read`."""
    offset = log.log_start_offset if start is None else start
    rows = []
    while offset < log.log_end_offset:
        piece = log.read(offset, max_bytes, log.log_end_offset)
        if piece is None:
            break
        for view in iter_batches(piece.read()):
            view.check_crc()
            rows += [(r.offset, r.value) for r in view.decode() if r.offset >= offset]
            offset = view.next_offset
    return rows


def append_end_txn_marker(
    log: Log,
    producer_id: int,
    producer_epoch: int,
    *,
    committed: bool,
    coordinator_epoch: int,
    leader_epoch: int,
    now_ms: int,
) -> int:
    """Append the marker that ends a producer's transaction; return its offset."""
    marker = build_end_txn_marker(
        committed=committed,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=now_ms,
    )
    return log.append_as_leader(memoryview(marker), leader_epoch, now_ms, origin=Origin.COORDINATOR)


class Home:
    """A partition folder and ways to open it."""

    def __init__(self, path: Path) -> None:
        self.path = path / "topic-0"
        self.disk = FaultyDisk()
        self.files = OpenFiles(8)
        self._copies = 0

    def open(self, *, clean: bool = False, recovery_point: int = 0, log_start_offset: int = 0, **config) -> Log:
        return open_log(
            str(self.path),
            TopicPartition("topic", 0),
            LogConfig(**config),
            disk=self.disk,
            files=self.files,
            now_ms=NOW,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
        )

    def crash(self) -> "Home":
        """The folder as a killed process leaves it: what was written is there, what was in memory is not."""
        self._copies += 1
        other = Home(self.path.parent / f"crash-{self._copies}")
        shutil.copytree(self.path, other.path)
        return other

    def names(self) -> set[str]:
        return set(os.listdir(self.path))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


ReadLog = Callable[[], str]
"""All log lines so far."""


@pytest.fixture
def read_log() -> Iterator[ReadLog]:
    lines = io.StringIO()
    telemetry.configure(stream=lines)
    yield lines.getvalue
    telemetry.configure()
