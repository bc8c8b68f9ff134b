"""Snapshots of the metadata log: files `<end offset>-<epoch>.checkpoint` that hold the state as records.

    control batch   SnapshotHeader (and, with dynamic voters, KRaftVersion and Voters)
    data batches    the records that rebuild the state
    control batch   SnapshotFooter

Written to a `.part` file, synced, then renamed. A file without a footer or with a wrong checksum is not a snapshot.
"""

import os
import re
from collections.abc import Iterable, Iterator

from klamm.model.errors import CorruptBatch, StorageFailure
from klamm.raft.codec.batches import data_batch, read_voter_change, snapshot_footer, snapshot_header
from klamm.raft.core.messages import OffsetAndEpoch
from klamm.raft.core.voter_history import VoterChange, VoterConfiguration
from klamm.records.batch import iter_batches
from klamm.records.control import ControlType, control_records
from klamm.storage.disk import Disk, write_all

SUFFIX = ".checkpoint"
PART_SUFFIX = ".checkpoint.part"
BATCH_BYTES = 64 * 1024
"""The size at which a batch of values is complete."""

HEADER_BYTES_MAX = 1024 * 1024
"""More than the header of any quorum takes."""

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


def snapshot_name(snapshot_id: OffsetAndEpoch) -> str:
    """The file name of a snapshot that contains every record below its offset."""
    return f"{snapshot_id.offset:020d}-{snapshot_id.epoch:010d}{SUFFIX}"


def parse_snapshot_name(name: str) -> OffsetAndEpoch | None:
    """Return the id of the snapshot with this file name, or None for any other file."""
    match = _NAME.fullmatch(name)
    return OffsetAndEpoch(int(match[1]), int(match[2])) if match else None


class SnapshotFolder:
    """The snapshots in one folder. Reading and writing block; both may run in a thread."""

    def __init__(self, folder: str, disk: Disk) -> None:
        self.folder = folder
        self._disk = disk

    def path(self, snapshot_id: OffsetAndEpoch) -> str:
        """The path of a snapshot."""
        return os.path.join(self.folder, snapshot_name(snapshot_id))

    def ids(self) -> list[OffsetAndEpoch]:
        """All snapshots, oldest first."""
        ids = map(parse_snapshot_name, self._disk.listdir(self.folder))
        return sorted(snapshot_id for snapshot_id in ids if snapshot_id is not None)

    def remove_partial(self) -> None:
        """Delete the files that a crash left incomplete."""
        for name in self._disk.listdir(self.folder):
            if name.endswith(PART_SUFFIX):
                self._disk.unlink(os.path.join(self.folder, name))

    def write(
        self,
        snapshot_id: OffsetAndEpoch,
        values: Iterable[bytes],
        *,
        now_ms: int,
        last_contained_log_timestamp: int,
        configuration: VoterConfiguration,
    ) -> None:
        """Write a snapshot; on return it is complete and durable."""
        epoch = snapshot_id.epoch
        header = snapshot_header(last_contained_log_timestamp, now_ms, epoch, configuration)
        batches = _frame(header, _split_batches(values), now_ms, epoch)
        part = self._part_path(snapshot_id)
        try:
            fd = self._disk.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                position = 0
                for batch in batches:
                    write_all(self._disk, fd, batch, position)
                    position += len(batch)
                self._disk.fsync(fd)
            finally:
                self._disk.close(fd)
            # Synced before the rename: a file that has its name is complete, whatever crash follows.
            self._disk.rename(part, self.path(snapshot_id))
            self._disk.sync_dir(self.folder)
        except OSError as error:
            raise StorageFailure(f"cannot write snapshot {part}: {error}") from error

    def read(self, snapshot_id: OffsetAndEpoch) -> list[bytes]:
        """The values of a snapshot; CorruptBatch when it is incomplete or damaged."""
        data = self._disk.read_file(self.path(snapshot_id))
        values: list[bytes] = []
        controls: list[int] = []
        for view in iter_batches(data):
            view.check_crc()
            if view.is_control:
                controls += [record.type for record in control_records(view)]
            elif not controls or controls[-1] == ControlType.SNAPSHOT_FOOTER:
                raise CorruptBatch("records outside of the snapshot's header and footer")
            else:
                values += [record.value or b"" for record in view.decode()]
        if not controls or controls[0] != ControlType.SNAPSHOT_HEADER or controls[-1] != ControlType.SNAPSHOT_FOOTER:
            raise CorruptBatch("the snapshot has no header or no footer")
        return values

    def read_voter_change(self, snapshot_id: OffsetAndEpoch) -> VoterChange | None:
        """The voters in a snapshot; None when they were static, CorruptBatch when the header is damaged."""
        _, data = self.read_chunk(snapshot_id, 0, HEADER_BYTES_MAX)
        header = next(iter_batches(data, allow_incomplete_tail=True), None)
        if header is None or not header.is_control:
            raise CorruptBatch("the snapshot has no header")
        header.check_crc()
        return read_voter_change(header)

    def latest_valid(self) -> tuple[OffsetAndEpoch, list[bytes]] | None:
        """The newest snapshot that can be read; damaged ones are skipped."""
        for snapshot_id in reversed(self.ids()):
            try:
                return snapshot_id, self.read(snapshot_id)
            except CorruptBatch:
                continue
        return None

    def delete_before(self, snapshot_id: OffsetAndEpoch) -> None:
        """Delete all snapshots older than this one."""
        for candidate in self.ids():
            if candidate < snapshot_id:
                self._disk.remove_if_exists(self.path(candidate))

    def read_chunk(self, snapshot_id: OffsetAndEpoch, position: int, max_bytes: int) -> tuple[int, bytes]:
        """The size of a snapshot and its bytes from `position` on; FileNotFoundError when it was deleted."""
        fd = self._disk.open(self.path(snapshot_id), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return self._disk.fstat(fd).st_size, self._disk.pread(fd, max_bytes, position)
        finally:
            self._disk.close(fd)

    def write_chunk(self, snapshot_id: OffsetAndEpoch, position: int, chunk: bytes, *, complete: bool) -> None:
        """Store a chunk of the leader's snapshot; the last one makes it a snapshot of this replica."""
        part = self._part_path(snapshot_id)
        # The first chunk discards what an earlier, interrupted transfer left.
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (0 if position else os.O_TRUNC)
        try:
            fd = self._disk.open(part, flags, 0o644)
            try:
                write_all(self._disk, fd, chunk, position)
                if complete:
                    # The rename below must not become durable before the content.
                    self._disk.fsync(fd)
            finally:
                self._disk.close(fd)
            if complete:
                self._disk.rename(part, self.path(snapshot_id))
                self._disk.sync_dir(self.folder)
        except OSError as error:
            raise StorageFailure(f"cannot write snapshot {part}: {error}") from error

    def _part_path(self, snapshot_id: OffsetAndEpoch) -> str:
        return self.path(snapshot_id) + ".part"


def _split_batches(values: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for value in values:
        batch.append(value)
        size += len(value)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _frame(header: bytearray, batches: Iterable[list[bytes]], now_ms: int, epoch: int) -> Iterator[bytearray]:
    yield header
    offset = next(iter_batches(header)).next_offset
    for values in batches:
        yield data_batch(values, now_ms, offset, epoch)
        offset += len(values)
    yield snapshot_footer(now_ms, offset, epoch)
