"""Turns messages of logical decoding and rows of a snapshot into records in Debezium's form.

A change is a record with the row's key and an envelope: `op` (c, u, d, or r for a row of the snapshot), `before`,
`after` and `source`. A deletion is followed by a record without a value, so that compaction removes the key. An update
that changes the key is a deletion and a creation. All of this is as Debezium writes it with JSON without schemas.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from klamm.pipeline.postgres.core.column_values import TypeCatalog, json_value
from klamm.pipeline.postgres.core.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    PgOutputError,
    RelationColumn,
    RelationMessage,
    TruncateMessage,
    TupleData,
    Unchanged,
    Update,
)

CREATE: Final = "c"
UPDATE: Final = "u"
DELETE: Final = "d"
READ: Final = "r"


class ChangeRecord(NamedTuple):
    """The key and the value of a record; a record without a value deletes the key."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class ChangeOrigin:
    """The table that changes are of."""

    database: str
    schema: str
    table: str

    def source(self, *, lsn: int, ts_us: int, xid: int | None = None, snapshot: bool = False) -> dict[str, Any]:
        """Return the envelope's part that says where a change comes from."""
        return {
            "connector": "postgresql",
            "db": self.database,
            "schema": self.schema,
            "table": self.table,
            "snapshot": "true" if snapshot else "false",
            "lsn": lsn,
            "txId": xid,
            "ts_ms": ts_us // 1000,
            "ts_us": ts_us,
        }


@dataclass(frozen=True, slots=True)
class RowChange:
    """What happened to one row. Values of `before` and `after` are those of JSON, by the names of columns."""

    op: str
    key: Mapping[str, Any]
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    missing: tuple[str, ...] = ()
    """Columns of `after` whose large values the log does not have."""
    lsn: int = 0
    commit_us: int = 0
    xid: int | None = None

    def complete(self, values: Mapping[str, Any]) -> RowChange:
        """Return the change with the values of columns that the log does not have; null for those that are unknown."""
        after = {**(self.after or {}), **{name: values.get(name) for name in self.missing}}
        return replace(self, after=after, missing=())


@dataclass(frozen=True, slots=True)
class Truncation:
    """All rows were deleted."""

    lsn: int
    commit_us: int
    xid: int | None


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """All changes of a transaction have come."""

    end_lsn: int


CapturedChange = RowChange | Truncation | TransactionEnd


