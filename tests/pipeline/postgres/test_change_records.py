"""From messages to records: keys, envelopes, deletions, large values, transactions that were captured before."""

import json

import pytest

from klamm.pipeline.postgres.core.change_records import (
    ChangeAssembler,
    ChangeOrigin,
    RowChange,
    TransactionEnd,
    Truncation,
    encode_change,
    encode_deletion,
    is_deletion,
)
from klamm.pipeline.postgres.core.column_values import TypeCatalog
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
)

ORIGIN = ChangeOrigin("shop", "public", "accounts")
COLUMNS = (RelationColumn("id", 20, True), RelationColumn("name", 25, False), RelationColumn("balance", 1700, False))
ACCOUNTS = RelationMessage(7, "public", "accounts", "d", COLUMNS)
FULL = RelationMessage(7, "public", "accounts", "f", tuple(RelationColumn(c.name, c.type_oid, True) for c in COLUMNS))
OTHERS = RelationMessage(8, "public", "others", "d", COLUMNS)


def changes(*messages, relation=ACCOUNTS, after_lsn=0):
    assembler = ChangeAssembler("public", "accounts", ("id",), TypeCatalog(), after_lsn)
    inside = [Begin(100, 5_000_000, 42), relation, OTHERS, *messages, Commit(100, 120, 5_000_000)]
    *rows, end = [change for lsn, message in enumerate(inside) for change in assembler.take(lsn, message)]
    assert end == TransactionEnd(120)
    return rows


def test_an_insert():
    (change,) = changes(Insert(7, ("1", "ada", "12.50")))
    row = {"id": 1, "name": "ada", "balance": "12.50"}
    assert change == RowChange("c", {"id": 1}, None, row, (), 3, 5_000_000, 42)
    (record,) = encode_change(change, ORIGIN, 6_000)
    assert record.key == b'{"id":1}'
    assert json.loads(record.value) == {
        "before": None,
        "after": row,
        "op": "c",
        "ts_ms": 6_000,
        "source": {
            "connector": "postgresql",
            "db": "shop",
            "schema": "public",
            "table": "accounts",
            "snapshot": "false",
            "lsn": 3,
            "txId": 42,
            "ts_ms": 5_000,
            "ts_us": 5_000_000,
        },
    }


def test_an_update_has_no_old_row_unless_the_identity_is_full():
    (change,) = changes(Update(7, None, False, ("1", "ada", "3")))
    assert (change.op, change.before) == ("u", None)
    (change,) = changes(Update(7, ("1", "ada", "2"), False, ("1", "ada", "3")), relation=FULL)
    assert (change.op, change.before) == ("u", {"id": 1, "name": "ada", "balance": "2"})
    assert change.key == {"id": 1}


def test_an_update_of_the_key_is_a_deletion_and_a_creation():
    deleted, created = changes(Update(7, ("1", None, None), True, ("2", "ada", "3")))
    assert (deleted.op, deleted.key, deleted.before) == ("d", {"id": 1}, {"id": 1})
    assert (created.op, created.key, created.after["name"]) == ("c", {"id": 2}, "ada")


def test_a_deletion_and_its_record_without_a_value():
    (change,) = changes(Delete(7, ("1", None, None), True))
    envelope, tombstone = encode_change(change, ORIGIN, 0)
    assert json.loads(envelope.value)["before"] == {"id": 1}
    assert (tombstone.key, tombstone.value) == (b'{"id":1}', None)
    assert is_deletion(envelope.value)
    assert is_deletion(None)


def test_a_large_value_that_did_not_change():
    (change,) = changes(Update(7, None, False, ("1", UNCHANGED, "3")))
    assert change.missing == ("name",)
    assert change.complete({"name": "ada"}).after == {"id": 1, "name": "ada", "balance": "3"}
    assert change.complete({}).after["name"] is None
    (change,) = changes(Update(7, ("1", "ada", "2"), False, ("1", UNCHANGED, "3")), relation=FULL)
    assert (change.missing, change.after["name"]) == ((), "ada")


def test_other_tables_are_left_out():
    assert changes(Insert(8, ("1", "x", "1")), TruncateMessage((8,))) == []


def test_a_truncation():
    assert changes(TruncateMessage((8, 7))) == [Truncation(3, 5_000_000, 42)]


def test_a_new_column_and_a_dropped_one():
    renewed = RelationMessage(7, "public", "accounts", "d", (COLUMNS[0], RelationColumn("mail", 25, False)))
    first, second = changes(Insert(7, ("1", "ada", "1")), renewed, Insert(7, ("2", "a@b")))
    assert first.after == {"id": 1, "name": "ada", "balance": "1"}
    assert second.after == {"id": 2, "mail": "a@b"}


def test_a_transaction_that_was_captured_is_left_out():
    assembler = ChangeAssembler("public", "accounts", ("id",), TypeCatalog(), after_lsn=120)
    old = [Begin(100, 0, 1), ACCOUNTS, Insert(7, ("1", "a", "1")), Commit(100, 120, 0)]
    assert [change for message in old for change in assembler.take(1, message)] == []
    new = [Begin(120, 0, 2), Insert(7, ("2", "b", "1")), Commit(120, 140, 0)]
    taken = [change for message in new for change in assembler.take(1, message)]
    assert [getattr(change, "key", change) for change in taken] == [{"id": 2}, TransactionEnd(140)]


def test_messages_out_of_order():
    assembler = ChangeAssembler("public", "accounts", ("id",), TypeCatalog())
    with pytest.raises(PgOutputError, match="before its description"):
        list(assembler.take(1, Insert(7, ("1",))))
    list(assembler.take(1, ACCOUNTS))
    with pytest.raises(PgOutputError, match="outside of a transaction"):
        list(assembler.take(1, Insert(7, ("1", "a", "1"))))
    with pytest.raises(PgOutputError, match="has 1 values for 3 columns"):
        changes(Insert(7, ("1",)))
    renamed = RelationMessage(7, "public", "accounts", "d", (RelationColumn("number", 20, True),))
    with pytest.raises(PgOutputError, match="no value of its key column id"):
        changes(Insert(7, ("1",)), relation=renamed)


def test_a_key_of_the_topic_is_deleted():
    envelope, tombstone = encode_deletion(b'{"id":1,"at":"x"}', ORIGIN, 9, 0, 0)
    assert envelope.key == tombstone.key == b'{"id":1,"at":"x"}'
    assert json.loads(envelope.value)["before"] == {"id": 1, "at": "x"}


@pytest.mark.parametrize(("value", "expected"), [(b"no JSON", False), (b'{"op":"u"}', False), (b'{"op":"d"}', True)])
def test_which_records_delete(value, expected):
    assert is_deletion(value) is expected
