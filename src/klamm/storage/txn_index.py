"""The transaction index: which offsets of a segment belong to aborted transactions.

    34 bytes per entry: version i16 = 0 · producer id i64 · first offset i64 · last offset i64 · last stable offset i64

The file exists only once a transaction was aborted in the segment. Entries are written as they happen: aborts are rare.
"""

import os
import struct
from collections.abc import Callable
from typing import NamedTuple

from klamm.model.errors import CorruptBatch, StorageFailure
from klamm.storage.disk import Disk, write_all

ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = 34


class AbortedTxn(NamedTuple):
    """An aborted transaction: its producer, the offsets it spans (marker included), and the LSO once it ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TxnIndex:
    """The aborted transactions whose markers are in one segment, in the order of their markers."""

    __slots__ = ("_disk", "_entries", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._entries: list[AbortedTxn] | None = None

    def entries(self, verify: Callable[[AbortedTxn], bool] | None = None) -> list[AbortedTxn]:
        """Return all entries. They are read from the file once; `verify` then compares every one with the log.

        CorruptBatch when one is wrong.
        """
        if self._entries is None:
            try:
                data = self._disk.read_file(self.path)
            except FileNotFoundError:
                data = b""
            # A torn entry at the end is from a crash; recovery of the active segment writes it again.
            complete_bytes = len(data) - len(data) % ENTRY_SIZE
            entries = [AbortedTxn(*fields[1:]) for fields in ENTRY.iter_unpack(data[:complete_bytes])]
            ends = [-1, *(txn.last_offset for txn in entries)]
            # Markers are appended in offset order; an entry out of order is damage that needs no look at the log.
            wrong = next((i for i, txn in enumerate(entries) if txn.last_offset <= ends[i]), None)
            if wrong is None and verify is not None:
                wrong = next((i for i, txn in enumerate(entries) if not verify(txn)), None)
            if wrong is not None:
                raise CorruptBatch(f"{self.path}: entry {wrong} is wrong; `klamm storage repair` rebuilds it")
            self._entries = entries
        return self._entries

    def append(self, txn: AbortedTxn) -> None:
        """Write one more entry."""
        entries = self.entries()
        self._write(ENTRY.pack(0, *txn), len(entries) * ENTRY_SIZE)
        entries.append(txn)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries whose markers are at or after `offset`."""
        entries = self.entries()
        kept = [txn for txn in entries if txn.last_offset < offset]
        if len(kept) != len(entries):
            self.reset(kept)

    def reset(self, entries: "list[AbortedTxn] | None" = None) -> None:
        """Replace all entries; without any, the file is removed."""
        self._entries = entries or []
        if self._entries:
            self._disk.write_file(self.path, b"".join(ENTRY.pack(0, *txn) for txn in self._entries))
        else:
            self._disk.remove_if_exists(self.path)

    def collect(
        self, start: int, end: int, verify: Callable[[AbortedTxn], bool] | None = None
    ) -> tuple[list[AbortedTxn], bool]:
        """Return the aborted transactions that overlap [start, end), and whether later segments can hold no more."""
        transactions = []
        for txn in self.entries(verify):
            if txn.last_offset >= start and txn.first_offset < end:
                transactions.append(txn)
            # Transactions aborted later began at or after this last stable offset, so beyond the range.
            if txn.last_stable_offset >= end:
                return transactions, True
        return transactions, False

    def _write(self, data: bytes, position: int) -> None:
        try:
            fd = self._disk.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                write_all(self._disk, fd, data, position)
            finally:
                self._disk.close(fd)
        except OSError as error:
            raise StorageFailure(f"cannot write {self.path}: {error}") from error
