"""Change data as tables and streams: Debezium's envelopes, other logs by options, and what is bad of them."""

import json
import random

import pytest

from klamm.pipeline.sql import SqlError, compile_text
from klamm.pipeline.sql.folder_topics import Raw
from klamm.pipeline.testing import run

pytestmark = pytest.mark.timeout(300)
TABLE = """
CREATE TABLE customers (id BIGINT, name STRING, credit DECIMAL(20,4)) WITH (format = 'debezium', key = 'id'{options});
CREATE TABLE result WITH (key = 'id') AS SELECT * FROM customers;
"""
STREAM = """
CREATE STREAM customers (id BIGINT, name STRING, op STRING METADATA) WITH (format = '{format}', key = 'id'{options});
CREATE STREAM result AS SELECT * FROM customers;
"""


def change(op, number, *, before=None, after=None, wrapped=False, **fields):
    envelope = {"op": op, "before": before, "after": after, "source": {"lsn": 100}, "ts_ms": 1, **fields}
    key = {"id": number}
    if wrapped:
        envelope, key = {"schema": {"type": "struct"}, "payload": envelope}, {"schema": {}, "payload": key}
    return Raw(json.dumps(key).encode(), json.dumps(envelope).encode())


def customer(number, name="ada", credit="1.5000"):
    return {"id": number, "name": name, "credit": credit}


def tombstone(number, *, wrapped=False):
    return Raw(change("d", number, wrapped=wrapped).key, None)


@pytest.mark.usefixtures("spark")
def test_a_table_has_the_rows_of_the_database():
    """Random inserts, updates and deletes, of half of the rows with the schema beside the payload, against a dict."""
    random_numbers = random.Random(7)
    database, log = {}, []
    for step in range(80):
        number = random_numbers.randrange(12)
        wrapped = number % 2 == 1
        row = customer(number, f"name-{step}", f"{step}.12345678901234567890"[:6])
        if number not in database:
            log.append(change(random_numbers.choice("cr"), number, after=row, wrapped=wrapped))
            database[number] = row
        elif random_numbers.random() < 0.5:
            log.append(change("u", number, before=database[number], after=row, wrapped=wrapped))
            database[number] = row
        else:
            log.append(change("d", number, before=database.pop(number), wrapped=wrapped))
            if random_numbers.random() < 0.5:
                log.append(tombstone(number, wrapped=wrapped))
    out = run(TABLE.format(options=""), [{"customers": log[:40]}, {"customers": log[40:]}])
    expected = {row["id"]: (row["name"], float(row["credit"])) for row in database.values()}
    assert {row["id"]: (row["name"], float(row["credit"])) for row in out["result"]} == expected
    assert out.dead_letters["customers"] == []


@pytest.mark.usefixtures("spark")
def test_numbers_of_a_row_keep_their_digits():
    record = Raw(b'{"id": 1}', b'{"op": "c", "after": {"id": 1, "name": "a", "credit": 1234567890123456.7891}}')
    text = TABLE.format(options="").replace("SELECT *", "SELECT id, cast(credit AS STRING) AS credit")
    assert run(text, {"customers": [record]})["result"] == [{"id": 1, "credit": "1234567890123456.7891"}]


@pytest.mark.usefixtures("spark")
def test_order_by_the_position_in_the_source():
    """The topic has a newer change first: by its order the older one wins, by order_by the newer one."""
    log = [
        change("u", 1, after=customer(1, "new"), source={"lsn": 1000}),
        change("u", 1, after=customer(1, "old"), source={"lsn": 999}),
        change("d", 2, source={"lsn": 20}),
        change("u", 2, after=customer(2), source={"lsn": 9}),
    ]
    assert sorted(row["name"] for row in run(TABLE.format(options=""), {"customers": log})["result"]) == ["ada", "old"]
    ordered = run(TABLE.format(options=", order_by = 'source.lsn'"), {"customers": log})
    assert [row["name"] for row in ordered["result"]] == ["new"]


