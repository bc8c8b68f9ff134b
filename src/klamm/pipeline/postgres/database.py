"""The PostgreSQL side of a capture: replication slot, publication, snapshot and changes of one table.

Needs psycopg 3. It does not serve the streaming half of the replication protocol, so changes are read by the SQL
function `pg_logical_slot_peek_binary_changes`; the slot is created over a replication connection, because only that
exports the snapshot that fits to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from klamm.model.errors import ConfigError, ErrorCode, KlammError
from klamm.pipeline.postgres.capture_options import CaptureOptions, quote
from klamm.pipeline.postgres.core.capture_position import DatabaseState, SlotState
from klamm.pipeline.postgres.core.change_records import ChangeOrigin
from klamm.pipeline.postgres.core.column_values import SESSION_SETTINGS, TypeCatalog, json_value, text_value
from klamm.pipeline.postgres.core.pgoutput import format_lsn, parse_lsn
from klamm.pipeline.sql.core.secrets import mask_secrets

if TYPE_CHECKING:
    import psycopg

CONNECT_S: Final = 10
_FETCH_ROWS: Final = 2000
_TYPES: Final = """
SELECT oid::bigint, typtype = 'd', (CASE WHEN typtype = 'd' THEN typbasetype ELSE typelem END)::bigint
FROM pg_type WHERE typtype = 'd' OR (typcategory = 'A' AND typelem <> 0 AND typdelim = ',')
"""
# Generated columns are not in the log, so they are left out of the snapshot, too.
_COLUMNS: Final = """
SELECT attname, atttypid::bigint FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""
# PostgreSQL 13 is the first with wal_status.
_SLOT: Final = """
SELECT confirmed_flush_lsn, coalesce(to_jsonb(slots) ->> 'wal_status', 'reserved'), plugin, database
FROM pg_replication_slots slots WHERE slot_name = %s
"""


