"""Rows and positions of tables in one DuckDB database, in memory or in a folder.

A table is `klamm.<name>` with the record's key, the version of the row and the table's columns, and a view
`main.<name>` of the columns alone. A batch of rows is one MERGE; rows and the offsets they were read up to change in
one transaction, so that a store in a folder continues where it was.

Which of two versions of a key counts: within a partition the later offset; between partitions, which a key changes when
a topic gets more of them, the later timestamp and then the higher offset. A row keeps the latest timestamp of its
key in its partition, so that the result does not depend on the order in which partitions are read. A deleted key stays
as a row until nothing older can come.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.pipeline.tables.core.field_types import DeclaredColumns, FieldType, quote_identifier
from klamm.pipeline.tables.queries import QueryLimits, fetch_row, lock_database, open_database, read_table_names
from klamm.pipeline.tables.record_reader import DELETED, KEY, OFFSET, PARTITION, TIME

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa  # type: ignore[import-untyped]

_log = logging.getLogger(__name__)
_FILE: Final = "tables.duckdb"
_FORMAT: Final = 1
"""The version of the store's own tables; a store of another version is built anew."""
_SYSTEM: Final = {KEY: "BLOB", PARTITION: "INTEGER", OFFSET: "BIGINT", TIME: "BIGINT", DELETED: "BOOLEAN"}
_ARRIVING: Final = "arriving"

_NEWER: Final = f"""(b.{PARTITION} = t.{PARTITION} AND b.{OFFSET} > t.{OFFSET}
  OR b.{PARTITION} <> t.{PARTITION} AND (b.{TIME} > t.{TIME} OR b.{TIME} = t.{TIME} AND b.{OFFSET} > t.{OFFSET}))"""
_MERGED_TIME: Final = f"CASE WHEN b.{PARTITION} = t.{PARTITION} THEN greatest(b.{TIME}, t.{TIME}) ELSE b.{TIME} END"


@dataclass(frozen=True, slots=True)
class StoredPositions:
    """How far a table's topic was read: the topic's id and the next offset of each partition."""

    topic_id: str
    offsets: Mapping[int, int]


