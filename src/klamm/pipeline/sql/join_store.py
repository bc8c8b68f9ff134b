"""Rows of the tables that a query joins, in a local SQLite file, found by key and by the values they are joined on.

Kept are whole records, as the topic has them: Spark decodes those that a batch needs, as it decodes the topic. Beside
each are hashes of its join expressions, computed by Spark. Two values with one hash find one row too many, which the
join drops.

The file can be made again from the topics at any time. So one that is damaged, or made for another SELECT, is removed.
Of each key the newest record of each partition is kept, with the latest time of the key there: a key changes its
partition when the topic gets more of them. Which of them counts is the rule of `table_records`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

_log = logging.getLogger(__name__)
_FORMAT: Final = 2
# SQLite takes 32,766 values in one statement.
_VALUES_MAX: Final = 10_000
_CACHE_KB: Final = 32_768
ROWS_MAX: Final = 50_000
"""Rows of one table, or keys, that a batch may need: more are cheaper to read from the topic, by all executors."""


StoredRow = tuple[Any, ...]
"""key, partition, latest time, offset, time, value, headers, hashes."""


class TooManyRowsError(Exception):
    """Raised when a batch needs more rows than are looked up one by one."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """The newest record of a key; times are microseconds."""

    key: bytes
    partition: int
    offset: int
    timestamp_us: int
    value: bytes | None
    headers: str | None
    """As JSON; None where the record has none."""
    hashes: tuple[int | None, ...]
    latest_us: int
    """The latest time of the key in the partition."""

    def row(self) -> StoredRow:
        """Return the columns of the store."""
        # A deletion is found by its key only: it stays so that an older version does not come back.
        hashes = self.hashes if self.value is not None else (None,) * len(self.hashes)
        columns = (self.partition, self.latest_us, self.offset, self.timestamp_us, self.value, self.headers)
        return (self.key, *columns, *hashes)


class JoinStore:
    """Newest records of tables, and the rows of the result that were made of each row of the root; one thread."""

    def __init__(self, path: str, description: str, tables: Mapping[str, int]) -> None:
        """Open a store of `tables`, with so many hashes each; one of another description is made anew."""
        self._path = path
        self._description = f"{_FORMAT} {description}"
        self._hashes = dict(tables)
        self._places = {name: place for place, name in enumerate(tables)}
        self._connection = self._open()

    def _open(self) -> sqlite3.Connection:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        try:
            connection = self._connect()
            if _read_meta(connection).get("description") == self._description:
                return connection
            connection.close()
        except sqlite3.DatabaseError as error:
            _log.warning("join store rebuilt path=%s: %s", self._path, error)
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path + suffix)
        connection = self._connect()
        self._connection = connection
        self._create_tables()
        return connection

    def _connect(self) -> sqlite3.Connection:
        # Spark calls from another thread after a restart of the query, never from two at a time.
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
            connection.execute("PRAGMA journal_mode = WAL")
            # A power failure may lose the last batches, which is recognized by the position.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID")
        except BaseException:
            connection.close()
            raise
        return connection

    def _create_tables(self) -> None:
        with self.transaction():
            for name, count in self._hashes.items():
                columns = "".join(f", h{number} INTEGER" for number in range(count))
                self._connection.execute(
                    f"CREATE TABLE {self._table(name)} (key BLOB NOT NULL, partition INTEGER, latest INTEGER,"
                    f" offset INTEGER, timestamp INTEGER, value BLOB, headers TEXT{columns})"
                )
            self._connection.execute("CREATE TABLE results (root BLOB, key BLOB, value BLOB)")
            self.put("description", self._description)

    def index(self) -> None:
        """Create the indexes that are missing; after a load, which is several times faster without them."""
        for name, count in self._hashes.items():
            self._index_keys(name)
            for number in range(count):
                place = self._places[name]
                self._connection.execute(
                    f"CREATE INDEX IF NOT EXISTS hash_{place}_{number} ON {self._table(name)} (h{number})"
                )
        for column in ("root", "key"):
            self._connection.execute(f"CREATE INDEX IF NOT EXISTS result_{column} ON results ({column})")

    def _index_keys(self, name: str) -> None:
        self._connection.execute(
            f"CREATE UNIQUE INDEX IF NOT EXISTS key_{self._places[name]} ON {self._table(name)} (key, partition)"
        )

    def _table(self, name: str) -> str:
        return f"records_{self._places[name]}"

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Make changes visible together, or none of them."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            # A full disk has ended the transaction already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    # What the store holds

    def get(self, name: str) -> str | None:
        """Return a stored note, such as a position."""
        return _read_meta(self._connection).get(name)

    def put(self, name: str, value: str) -> None:
        """Store a note, in the transaction of the rows it is about."""
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def clear_table(self, name: str) -> None:
        """Remove the rows of a table, and its indexes until `index` is called."""
        self._connection.execute(f"DELETE FROM {self._table(name)}")
        place = self._places[name]
        for index in (f"key_{place}", *(f"hash_{place}_{number}" for number in range(self._hashes[name]))):
            self._connection.execute(f"DROP INDEX IF EXISTS {index}")

    def clear(self) -> None:
        """Remove all rows and notes."""
        for name in self._hashes:
            self.clear_table(name)
        self._connection.execute("DELETE FROM results")
        for column in ("root", "key"):
            self._connection.execute(f"DROP INDEX IF EXISTS result_{column}")
        self._connection.execute("DELETE FROM meta WHERE name <> 'description'")

    def count(self, name: str) -> int:
        """Return the number of records of a table, deletions too."""
        return int(self._connection.execute(f"SELECT count(*) FROM {self._table(name)}").fetchone()[0])

    # Records

    def apply(self, name: str, records: Iterable[StoredRecord]) -> None:
        """Merge records, which come in the order of their partition."""
        self._index_keys(name)
        self.load(name, (record.row() for record in records))

    def load(self, name: str, rows: Iterable[StoredRow]) -> None:
        """Merge rows of records; into a table without indexes they are only added, each key and partition once."""
        count = self._hashes[name]
        columns = ["offset", "timestamp", "value", "headers", *(f"h{number}" for number in range(count))]
        insertion = f"INSERT INTO {self._table(name)} VALUES ({', '.join('?' * (len(columns) + 3))})"
        if self._has_key_index(name):
            assignments = ", ".join(f"{column} = excluded.{column}" for column in columns)
            insertion += (
                " ON CONFLICT (key, partition) DO UPDATE SET latest = max(latest, excluded.latest),"
                f" {assignments} WHERE excluded.offset > offset"
            )
        self._connection.executemany(insertion, rows)

    def _has_key_index(self, name: str) -> bool:
        statement = "SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = ?"
        return self._connection.execute(statement, (f"key_{self._places[name]}",)).fetchone() is not None

    def records(self, name: str, keys: Iterable[bytes]) -> list[StoredRecord]:
        """Return the newest records of keys, without deleted ones."""
        newest: dict[bytes, tuple[tuple[int, int], StoredRecord]] = {}
        for row in self._select("*", self._table(name), "key", keys):
            key, partition, latest, offset, timestamp_us, value, headers, *hashes = row
            version = (latest, offset)
            if key not in newest or newest[key][0] < version:
                record = StoredRecord(key, partition, offset, timestamp_us, value, headers, tuple(hashes), latest)
                newest[key] = (version, record)
                if len(newest) > ROWS_MAX:
                    raise TooManyRowsError
        return [record for _, record in newest.values() if record.value is not None]

    def hashes(self, name: str, keys: Iterable[bytes], number: int) -> set[int]:
        """Return a hash of rows of these keys; that of a version in another partition may be among them."""
        rows = self._select(f"h{number}", self._table(name), "key", keys)
        return {row[0] for row in rows if row[0] is not None}

    def keys_by_hash(self, name: str, number: int, hashes: Iterable[int]) -> set[bytes]:
        """Return the keys of rows with one of these hashes."""
        keys: set[bytes] = set()
        for (key,) in self._select("key", self._table(name), f"h{number}", hashes):
            keys.add(key)
            if len(keys) > ROWS_MAX:
                raise TooManyRowsError
        return keys

    # Results

    def add_results(self, rows: Iterable[tuple[bytes, bytes, bytes]]) -> None:
        """Add rows of the result: the root's key, their own key and value."""
        self._connection.executemany("INSERT INTO results VALUES (?, ?, ?)", rows)

    def replace_results(
        self, roots: Iterable[bytes], rows: Sequence[tuple[bytes, bytes, bytes]]
    ) -> list[tuple[bytes, bytes | None]]:
        """Replace what was made of some rows of the root; return keys whose value is another one, None if it is gone.

        Of several rows of one key the largest value counts, as when the table is computed whole.
        """
        roots = list(roots)
        touched = {row[0] for row in self._select("key", "results", "root", roots)} | {key for _, key, _ in rows}
        if len(touched) > ROWS_MAX:
            raise TooManyRowsError
        before = self._largest_values(touched)
        for part in _split_batches(roots, _VALUES_MAX):
            self._connection.execute(f"DELETE FROM results WHERE root IN ({', '.join('?' * len(part))})", part)
        self.add_results(rows)
        after = self._largest_values(touched)
        return [(key, after.get(key)) for key in sorted(touched) if before.get(key) != after.get(key)]

    def _largest_values(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        rows = self._select("key, max(value)", "results", "key", keys, "GROUP BY key")
        return dict(rows)

    def _select(
        self, columns: str, table: str, column: str, values: Iterable[Any], more: str = ""
    ) -> Iterator[tuple[Any, ...]]:
        for part in _split_batches(values, _VALUES_MAX):
            marks = ", ".join("?" * len(part))
            statement = f"SELECT {columns} FROM {table} WHERE {column} IN ({marks}) {more}"
            yield from self._connection.execute(statement, part)


def _split_batches(values: Iterable[Any], size: int) -> Iterator[tuple[Any, ...]]:
    iterator = iter(values)
    while part := tuple(islice(iterator, size)):
        yield part


def _read_meta(connection: sqlite3.Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT name, value FROM meta").fetchall())


def encode_headers(headers: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Return a record's headers as JSON."""
    if headers is None:
        return None
    pairs = [[header["key"], None if header["value"] is None else header["value"].hex()] for header in headers]
    return json.dumps(pairs)


def decode_headers(text: str | None) -> list[dict[str, Any]] | None:
    """Return headers from JSON."""
    if text is None:
        return None
    return [{"key": key, "value": None if value is None else bytes.fromhex(value)} for key, value in json.loads(text)]