@pytest.mark.usefixtures("spark")
def test_bad_envelopes_are_dead_letters_with_their_own_bytes():
    good = change("c", 1, after=customer(1))
    bad = {
        b"no JSON": "the value is no JSON",
        b'{"op": "c"}': "the change has no row",
        b'{"op": "x", "after": {}}': "op is x, which is none of c, r, u, d, t",
        b'{"after": {"id": 2}}': "it has no op",
        b'{"op": "c", "after": {"id": 2, "credit": "much"}}': "the value is no JSON of id BIGINT",
        b'{"op": "c", "after": {"id": 2}}{"op": "d"}': "not one JSON document",
        b'{"op": "t", "before": null, "after": null}': "the table was truncated",
    }
    log = [good, *(Raw(b'{"id": 1}', value) for value in bad)]
    out = run(TABLE.format(options=""), {"customers": log})
    assert [row["name"] for row in out["result"]] == ["ada"]
    letters = {letter.value: letter.error for letter in out.dead_letters["customers"]}
    assert letters.keys() == bad.keys()
    for value, words in bad.items():
        assert words in letters[value], value


@pytest.mark.usefixtures("spark")
def test_a_stream_has_a_row_for_each_change():
    log = [
        change("r", 1, after=customer(1, "a")),
        change("u", 1, before=customer(1, "a"), after=customer(1, "b")),
        change("d", 1, before=customer(1, "b")),
        tombstone(1),
        change("d", 2),
        Raw(None, b'{"op": "t", "before": null, "after": null}'),
    ]
    out = run(STREAM.format(format="debezium", options=""), {"customers": log})
    rows = [(row["op"], row["id"], row["name"]) for row in out["result"]]
    assert rows == [("r", 1, "a"), ("u", 1, "b"), ("d", 1, "b"), ("d", 2, None)]
    assert out.dead_letters["customers"] == []


@pytest.mark.parametrize(
    ("options", "records"),
    [
        ("", [{"op": "I", "id": 1, "name": "a"}, {"op": "D", "id": 1}, {"op": "update", "id": 2, "name": "b"}]),
        (
            ", op_column = 'type', row_column = 'data', upsert_ops = 'insert, update', delete_ops = 'delete'",
            [
                {"type": "insert", "data": {"id": 1, "name": "a"}},
                {"type": "DELETE", "data": {"id": 1}},
                {"type": "update", "data": {"id": 2, "name": "b"}, "old": {"name": "x"}},
            ],
        ),
    ],
)
@pytest.mark.usefixtures("spark")
def test_other_logs_by_options(options, records):
    table = f"""CREATE TABLE customers (id BIGINT, name STRING) WITH (format = 'cdc', key = 'id'{options});
                CREATE TABLE result WITH (key = 'id') AS SELECT * FROM customers;"""
    log = [Raw(b"2" if number == 2 else b"1", json.dumps(record).encode()) for number, record in enumerate(records)]
    assert run(table, {"customers": log})["result"] == [{"id": 2, "name": "b"}]
    out = run(STREAM.format(format="cdc", options=options), {"customers": log})
    assert [(row["op"].lower()[0], row["id"]) for row in out["result"]] == [("i", 1), ("d", 1), ("u", 2)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("CREATE STREAM s (a INT, op STRING METADATA);", "only changes have an op"),
        ("CREATE STREAM s (a INT) WITH (order_by = 'a');", "order_by is for format debezium and cdc"),
        (
            "CREATE TABLE s (a INT) WITH (key = 'a', format = 'debezium', op_column = 'x');",
            "op_column is for format cdc",
        ),
        ("CREATE STREAM a (b INT); CREATE STREAM s WITH (format = 'cdc') AS SELECT * FROM a;", "format = 'cdc'"),
    ],
)
def test_options_that_do_not_fit_are_refused(text, words):
    with pytest.raises(SqlError, match=words):
        compile_text(text)