class TableStore:
    """Tables and positions; one thread writes, any number of cursors read."""

    def __init__(self, folder: str | None, limits: QueryLimits, *, index: bool = True) -> None:
        self._folder = folder
        self._limits = limits
        self._index = index
        self._keys: dict[str, tuple[str, ...]] = {}
        self._columns: dict[str, list[tuple[str, FieldType]]] = {}
        self.connection = self._open()

    def _open(self) -> duckdb.DuckDBPyConnection:
        import duckdb  # noqa: PLC0415 - an extra

        path = None
        if self._folder is not None:
            os.makedirs(self._folder, exist_ok=True)
            path = os.path.join(self._folder, _FILE)
        try:
            connection = open_database(path, self._limits)
            _create_own_tables(connection)
        except (duckdb.Error, _OtherFormatError) as error:
            if path is None:
                raise
            # Everything in the store can be read again from the topics.
            _log.warning("store rebuilt path=%s: %s", path, str(error).splitlines()[0])
            self._remove(path)
            connection = open_database(path, self._limits)
            _create_own_tables(connection)
        return connection

    @staticmethod
    def _remove(path: str) -> None:
        for name in (path, f"{path}.wal"):
            with suppress(FileNotFoundError):
                os.unlink(name)
        shutil.rmtree(f"{path}.tmp", ignore_errors=True)

    def lock(self) -> None:
        """Let no query change the configuration."""
        lock_database(self.connection)

    def close(self) -> None:
        """Write everything to the file, and close it."""
        self.connection.close()

    # Tables

    def add_table(self, name: str, topic: str, key: Sequence[str], columns: DeclaredColumns, description: str) -> None:
        """Make a table, or continue with the stored one if it was made by the same description."""
        self._keys[name] = tuple(key)
        self._columns[name] = list(columns)
        stored = fetch_row(self.connection, "SELECT topic, description FROM klamm.klamm_tables WHERE name = ?", [name])
        if stored == (topic, description):
            self.create_view(name)
            self.create_index(name)
            return
        if stored is not None:
            _log.warning("table re-read from beginning table=%s: its declaration changed", name)
        with self.transaction() as transaction:
            transaction.drop(name)
            transaction.create(name)
            self.connection.execute(
                "INSERT INTO klamm.klamm_tables VALUES (?, ?, '', ?, 0, NULL)",
                [name, topic, description],
            )
        self.create_index(name)

    def reset(self, name: str, columns: DeclaredColumns | None = None) -> None:
        """Forget the rows and positions of a table."""
        if columns is not None:
            self._columns[name] = list(columns)
        with self.transaction() as transaction:
            self.connection.execute("DELETE FROM klamm.klamm_positions WHERE name = ?", [name])
            self.connection.execute(
                "UPDATE klamm.klamm_tables SET topic_id = '', bad_records = 0, inferred = NULL WHERE name = ?", [name]
            )
            self.connection.execute(f"DROP TABLE IF EXISTS {_table(name)}")
            transaction.create(name)
        self.create_index(name)

    def inferred_types(self, name: str) -> dict[str, str] | None:
        """Return the stored types of columns that are inferred; None when there are none."""
        row = fetch_row(self.connection, "SELECT inferred FROM klamm.klamm_tables WHERE name = ?", [name])
        return None if row is None or row[0] is None else json.loads(row[0])

    def create_view(self, name: str) -> None:
        """Create the view by which queries see a table."""
        names = ", ".join(quote_identifier(column) for column, _ in self._columns[name])
        self.connection.execute(
            f"CREATE OR REPLACE VIEW main.{quote_identifier(name)} AS"
            f" SELECT {names} FROM {_table(name)} WHERE NOT {DELETED}"
        )

    def create_index(self, name: str) -> None:
        """Index the first column of the key: point queries are then independent of the number of rows."""
        if not self._index:
            return
        column = self.find_column(name, self._keys[name][0])
        types = dict(self._columns[name])
        if column is None or types[column].nested:
            return
        index = quote_identifier(f"key of {name}")
        self.connection.execute(f"CREATE INDEX IF NOT EXISTS {index} ON {_table(name)} ({quote_identifier(column)})")

    def find_column(self, name: str, wanted: str) -> str | None:
        """Return the column of a name in any case."""
        return next((column for column, _ in self._columns[name] if column.lower() == wanted.lower()), None)

    # Reading

    def positions(self, name: str) -> StoredPositions:
        """Return how far a table was read."""
        row = fetch_row(self.connection, "SELECT topic_id FROM klamm.klamm_tables WHERE name = ?", [name])
        offsets = self.connection.execute(
            "SELECT partition_id, next_offset FROM klamm.klamm_positions WHERE name = ?", [name]
        ).fetchall()
        return StoredPositions("" if row is None else row[0], dict(offsets))

    def bad_count(self, name: str) -> int:
        """Return how many records of a table's topic were no rows."""
        with self._cursor() as cursor:
            row = fetch_row(cursor, "SELECT bad_records FROM klamm.klamm_tables WHERE name = ?", [name])
        return 0 if row is None else int(row[0])

    def row_counts(self) -> dict[str, int]:
        """Return the number of rows of each table."""
        with self._cursor() as cursor:
            counts = {}
            for name in self._keys:
                row = fetch_row(cursor, f"SELECT count(*) FROM {_table(name)} WHERE NOT {DELETED}")
                counts[name] = 0 if row is None else int(row[0])
            return counts

    def table_names(self, sql: str) -> list[str]:
        """Return the names that a SELECT reads."""
        with self._cursor() as cursor:
            return read_table_names(cursor, sql)

    @contextmanager
    def _cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        # A connection runs one statement at a time: the writer's is not used for questions of other threads.
        cursor = self.connection.cursor()
        try:
            yield cursor
        finally:
            cursor.close()

    # Writing

    @contextmanager
    def transaction(self) -> Iterator[StoreTransaction]:
        """Change rows and positions together."""
        connection = self.connection
        connection.execute("BEGIN TRANSACTION")
        try:
            yield StoreTransaction(self)
        except BaseException:
            with suppress(Exception):
                connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    @property
    def keys(self) -> Mapping[str, tuple[str, ...]]:
        """The key columns of each table."""
        return self._keys

    @property
    def columns(self) -> dict[str, list[tuple[str, FieldType]]]:
        """The columns of each table."""
        return self._columns


