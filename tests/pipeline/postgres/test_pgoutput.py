"""The messages of pgoutput, byte by byte."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.pipeline.postgres.core.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    PgOutputError,
    RelationColumn,
    RelationMessage,
    TruncateMessage,
    Update,
    format_lsn,
    parse_lsn,
    parse_message,
)

MICROS_2026 = 820_540_800_000_000
"""2026-01-01 in PostgreSQL's microseconds since 2000."""


def row(*values):
    parts = [len(values).to_bytes(2)]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        else:
            parts.append(b"t" + len(value.encode()).to_bytes(4) + value.encode())
    return b"".join(parts)


def test_a_transaction():
    begin = b"B" + (0x16_B374D848).to_bytes(8) + MICROS_2026.to_bytes(8) + (731).to_bytes(4)
    assert parse_message(begin) == Begin(0x16_B374D848, 1_767_225_600_000_000, 731)
    commit = b"C\0" + (10).to_bytes(8) + (20).to_bytes(8) + MICROS_2026.to_bytes(8)
    assert parse_message(commit) == Commit(10, 20, 1_767_225_600_000_000)


def test_a_relation_with_its_key():
    columns = b"\x01id\0" + (20).to_bytes(4) + b"\xff\xff\xff\xff" + b"\0name\0" + (25).to_bytes(4) + (24).to_bytes(4)
    message = b"R" + (16_390).to_bytes(4) + b"public\0accounts\0d" + (2).to_bytes(2) + columns
    assert parse_message(message) == RelationMessage(
        16_390, "public", "accounts", "d", (RelationColumn("id", 20, True), RelationColumn("name", 25, False, 24))
    )


def test_changes_of_rows():
    oid = (7).to_bytes(4)
    assert parse_message(b"I" + oid + b"N" + row("1", None, "é")) == Insert(7, ("1", None, "é"))
    assert parse_message(b"U" + oid + b"N" + row("1", UNCHANGED)) == Update(7, None, False, ("1", UNCHANGED))
    changed_key = b"U" + oid + b"K" + row("1", None) + b"N" + row("2", "a")
    assert parse_message(changed_key) == Update(7, ("1", None), True, ("2", "a"))
    whole = b"U" + oid + b"O" + row("1", "a") + b"N" + row("1", "b")
    assert parse_message(whole) == Update(7, ("1", "a"), False, ("1", "b"))
    assert parse_message(b"D" + oid + b"K" + row("1", None)) == Delete(7, ("1", None), True)
    assert parse_message(b"D" + oid + b"O" + row("1", "a")) == Delete(7, ("1", "a"), False)
    assert parse_message(b"T" + (2).to_bytes(4) + b"\x01" + oid + (8).to_bytes(4)) == TruncateMessage((7, 8))


@pytest.mark.parametrize("message", [b"Y\0\0\0\1x\0y\0", b"O" + bytes(8) + b"origin\0", b"M\0"])
def test_messages_that_concern_no_rows(message):
    assert parse_message(message) is None


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"", "ends in a field of 1"),
        (b"Z", "unknown kind b'Z'"),
        (b"I" + bytes(4) + b"X", "b'X' where one of b'N'"),
        (b"I" + bytes(4) + b"N\0\1t\0\0\0\5abc", "a field of 5"),
        (b"I" + bytes(4) + b"N\0\1?", "unknown kind b'[?]'"),
        (b"I" + bytes(4) + b"N\0\1t\0\0\0\1\xff", "not UTF-8"),
        (b"R" + bytes(4) + b"public", "no end"),
    ],
)
def test_bytes_that_are_no_message(message, error):
    with pytest.raises(PgOutputError, match=error):
        parse_message(message)


@given(st.binary(max_size=60), st.sampled_from(b"BCRIUDTYOM"))
def test_any_bytes_parse_or_are_refused(rest, kind):
    with contextlib.suppress(PgOutputError):
        parse_message(bytes([kind]) + rest)


@given(st.integers(0, (1 << 64) - 1))
def test_positions_of_the_log(lsn):
    assert parse_lsn(format_lsn(lsn)) == lsn


def test_a_position_as_postgresql_writes_it():
    assert parse_lsn("16/B374D848") == 0x16_B374D848
    with pytest.raises(PgOutputError, match="no position"):
        parse_lsn("somewhere")
