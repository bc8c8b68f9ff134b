"""Checks whether PostgreSQL lets a table be captured, before anything is created; each problem names its cure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from klamm.pipeline.postgres.capture_options import quote
from klamm.pipeline.postgres.database import PostgresTable

if TYPE_CHECKING:
    import psycopg

VERSION_MIN: Final = 110_000
"""PostgreSQL 11: the first with pg_replication_slot_advance."""
_IDENTITIES: Final = {"n": "NOTHING", "i": "an index"}
# Amazon's RDS gives the right to replicate by a role instead of the attribute.
_ROLE: Final = """
SELECT rolname, rolsuper OR rolreplication OR EXISTS (
  SELECT 1 FROM pg_roles granted WHERE granted.rolname = 'rds_replication'
    AND pg_has_role(current_user, granted.oid, 'member'))
FROM pg_roles WHERE rolname = current_user
"""
_TABLE: Final = """
SELECT relkind, relreplident, pg_get_userbyid(relowner), pg_has_role(current_user, relowner, 'member'),
       has_table_privilege(oid, 'SELECT')
FROM pg_class WHERE oid = to_regclass(%s)
"""
_KEY: Final = """
SELECT attname FROM pg_index
CROSS JOIN LATERAL unnest(indkey) WITH ORDINALITY AS keys (number, place)
JOIN pg_attribute ON attrelid = indrelid AND attnum = keys.number
WHERE indrelid = to_regclass(%s) AND indisprimary ORDER BY place
"""
_PUBLICATION: Final = """
SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, EXISTS (
  SELECT 1 FROM pg_publication_tables tables
  WHERE tables.pubname = %s AND schemaname = %s AND tablename = %s)
FROM pg_publication WHERE pubname = %s
"""


def check_table(table: PostgresTable) -> Iterator[str]:
    """Yield why the table cannot be captured."""
    session = table.session
    version = session.info.server_version
    if version < VERSION_MIN:
        yield f"PostgreSQL {version // 10_000} is too old: changes are captured from version 11 on"
        return
    yield from _check_server(table, session)
    yield from _check_relation(table, session)


def _one(session: psycopg.Connection[Any], statement: str, *parameters: Any) -> tuple[Any, ...] | None:
    row: tuple[Any, ...] | None = session.execute(statement, parameters).fetchone()
    return row


def _setting(session: psycopg.Connection[Any], name: str) -> str:
    row = _one(session, "SELECT current_setting(%s)", name)
    return str(row[0]) if row else ""


def _check_server(table: PostgresTable, session: psycopg.Connection[Any]) -> Iterator[str]:
    if (row := _one(session, "SELECT pg_is_in_recovery()")) and row[0]:
        yield "this PostgreSQL is a standby: name the primary in url"
        return
    level = _setting(session, "wal_level")
    if level != "logical":
        yield f"wal_level is {level}: ALTER SYSTEM SET wal_level = 'logical', then restart PostgreSQL"
    role = _one(session, _ROLE)
    if role is not None and not role[1]:
        yield f"the role {role[0]} may not replicate: ALTER ROLE {quote(role[0])} REPLICATION"
    # By pattern: the pipeline's id, a part of the slot's name, is not known before it has started.
    own = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE %s AND database = current_database()"
    if (row := _one(session, own, table.options.slot_like)) and not row[0]:
        slots = _one(session, "SELECT count(*) FROM pg_replication_slots")
        limit = int(_setting(session, "max_replication_slots"))
        if slots is not None and slots[0] >= limit:
            yield (
                f"all {limit} replication slots are in use: drop one of pg_replication_slots, or "
                f"ALTER SYSTEM SET max_replication_slots = {limit + 10}, then restart PostgreSQL"
            )


def _check_relation(table: PostgresTable, session: psycopg.Connection[Any]) -> Iterator[str]:
    options = table.options
    name = options.qualified
    row = _one(session, _TABLE, name)
    if row is None:
        yield f"{session.info.dbname} has no table {options.schema}.{options.table}"
        return
    kind, identity, owner, is_owner, may_read = row
    if kind != "r":
        yield f"{name} is no ordinary table: views have no log, and of a partitioned table each partition is captured"
        return
    if not may_read:
        yield f"{session.info.user} may not read {name}: GRANT SELECT ON {name} TO {quote(session.info.user)}"
    yield from _check_key(table, session)
    if identity in _IDENTITIES:
        yield (
            f"REPLICA IDENTITY of {name} is {_IDENTITIES[identity]}, so the log does not have the primary key of "
            f"changed rows: ALTER TABLE {name} REPLICA IDENTITY DEFAULT"
        )
    yield from _check_publication(table, session, owner, is_owner=is_owner)


def _check_key(table: PostgresTable, session: psycopg.Connection[Any]) -> Iterator[str]:
    options = table.options
    key = [row[0] for row in session.execute(_KEY, (options.qualified,)).fetchall()]
    if not key:
        columns = ", ".join(quote(column) for column in options.key) or "..."
        yield (
            f"{options.qualified} has no primary key, by which rows are told apart: "
            f"ALTER TABLE {options.qualified} ADD PRIMARY KEY ({columns})"
        )
    elif list(options.key) != key:
        yield f"the primary key of {options.qualified} is {', '.join(key)}: write key = '{', '.join(key)}'"


def _check_publication(
    table: PostgresTable, session: psycopg.Connection[Any], owner: str, *, is_owner: bool
) -> Iterator[str]:
    options = table.options
    publication = options.publication
    create = f"CREATE PUBLICATION {quote(publication)} FOR TABLE {options.qualified}"
    row = _one(session, _PUBLICATION, publication, options.schema, options.table, publication)
    if row is not None:
        if not row[1]:
            alter = f"ALTER PUBLICATION {quote(publication)} ADD TABLE {options.qualified}"
            yield f"the publication {publication} does not have the table: {alter}"
        elif not row[0]:
            operations = "publish = 'insert, update, delete, truncate'"
            alter = f"ALTER PUBLICATION {quote(publication)} SET ({operations})"
            yield f"the publication {publication} leaves out some changes: {alter}"
        return
    may_create = _one(session, "SELECT has_database_privilege(current_database(), 'CREATE')")
    if not is_owner or (may_create is not None and not may_create[0]):
        yield f"{session.info.user} may not create a publication of the table; {owner} runs: {create}"