class StoreTransaction:
    """Changes that become visible together."""

    def __init__(self, store: TableStore) -> None:
        self._store = store
        self._connection = store.connection

    def drop(self, name: str) -> None:
        """Remove a table, its positions and its description."""
        self._connection.execute(f"DROP VIEW IF EXISTS main.{quote_identifier(name)}")
        self._connection.execute(f"DROP TABLE IF EXISTS {_table(name)}")
        self._connection.execute("DELETE FROM klamm.klamm_positions WHERE name = ?", [name])
        self._connection.execute("DELETE FROM klamm.klamm_tables WHERE name = ?", [name])

    def create(self, name: str) -> None:
        """Create an empty table and its view."""
        columns = [f"{column} {kind}" for column, kind in _SYSTEM.items()]
        columns += [f"{quote_identifier(column)} {kind.duckdb}" for column, kind in self._store.columns[name]]
        self._connection.execute(f"CREATE TABLE {_table(name)} ({', '.join(columns)})")
        self._store.create_view(name)

    def set_columns(self, name: str, columns: DeclaredColumns, inferred: Mapping[str, str] | None) -> None:
        """Give a table more or wider columns; rows are copied. Does nothing when the columns are the same."""
        known = self._store.columns[name]
        if inferred is None or list(columns) == known:
            return
        self._store.columns[name] = list(columns)
        old = _table(f"{name} before")
        index = quote_identifier(f"key of {name}")
        self._connection.execute(f"DROP INDEX IF EXISTS klamm.{index}")
        self._connection.execute(f"DROP VIEW IF EXISTS main.{quote_identifier(name)}")
        self._connection.execute(
            f"ALTER TABLE {_table(name)} RENAME TO {quote_identifier(_physical(f'{name} before'))}"
        )
        self.create(name)
        kept = {column for column, _ in columns}
        names = [*_SYSTEM, *(quote_identifier(column) for column, _ in known if column in kept)]
        self._connection.execute(
            f"INSERT INTO {_table(name)} ({', '.join(names)}) SELECT {', '.join(names)} FROM {old}"
        )
        self._connection.execute(f"DROP TABLE {old}")
        self._store.create_index(name)
        self._connection.execute(
            "UPDATE klamm.klamm_tables SET inferred = ? WHERE name = ?", [json.dumps(dict(inferred)), name]
        )

    def apply(self, name: str, rows: pa.Table, *, keys_may_change: bool = False) -> None:
        """Merge rows of a batch; with `keys_may_change` key columns of a stored key may have other values."""
        if not rows.num_rows:
            return
        for part in _split_rounds(self._connection, rows):
            self._connection.register(_ARRIVING, part)
            try:
                if keys_may_change:
                    self._delete_changed_keys(name)
                self._connection.execute(self._merge(name))
            finally:
                self._connection.unregister(_ARRIVING)

    def _merge(self, name: str) -> str:
        keys = {key.lower() for key in self._store.keys[name]}
        columns = [quote_identifier(column) for column, _ in self._store.columns[name]]
        # Columns of the key follow from the key, and setting them would change the index.
        changed = [quote_identifier(column) for column, _ in self._store.columns[name] if column.lower() not in keys]
        assignments = [
            f"{PARTITION} = b.{PARTITION}, {OFFSET} = b.{OFFSET}, {TIME} = {_MERGED_TIME}, {DELETED} = b.{DELETED}",
            *(f"{column} = b.{column}" for column in changed),
        ]
        everything = [*_SYSTEM, *columns]
        return (
            f"MERGE INTO {_table(name)} AS t USING {_ARRIVING} AS b ON t.{KEY} = b.{KEY}"
            f" WHEN MATCHED AND {_NEWER} THEN UPDATE SET {', '.join(assignments)}"
            f" WHEN NOT MATCHED THEN INSERT ({', '.join(everything)})"
            f" VALUES ({', '.join(f'b.{column}' for column in everything)})"
        )

    def _delete_changed_keys(self, name: str) -> None:
        """Delete rows whose key columns will have other values, so that MERGE inserts them."""
        keys = [self._store.find_column(name, key) for key in self._store.keys[name]]
        differs = " OR ".join(
            f"t.{quote_identifier(key)} IS DISTINCT FROM b.{quote_identifier(key)}" for key in keys if key
        )
        self._connection.execute(
            f"DELETE FROM {_table(name)} AS t USING {_ARRIVING} AS b"
            f" WHERE t.{KEY} = b.{KEY} AND NOT b.{DELETED} AND {_NEWER} AND ({differs or 'false'})"
        )

    def move(self, name: str, topic_id: str, offsets: Mapping[int, int]) -> None:
        """Store the next offsets of partitions."""
        self._connection.execute("UPDATE klamm.klamm_tables SET topic_id = ? WHERE name = ?", [topic_id, name])
        partitions = list(offsets)
        self._connection.execute(
            "DELETE FROM klamm.klamm_positions WHERE name = ? AND partition_id IN (SELECT unnest(?))",
            [name, partitions],
        )
        self._connection.execute(
            "INSERT INTO klamm.klamm_positions SELECT ?, unnest(?), unnest(?)",
            [name, partitions, list(offsets.values())],
        )

    def count_bad(self, name: str, count: int) -> None:
        """Add to the number of bad records."""
        if count:
            self._connection.execute(
                "UPDATE klamm.klamm_tables SET bad_records = bad_records + ? WHERE name = ?", [count, name]
            )

    def purge_deleted(self, until_us: int) -> None:
        """Remove keys that were deleted before a time (microseconds since 1970)."""
        for name in self._store.keys:
            self._connection.execute(f"DELETE FROM {_table(name)} WHERE {DELETED} AND {TIME} < ?", [until_us])