def encode_json(value: Any) -> bytes:
    """Return JSON as records have it: the same bytes for the same key, which decides on the partition."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def encode_change(change: RowChange, origin: ChangeOrigin, now_ms: int) -> Iterator[ChangeRecord]:
    """Yield the records of a change."""
    source = origin.source(lsn=change.lsn, ts_us=change.commit_us, xid=change.xid, snapshot=change.op == READ)
    envelope = {
        "before": change.before,
        "after": change.after,
        "source": source,
        "op": change.op,
        "ts_ms": now_ms,
    }
    key = encode_json(change.key)
    yield ChangeRecord(key, encode_json(envelope))
    if change.op == DELETE:
        yield ChangeRecord(key, None)


def encode_deletion(key: bytes, origin: ChangeOrigin, lsn: int, commit_us: int, now_ms: int) -> Iterator[ChangeRecord]:
    """Yield the records that delete a key of the topic whose row is not known."""
    columns = json.loads(key)
    change = RowChange(DELETE, columns, columns, None, lsn=lsn, commit_us=commit_us)
    return encode_change(change, origin, now_ms)


def is_deletion(value: bytes | None) -> bool:
    """Whether a record of a topic of changes leaves its key deleted."""
    if value is None:
        return True
    try:
        envelope = json.loads(value)
    except ValueError:
        return False
    return isinstance(envelope, dict) and envelope.get("op") == DELETE


@dataclass(slots=True)
class ChangeAssembler:
    """Follows the messages of one reading of a slot, and returns the changes of one table.

    A reading begins with the descriptions of tables, so an assembler is made for each.
    """

    schema: str
    table: str
    key: Sequence[str]
    """The columns of the primary key: with REPLICA IDENTITY FULL all columns are marked as the key's."""
    catalog: TypeCatalog
    after_lsn: int = 0
    """Transactions that end at or before this position were captured already."""
    _relations: dict[int, RelationMessage] = field(default_factory=dict)
    _transaction: Begin | None = None

    def take(self, lsn: int, message: Message) -> Iterator[CapturedChange]:
        """Yield what a message means for the table."""
        match message:
            case RelationMessage():
                self._relations[message.oid] = message
            case Begin():
                self._transaction = message
            case Commit():
                self._transaction = None
                if message.end_lsn > self.after_lsn:
                    yield TransactionEnd(message.end_lsn)
            case TruncateMessage():
                if any(self._is_captured(oid) for oid in message.relations):
                    begin = self._begin()
                    yield Truncation(lsn, begin.commit_us, begin.xid)
            case _:
                if self._is_captured(message.relation):
                    yield from self._row_changes(lsn, message, self._relations[message.relation])

    def _begin(self) -> Begin:
        if self._transaction is None:
            raise PgOutputError("a change came outside of a transaction")
        return self._transaction

    def _is_captured(self, oid: int) -> bool:
        relation = self._relations.get(oid)
        if relation is None:
            raise PgOutputError(f"a change of table {oid} came before its description")
        # The commit record begins before the position: the transaction ended there or earlier.
        is_new = self._begin().final_lsn >= self.after_lsn
        return is_new and (relation.schema, relation.name) == (self.schema, self.table)

    def _row_changes(
        self, lsn: int, message: Insert | Update | Delete, relation: RelationMessage
    ) -> Iterator[RowChange]:
        begin = self._begin()
        if isinstance(message, Insert):
            after = self._row(relation, message.new)
            yield RowChange(CREATE, self._key_of(after), None, after, (), lsn, begin.commit_us, begin.xid)
            return
        if isinstance(message, Delete):
            before = self._row(relation, message.old, key_only=message.old_is_key)
            yield RowChange(DELETE, self._key_of(before), before, None, (), lsn, begin.commit_us, begin.xid)
            return
        old = None if message.old is None else self._row(relation, message.old, key_only=message.old_is_key)
        whole = old if old is not None and not message.old_is_key else None
        after = self._row(relation, message.new, whole)
        missing = tuple(
            column.name
            for column, value in zip(relation.columns, message.new, strict=True)
            if isinstance(value, Unchanged) and (whole is None or column.name not in whole)
        )
        key = self._key_of(after)
        if old is not None and self._key_of(old) != key:
            yield RowChange(DELETE, self._key_of(old), old, None, (), lsn, begin.commit_us, begin.xid)
            yield RowChange(CREATE, key, None, after, missing, lsn, begin.commit_us, begin.xid)
            return
        yield RowChange(UPDATE, key, whole, after, missing, lsn, begin.commit_us, begin.xid)

    def _row(
        self, relation: RelationMessage, row: TupleData, old: Mapping[str, Any] | None = None, *, key_only: bool = False
    ) -> dict[str, Any]:
        if len(row) != len(relation.columns):
            raise PgOutputError(f"a row of {relation.name} has {len(row)} values for {len(relation.columns)} columns")
        return {
            column.name: self._value(column, value, old)
            for column, value in zip(relation.columns, row, strict=True)
            # Of a key all other columns are null, which says nothing about the row.
            if not key_only or column.is_key
        }

    def _value(self, column: RelationColumn, value: str | Unchanged | None, old: Mapping[str, Any] | None) -> Any:
        if isinstance(value, Unchanged):
            return None if old is None else old.get(column.name)
        return json_value(value, column.type_oid, self.catalog)

    def _key_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        missing = [name for name in self.key if name not in row]
        if missing:
            raise PgOutputError(f"a change of {self.table} has no value of its key column {missing[0]}")
        return {name: row[name] for name in self.key}