class PostgresError(KlammError):
    """Raised for an error of PostgreSQL or its connection, with secrets masked."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, message)


@dataclass(frozen=True, slots=True)
class SlotSnapshot:
    """A new slot: the position from which it has changes, and the snapshot of the rows before them."""

    lsn: int
    snapshot: str


class PostgresTable:
    """One table of a database, over connections that are opened when they are needed."""

    def __init__(self, options: CaptureOptions, *, connect_s: int = CONNECT_S) -> None:
        self.options = options
        self._connect_s = connect_s
        self._session: psycopg.Connection[Any] | None = None
        self._catalog: TypeCatalog | None = None

    def connect(self, **more: Any) -> psycopg.Connection[Any]:
        """Open a connection; PostgresError when there is none."""
        psycopg = load_psycopg()
        options = self.options
        login = {name: value for name, value in (("user", options.user), ("password", options.password)) if value}
        try:
            return psycopg.connect(
                options.url,
                connect_timeout=self._connect_s,
                application_name="klamm",
                client_encoding="utf8",
                **login,
                **more,
                autocommit=True,
            )
        except psycopg.Error as error:
            raise self.wrap_error(error) from None

    def wrap_error(self, error: Exception) -> PostgresError:
        """Return an error that may be shown: its first line, without secrets."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        message = mask_secrets(lines[0] if lines else type(error).__name__, self.options.secrets)
        return PostgresError(f"{self.options.name}: {message}")

    @property
    def session(self) -> psycopg.Connection[Any]:
        """The connection of changes and look-ups; opened again when it broke."""
        if self._session is None or self._session.closed:
            self._session = self.connect()
            apply_settings(self._session)
            self._catalog = None
        return self._session

    def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            self._session.close()

    def cancel(self) -> None:
        """Cancel the statement that runs; callable from another thread."""
        if self._session is not None and not self._session.closed:
            self._session.cancel()

    def state(self) -> DatabaseState:
        """Return what decides how a capture begins."""
        with self.connect(replication="database") as replication:
            system, _, _, database = replication.execute("IDENTIFY_SYSTEM").fetchone() or ("", 0, "", "")
        return DatabaseState(str(system), str(database), self.current_lsn(), self.slot())

    def slot(self) -> SlotState | None:
        """Return the replication slot; None when there is none."""
        statement = (
            "SELECT confirmed_flush_lsn, coalesce(to_jsonb(slots) ->> 'wal_status', 'reserved'), plugin, database"
        )
        row = self.session.execute(
            f"{statement} FROM pg_replication_slots slots WHERE slot_name = %s", (self.options.slot,)
        ).fetchone()
        if row is None:
            return None
        return SlotState(parse_lsn(row[0]) if row[0] else 0, str(row[1]), str(row[2]), str(row[3]))

    def current_lsn(self) -> int:
        """Return where PostgreSQL's log ends, as far as it is on disk."""
        row = self.session.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
        assert row is not None
        return parse_lsn(row[0])

    def origin(self) -> ChangeOrigin:
        """Return the table, as records name it."""
        return ChangeOrigin(self.session.info.dbname, self.options.schema, self.options.table)

    def catalog(self) -> TypeCatalog:
        """Return the array types and domains of the database."""
        if self._catalog is None:
            rows = self.session.execute(_TYPES).fetchall()
            self._catalog = TypeCatalog(
                {oid: target for oid, is_domain, target in rows if not is_domain},
                {oid: target for oid, is_domain, target in rows if is_domain},
            )
        return self._catalog

    def forget_types(self) -> None:
        """Read the types again at the next use: a changed table may have a column of a new type."""
        self._catalog = None

    def ensure_publication(self) -> None:
        """Create the publication of the table if it does not exist."""
        name = self.options.publication
        row = self.session.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (name,)).fetchone()
        if row is None:
            self.session.execute(f"CREATE PUBLICATION {quote(name)} FOR TABLE {self.options.qualified}")

    def drop_slots(self, names: tuple[str, ...]) -> None:
        """Drop those of these slots that exist."""
        self.session.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = ANY(%s)",
            (list(names),),
        )

    @contextmanager
    def new_slot(self) -> Iterator[SlotSnapshot]:
        """Create the slot; its snapshot can be used inside of the block."""
        with self.connect(replication="database") as replication:
            row = replication.execute(
                f"CREATE_REPLICATION_SLOT {quote(self.options.slot)} LOGICAL pgoutput EXPORT_SNAPSHOT"
            ).fetchone()
            assert row is not None
            # The snapshot lives as long as this connection is idle.
            yield SlotSnapshot(parse_lsn(str(row[1])), str(row[2]))

    def estimate_rows(self) -> int | None:
        """Return about how many rows the table has; None before its first ANALYZE."""
        row = self.session.execute(
            "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)", (self.options.qualified,)
        ).fetchone()
        return int(row[0]) if row is not None and row[0] >= 0 else None

    def snapshot_rows(self, snapshot: str) -> Iterator[dict[str, Any]]:
        """Yield all rows as they were when the slot was created."""
        catalog = self.catalog()
        with self.connect() as reader:
            apply_settings(reader)
            with reader.transaction():
                reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                reader.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
                columns = reader.execute(_COLUMNS, (self.options.qualified,)).fetchall()
                names = ", ".join(quote(name) for name, _ in columns)
                # COPY gives the text of the types' output functions, as logical decoding does; a cast to text differs.
                statement = f"COPY (SELECT {names} FROM {self.options.qualified}) TO STDOUT"  # noqa: S608
                with reader.cursor() as cursor, cursor.copy(statement) as copy:
                    for row in copy.rows():
                        yield {
                            name: json_value(text, oid, catalog) for (name, oid), text in zip(columns, row, strict=True)
                        }

    def changes(self, upto: int) -> Iterator[tuple[int, bytes]]:
        """Yield positions and messages from the slot up to a position, of about `batch_size` changes.

        Nothing is taken from the slot. It returns whole transactions.
        """
        statement = (
            "SELECT lsn, data FROM pg_logical_slot_peek_binary_changes("
            "%s, %s, %s, 'proto_version', '1', 'publication_names', %s)"
        )
        options = self.options
        parameters = (options.slot, format_lsn(upto), options.batch_size, quote(options.publication))
        # A cursor of the server: a transaction may have more changes than fit into memory.
        with self.session.transaction(), self.session.cursor(name="klamm_changes") as cursor:
            cursor.itersize = _FETCH_ROWS
            cursor.execute(statement, parameters)
            for lsn, data in cursor:
                yield parse_lsn(lsn), bytes(data)

    def advance(self, lsn: int) -> None:
        """Let PostgreSQL remove what was captured up to a position."""
        slot = self.slot()
        # PostgreSQL refuses to move a slot back.
        if slot is not None and slot.confirmed_lsn < lsn:
            self.session.execute("SELECT pg_replication_slot_advance(%s, %s)", (self.options.slot, format_lsn(lsn)))

    def lag_bytes(self) -> int | None:
        """Return how much log PostgreSQL keeps for the slot; None without a slot."""
        row = self.session.execute(
            "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint FROM pg_replication_slots "
            "WHERE slot_name = %s",
            (self.options.slot,),
        ).fetchone()
        return None if row is None or row[0] is None else int(row[0])

    def current_values(self, key: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
        """Return columns of a row as they are now; nothing when the row is gone."""
        from psycopg import sql  # noqa: PLC0415 - an extra

        types = dict(self.session.execute(_COLUMNS, (self.options.qualified,)).fetchall())
        # A column that was dropped since has no value any more.
        columns = [name for name in names if name in types]
        if not columns:
            return {}
        catalog = self.catalog()
        # As PostgreSQL's own text: the key is as records have it, BYTEA in base64.
        condition = sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(sql.Identifier(name), sql.Literal(text_value(value, types.get(name, 0), catalog)))
            for name, value in key.items()
        )
        statement = sql.SQL("COPY (SELECT {} FROM {} WHERE {}) TO STDOUT").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            sql.Identifier(self.options.schema, self.options.table),
            condition,
        )
        with self.session.cursor() as cursor, cursor.copy(statement) as copy:
            rows = list(copy.rows())
        return {
            name: json_value(text, types[name], catalog)
            for row in rows
            for name, text in zip(columns, row, strict=True)
        }


def apply_settings(connection: psycopg.Connection[Any]) -> None:
    """Give a session the settings on which the text of values depends."""
    for name, value in SESSION_SETTINGS.items():
        connection.execute("SELECT set_config(%s, %s, false)", (name, value))


def load_psycopg() -> Any:
    """Return psycopg; ConfigError with the extra when it is not installed."""
    try:
        import psycopg  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError("the connector postgres needs the package psycopg: pip install 'klamm[postgres]'") from None
    return psycopg


def now_us() -> int:
    """Return the time, in Unix microseconds."""
    return time.time_ns() // 1000