def _split_rounds(connection: duckdb.DuckDBPyConnection, rows: pa.Table) -> Iterator[pa.Table]:
    """Yield rows with each key once: the last of a partition, and keys of several partitions one after the other.

    MERGE takes a key once. Between partitions the stored row decides, so that they cannot be compared here.
    """
    import pyarrow as pa  # noqa: PLC0415

    versions = rows.select([KEY, PARTITION, OFFSET, TIME]).append_column("position", pa.array(range(rows.num_rows)))
    connection.register(_ARRIVING, versions)
    try:
        chosen = connection.sql(
            f"""SELECT arg_max(position, {OFFSET}) AS position, max({TIME}) AS time,
                       row_number() OVER (PARTITION BY {KEY} ORDER BY {PARTITION}) AS round
                FROM {_ARRIVING} GROUP BY {KEY}, {PARTITION}"""
        ).to_arrow_table()
    finally:
        connection.unregister(_ARRIVING)
    import pyarrow.compute as pc  # type: ignore[import-untyped] # noqa: PLC0415

    for number in range(1, (pc.max(chosen["round"]).as_py() or 0) + 1):
        part = chosen.filter(pc.equal(chosen["round"], number))
        taken = rows.take(part["position"])
        yield taken.set_column(taken.column_names.index(TIME), TIME, part["time"])


class _OtherFormatError(Exception):
    """Raised for a store that another version of Klamm has made."""


def _create_own_tables(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("CREATE SCHEMA IF NOT EXISTS klamm")
    connection.execute("CREATE TABLE IF NOT EXISTS klamm.klamm_store (format INTEGER)")
    stored = fetch_row(connection, "SELECT format FROM klamm.klamm_store")
    if stored is None:
        connection.execute("INSERT INTO klamm.klamm_store VALUES (?)", [_FORMAT])
    elif stored[0] != _FORMAT:
        connection.close()
        raise _OtherFormatError(f"the store is of format {stored[0]}, not {_FORMAT}")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS klamm.klamm_tables"
        " (name VARCHAR, topic VARCHAR, topic_id VARCHAR, description VARCHAR, bad_records BIGINT, inferred VARCHAR)"
    )
    connection.execute(
        "CREATE TABLE IF NOT EXISTS klamm.klamm_positions (name VARCHAR, partition_id INTEGER, next_offset BIGINT)"
    )


def _table(name: str) -> str:
    return f"klamm.{quote_identifier(_physical(name))}"


def _physical(name: str) -> str:
    # A prefix keeps them apart from the store's own tables.
    return f"rows of {name}"
