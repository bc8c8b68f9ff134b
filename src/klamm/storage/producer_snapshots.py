"""Producer state on disk (`<offset>.snapshot`), so that reopening a log need not replay it from the start.

    version i16 = 1 · crc32c u32 of what follows · count i32 · 46 bytes per producer:
    id i64 · epoch i16 · last sequence i32 · last offset i64 · offset delta i32 · timestamp i64 ·
    coordinator epoch i32 · first offset of the open transaction i64

A snapshot named N holds the state before offset N. Only the last batch of each producer survives in it.
"""

import os
import struct
from collections.abc import Collection, Iterable

from klamm.model.errors import CorruptBatch, StorageFailure
from klamm.records.crc import crc32c
from klamm.storage.disk import Disk
from klamm.storage.producer_state import MAX_SEQUENCE, ProducerEntry, add_sequence
from klamm.telemetry.log import get_logger

logger = get_logger("storage")

SUFFIX = ".snapshot"
_HEAD = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_VERSION = 1
_CRC_START = 6


def encode(entries: Iterable[ProducerEntry]) -> bytes:
    """Encode producers as the bytes of a snapshot file."""
    rows = []
    for entry in entries:
        # A producer of which only a marker is left has no batch, but its epoch still fences older ones.
        last = entry.batches[-1] if entry.batches else None
        rows.append(
            _ENTRY.pack(
                entry.producer_id,
                entry.epoch,
                last[1] if last else -1,
                last[3] if last else -1,
                last[3] - last[2] if last else 0,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.txn_first_offset,
            )
        )
    data = bytearray(_HEAD.pack(_VERSION, 0, len(rows)) + b"".join(rows))
    struct.pack_into(">I", data, 2, crc32c(data[_CRC_START:]))
    return bytes(data)


def decode(data: bytes) -> list[ProducerEntry]:
    """Decode the producers of a snapshot file; CorruptBatch when the bytes are not one."""
    if len(data) < _HEAD.size:
        raise CorruptBatch("the producer snapshot is truncated")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptBatch(f"the producer snapshot has version {version}, only 1 is known")
    if crc != crc32c(data[_CRC_START:]):
        raise CorruptBatch("the producer snapshot does not match its checksum")
    if len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptBatch(f"the producer snapshot should hold {count} producers and has another length")
    entries = []
    for fields in _ENTRY.iter_unpack(data[_HEAD.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, txn_first = fields
        entry = ProducerEntry(producer_id)
        entry.epoch = epoch
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = timestamp
        entry.txn_first_offset = max(txn_first, -1)
        if last_offset >= 0:
            first_sequence = last_sequence - delta
            # Without a sequence: offsets of a transaction, which a group coordinator writes under the producer's id.
            if last_sequence < 0:
                first_sequence = -1
            elif first_sequence < 0:
                first_sequence += MAX_SEQUENCE + 1
            entry.batches = ((first_sequence, last_sequence, last_offset - delta, last_offset, timestamp),)
            entry.next_sequence = add_sequence(last_sequence, 1)
        entries.append(entry)
    return entries


class ProducerSnapshots:
    """The snapshot files of one log."""

    def __init__(self, disk: Disk, folder: str, *, empty: bool = False) -> None:
        """List the snapshots; with `empty` the folder is new and there are none."""
        self._disk = disk
        self.folder = folder
        self._offsets: list[int] = []
        if not empty:
            self.reload()

    def reload(self) -> None:
        """List the folder again."""
        self._offsets = sorted(
            int(name[: -len(SUFFIX)])
            for name in self._disk.listdir(self.folder)
            if name.endswith(SUFFIX) and name[: -len(SUFFIX)].isdigit()
        )

    def path(self, offset: int) -> str:
        """Return the path of the snapshot of an offset."""
        return os.path.join(self.folder, f"{offset:020d}{SUFFIX}")

    def offsets(self) -> list[int]:
        """The offsets there are snapshots for, ascending."""
        return list(self._offsets)

    def take(self, offset: int, entries: Iterable[ProducerEntry], *, sync: bool = False) -> None:
        """Write the state before `offset`, unless it is on disk already."""
        # A roll right after a clean start: nothing was written since the last one.
        if self._offsets and self._offsets[-1] == offset:
            return
        # In place and mostly unsynced: one that a crash has torn fails its checksum, and an older one is used.
        try:
            self._disk.write_file(self.path(offset), encode(entries), sync=sync)
        except OSError as error:
            raise StorageFailure(f"cannot write {self.path(offset)}: {error}") from error
        self._offsets = sorted({*self._offsets, offset})

    def latest(self, first: int, last: int) -> tuple[int, list[ProducerEntry]] | None:
        """Return the newest readable snapshot in [first, last]; unreadable ones are removed and logged."""
        for offset in reversed(self._offsets):
            if not first <= offset <= last:
                continue
            try:
                return offset, decode(self._disk.read_file(self.path(offset)))
            # An older snapshot costs a longer replay, nothing else.
            except (CorruptBatch, FileNotFoundError) as error:
                logger.warning("unreadable producer snapshot removed", path=self.path(offset), reason=error)
                self.remove(offset)
        return None

    def remove(self, offset: int) -> None:
        """Delete one snapshot."""
        self._disk.remove_if_exists(self.path(offset))
        if offset in self._offsets:
            self._offsets.remove(offset)

    def mark_deleted(self, offset: int) -> list[str]:
        """Rename a snapshot to `.deleted`; return what is to be removed later."""
        if offset not in self._offsets:
            return []
        self._offsets.remove(offset)
        try:
            self._disk.rename(self.path(offset), self.path(offset) + ".deleted")
        except FileNotFoundError:
            return []
        return [self.path(offset) + ".deleted"]

    def remove_outside(self, first: int, last: int) -> None:
        """Delete the snapshots below `first` or above `last`."""
        for offset in self.offsets():
            if not first <= offset <= last:
                self.remove(offset)

    def remove_strays(self, segment_bases: Collection[int]) -> None:
        """Delete snapshots that belong to no segment, except one beyond the last: a clean stop wrote that."""
        bases = set(segment_bases)
        newest = max(bases, default=0)
        strays = [offset for offset in self._offsets if offset not in bases]
        keep = strays[-1] if strays and strays[-1] > newest else None
        for offset in strays:
            if offset != keep:
                self.remove(offset)
