"""Parses the messages of PostgreSQL's logical decoding plugin pgoutput, protocol version 1.

The format is described in PostgreSQL's manual, "Logical Replication Message Formats". Integers are big-endian, names
end in a zero byte, and the values of a row are text, as the types' output functions write them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from klamm.model.errors import ErrorCode, KlammError

_EPOCH_US: Final = 946_684_800_000_000
"""PostgreSQL counts microseconds from 2000-01-01; this is that time in Unix microseconds."""
_KEY_FLAG: Final = 1
FULL: Final = "f"
"""The replica identity with which old rows are logged whole."""


class PgOutputError(KlammError):
    """Raised for bytes that are no message of pgoutput."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)


class Unchanged:
    """Stands for a large value (TOAST) that an update did not change: the log does not have it."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
TupleValue = str | Unchanged | None
TupleData = tuple[TupleValue, ...]


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column of a table; `is_key` says whether it belongs to the replica identity."""

    name: str
    type_oid: int
    is_key: bool
    modifier: int = -1


@dataclass(frozen=True, slots=True)
class RelationMessage:
    """The columns of a table: sent before its first change, and again when they have changed."""

    oid: int
    schema: str
    name: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """The begin of a transaction, sent when it has committed; `final_lsn` is where its commit record begins."""

    final_lsn: int
    commit_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a transaction; the next one commits at or after `end_lsn`."""

    commit_lsn: int
    end_lsn: int
    commit_us: int


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    relation: int
    new: TupleData


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row. `old` is there if the key has changed (key columns only), or whole with REPLICA IDENTITY FULL."""

    relation: int
    old: TupleData | None
    old_is_key: bool
    new: TupleData


@dataclass(frozen=True, slots=True)
class Delete:
    """A deleted row: its key columns only, or whole with REPLICA IDENTITY FULL."""

    relation: int
    old: TupleData
    old_is_key: bool


@dataclass(frozen=True, slots=True)
class TruncateMessage:
    """All rows of these tables were deleted."""

    relations: tuple[int, ...]


Message = RelationMessage | Begin | Commit | Insert | Update | Delete | TruncateMessage
# Types of values are looked up by oid, origins and user messages concern no rows.
_IGNORED: Final = frozenset(b"YOM")


class _MessageReader:
    """Reads fields from left to right; PgOutputError at the end of the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise PgOutputError(f"a pgoutput message of {len(self._data)} bytes ends in a field of {size}")
        part = self._data[self._at : end]
        self._at = end
        return part

    def int8(self) -> int:
        return self.take(1)[0]

    def int16(self) -> int:
        return int.from_bytes(self.take(2))

    def int32(self) -> int:
        return int.from_bytes(self.take(4))

    def signed32(self) -> int:
        return int.from_bytes(self.take(4), signed=True)

    def int64(self) -> int:
        return int.from_bytes(self.take(8))

    def name(self) -> str:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise PgOutputError("a name in a pgoutput message has no end")
        return _text(self.take(end - self._at + 1)[:-1])

    def row(self) -> TupleData:
        return tuple(self._value() for _ in range(self.int16()))

    def _value(self) -> TupleValue:
        match self.take(1):
            case b"n":
                return None
            case b"u":
                return UNCHANGED
            case b"t":
                return _text(self.take(self.int32()))
            case kind:
                raise PgOutputError(f"a value in a pgoutput message is of the unknown kind {kind!r}")


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise PgOutputError("text in a pgoutput message is not UTF-8") from None


def parse_message(data: bytes) -> Message | None:
    """Parse one message; None for a kind that concerns no rows."""
    reader = _MessageReader(data)
    kind = reader.take(1)
    match kind:
        case b"B":
            return Begin(reader.int64(), reader.int64() + _EPOCH_US, reader.int32())
        case b"C":
            reader.int8()  # flags, unused
            return Commit(reader.int64(), reader.int64(), reader.int64() + _EPOCH_US)
        case b"R":
            return _relation(reader)
        case b"I":
            relation = reader.int32()
            _expect(reader, b"N")
            return Insert(relation, reader.row())
        case b"U":
            return _update(reader)
        case b"D":
            relation = reader.int32()
            part = _expect(reader, b"K", b"O")
            return Delete(relation, reader.row(), part == b"K")
        case b"T":
            count = reader.int32()
            reader.int8()  # CASCADE and RESTART IDENTITY
            return TruncateMessage(tuple(reader.int32() for _ in range(count)))
    if kind[0] in _IGNORED:
        return None
    raise PgOutputError(f"a pgoutput message is of the unknown kind {kind!r}")


def _relation(reader: _MessageReader) -> RelationMessage:
    oid, schema, name = reader.int32(), reader.name(), reader.name()
    identity = chr(reader.int8())
    columns = []
    for _ in range(reader.int16()):
        flags, column = reader.int8(), reader.name()
        columns.append(RelationColumn(column, reader.int32(), bool(flags & _KEY_FLAG), reader.signed32()))
    # pg_catalog is sent as an empty name.
    return RelationMessage(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _update(reader: _MessageReader) -> Update:
    relation = reader.int32()
    part = _expect(reader, b"K", b"O", b"N")
    if part == b"N":
        return Update(relation, None, False, reader.row())
    old = reader.row()
    _expect(reader, b"N")
    return Update(relation, old, part == b"K", reader.row())


def _expect(reader: _MessageReader, *parts: bytes) -> bytes:
    part = reader.take(1)
    if part not in parts:
        raise PgOutputError(f"a pgoutput message has {part!r} where one of {b''.join(parts)!r} is due")
    return part


def parse_lsn(text: str) -> int:
    """Parse a position in the log as PostgreSQL writes it: `16/B374D848`."""
    high, _, low = text.partition("/")
    try:
        return (int(high, 16) << 32) + int(low, 16)
    except ValueError:
        raise PgOutputError(f"{text!r} is no position of PostgreSQL's log") from None


def format_lsn(lsn: int) -> str:
    """Return a position in the log as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
