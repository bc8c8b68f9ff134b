"""A table of a real PostgreSQL in a topic: snapshot, changes, types, large values, TRUNCATE, columns, lost slots."""

import threading

import psycopg
import pytest

from klamm.client import Admin
from klamm.pipeline.postgres.capture import PostgresCapture
from klamm.pipeline.postgres.core.capture_position import CaptureError
from klamm.pipeline.postgres.database import PostgresError
from pipeline.postgres.captures import Captured, options_for
from pipeline.postgres.postgres_server import running_server

pytestmark = pytest.mark.timeout(300)
ACCOUNTS = "CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner TEXT, balance NUMERIC(12, 2))"


@pytest.fixture
def captured(database, klamm_broker, klamm_name):
    topic = klamm_name("accounts")
    with Admin(bootstrap_servers=klamm_broker.bootstrap) as admin:
        admin.create_topic(topic, 1)
    return Captured(klamm_broker.bootstrap, topic, options_for(database.url))


def row(number, owner, balance):
    return {"id": number, "owner": owner, "balance": balance}


def slots(database):
    return database.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")


def wait_for(capture, condition):
    """Wait until a running capture has made a report."""
    while not any(condition(report) for report in capture.recentProgress):
        assert not capture.awaitTermination(0.05)


def test_rows_then_changes(database, captured):
    database.execute(ACCOUNTS, "INSERT INTO accounts VALUES (1, 'ada', 10), (2, 'bob', 20)")
    (snapshot,) = captured.run()
    assert snapshot["numInputRows"] == 2
    assert sorted(captured.changes()) == [("r", 1, row(1, "ada", "10.00")), ("r", 2, row(2, "bob", "20.00"))]
    assert {value["source"]["snapshot"] for _, value in captured.records()} == {"true"}
    assert captured.run() == []
    database.execute(
        "INSERT INTO accounts VALUES (3, 'eve', 30)",
        "UPDATE accounts SET balance = 11 WHERE id = 1",
        "DELETE FROM accounts WHERE id = 2",
        "UPDATE accounts SET id = 4 WHERE id = 3",
    )
    captured.run()
    assert sorted(captured.changes()[2:], key=str) == sorted(
        [
            ("c", 3, row(3, "eve", "30.00")),
            ("u", 1, row(1, "ada", "11.00")),
            ("d", 2, {"id": 2}),
            ("d", 3, {"id": 3}),
            ("c", 4, row(4, "eve", "30.00")),
        ],
        key=str,
    )
    assert captured.rows() == {(1,): row(1, "ada", "11.00"), (4,): row(4, "eve", "30.00")}
    # Deletions are followed by a record without a value, so that compaction removes the key.
    assert [key["id"] for key, value in captured.records() if value is None] == [2, 3]


def test_changes_between_snapshot_and_stream_come_once(database, captured):
    """Rows that change while the snapshot is read: the slot and its snapshot belong together."""
    database.execute(ACCOUNTS, "INSERT INTO accounts SELECT n, 'x', 0 FROM generate_series(1, 2000) n")
    ended = threading.Event()

    def change():
        with psycopg.connect(database.url, autocommit=True) as connection:
            number = 0
            while not ended.is_set():
                number += 1
                connection.execute("UPDATE accounts SET balance = balance + 1 WHERE id = %s", (number % 2000 + 1,))
                connection.execute("INSERT INTO accounts VALUES (%s, 'new', 1)", (10_000 + number,))

    writer = threading.Thread(target=change)
    writer.start()
    try:
        for _ in range(3):
            captured.run()
    finally:
        ended.set()
        writer.join()
    captured.run()
    changes = captured.changes()
    seen = {}
    for op, number, after in changes:
        # Each row begins once, by the snapshot or by its creation, and each update adds one.
        assert (op == "u") == (number in seen), (op, number)
        if op == "u":
            assert float(after["balance"]) == seen[number] + 1
        seen[number] = float(after["balance"])
    assert len([change for change in changes if change[0] == "r"]) >= 2000
    table = {number: float(balance) for number, balance in database.rows("SELECT id, balance FROM accounts")}
    assert seen == table


def test_types(database, captured):
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE DOMAIN cents AS INT CHECK (VALUE >= 0)",
        """CREATE TABLE accounts (id BIGINT PRIMARY KEY, s SMALLINT, i INT, b BOOLEAN, r REAL, d DOUBLE PRECISION,
           n NUMERIC, at TIMESTAMP, atz TIMESTAMPTZ, day DATE, t TIME, j JSON, jb JSONB, u UUID, bin BYTEA,
           c CHAR(5), m mood, price cents, ints INT[], texts TEXT[], nested INT[], numbers NUMERIC[],
           times TIMESTAMPTZ[], moods mood[], period INTERVAL, computed BIGINT GENERATED ALWAYS AS (id * 2) STORED)""",
    )
    values = """7, 1, -2, true, 1.5, 'NaN', 12345678901234567890.123, '2026-01-02 03:04:05.678901',
      '2026-01-02 05:04:05+02', '2026-01-02', '03:04:05', '{"a":  1}', '{"b": [1, "é"]}',
      'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '\\x00ff', 'ab', 'happy', 5, '{1,NULL,3}', '{"a b","c\\"d",NULL}',
      '{{1,2},{3,4}}', '{1.50,2}', '{"2026-01-02 03:04:05+00"}', '{sad,happy}', '1 day 2 hours'"""
    database.execute(f"INSERT INTO accounts VALUES ({values})")
    expected = {
        "id": 7,
        "s": 1,
        "i": -2,
        "b": True,
        "r": 1.5,
        "d": "NaN",
        "n": "12345678901234567890.123",
        "at": "2026-01-02T03:04:05.678901Z",
        "atz": "2026-01-02T03:04:05Z",
        "day": "2026-01-02",
        "t": "03:04:05",
        "j": '{"a":  1}',
        "jb": '{"b": [1, "é"]}',
        "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "bin": "AP8=",
        "c": "ab   ",
        "m": "happy",
        "price": 5,
        "ints": [1, None, 3],
        "texts": ["a b", 'c"d', None],
        "nested": [[1, 2], [3, 4]],
        "numbers": ["1.50", "2"],
        "times": ["2026-01-02T03:04:05Z"],
        "moods": ["sad", "happy"],
        "period": "P1DT2H",
    }
    captured.run()
    assert captured.changes() == [("r", 7, expected)]
    # The log has the same values as the snapshot.
    database.execute("UPDATE accounts SET id = 8", "INSERT INTO accounts (id) VALUES (9)")
    captured.run()
    assert captured.rows() == {(8,): {**expected, "id": 8}, (9,): {**dict.fromkeys(expected), "id": 9}}


def test_large_values_that_do_not_change(database, captured):
    database.execute(ACCOUNTS, "ALTER TABLE accounts ALTER owner SET STORAGE EXTERNAL")
    large = "long text " * 1000
    database.execute(f"INSERT INTO accounts VALUES (1, '{large}', 1), (2, '{large}', 1)")
    captured.run()
    # By default the log does not have them: they are read from the table.
    database.execute("UPDATE accounts SET balance = 2 WHERE id = 1")
    captured.run()
    assert captured.changes()[-1] == ("u", 1, row(1, large, "2.00"))
    # A row that is gone meanwhile has no value any more, and its deletion follows.
    database.execute("UPDATE accounts SET balance = 3 WHERE id = 1", "DELETE FROM accounts WHERE id = 1")
    captured.run()
    assert captured.changes()[-2:] == [("u", 1, row(1, None, "3.00")), ("d", 1, {"id": 1})]
    # With the whole old row in the log nothing is looked up, and a change has the value of its own time.
    database.execute("ALTER TABLE accounts REPLICA IDENTITY FULL")
    database.execute("UPDATE accounts SET balance = 3 WHERE id = 2", "UPDATE accounts SET owner = 'eve' WHERE id = 2")
    captured.run()
    assert captured.changes()[-2:] == [("u", 2, row(2, large, "3.00")), ("u", 2, row(2, "eve", "3.00"))]
    assert [value["before"]["balance"] for _, value in captured.records()[-2:]] == ["1.00", "3.00"]


def test_a_large_value_of_a_row_with_a_binary_key(database, captured):
    database.execute(
        "CREATE TABLE accounts (id BYTEA, tags TEXT[], owner TEXT, balance INT, PRIMARY KEY (id, tags))",
        "ALTER TABLE accounts ALTER owner SET STORAGE EXTERNAL",
    )
    large = "long text " * 1000
    database.execute(f"INSERT INTO accounts VALUES ('\\x00ff', '{{a b,\"c\"}}', '{large}', 1)")
    captured.run()
    database.execute("UPDATE accounts SET balance = 2")
    captured.run()
    _, value = captured.records()[-1]
    assert value["after"] == {"id": "AP8=", "tags": ["a b", "c"], "owner": large, "balance": 2}


def test_truncate_deletes_every_row(database, captured):
    database.execute(ACCOUNTS, "INSERT INTO accounts VALUES (1, 'ada', 1), (2, 'bob', 1)")
    captured.run()
    database.execute("DELETE FROM accounts WHERE id = 2", "INSERT INTO accounts VALUES (3, 'eve', 1)")
    captured.run()
    with psycopg.connect(database.url) as connection:
        # In one transaction: a row before and one after the truncation.
        connection.execute("INSERT INTO accounts VALUES (4, 'dan', 1)")
        connection.execute("TRUNCATE accounts")
        connection.execute("INSERT INTO accounts VALUES (5, 'fay', 1)")
    captured.run()
    deleted = sorted(number for op, number, _ in captured.changes() if op == "d")
    assert deleted == [1, 2, 3, 4]
    assert captured.rows() == {(5,): row(5, "fay", "1.00")}


def test_columns_that_come_and_go(database, captured):
    database.execute(ACCOUNTS, "INSERT INTO accounts VALUES (1, 'ada', 1)")
    captured.run()
    database.execute(
        "INSERT INTO accounts VALUES (2, 'bob', 2)",
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "ALTER TABLE accounts ADD COLUMN moods mood[], DROP COLUMN owner",
        "INSERT INTO accounts VALUES (3, 3, '{happy}')",
    )
    captured.run()
    assert sorted(captured.changes()[1:]) == [
        ("c", 2, row(2, "bob", "2.00")),
        ("c", 3, {"id": 3, "balance": "3.00", "moods": ["happy"]}),
    ]


def test_keys_of_several_columns(database, captured):
    database.execute(
        "CREATE TABLE lines (item TEXT, number INT, cents INT, PRIMARY KEY (number, item))",
        "INSERT INTO lines VALUES ('tea', 1, 5), ('cup', 1, 7)",
    )
    captured.options = options_for(database.url, "lines", ("number", "item"))
    with Admin(bootstrap_servers=captured.bootstrap) as admin:
        admin.create_partitions({captured.topic: 3})
    captured.run()
    database.execute("DELETE FROM lines WHERE item = 'tea'")
    captured.run()
    assert captured.rows() == {(1, "cup"): {"item": "cup", "number": 1, "cents": 7}}
    assert {tuple(key) for key, _ in captured.records()} == {("number", "item")}


def test_many_small_batches_and_one_large_transaction(database, captured):
    captured.options = options_for(database.url, batch_size=10)
    database.execute(ACCOUNTS)
    captured.run()
    for number in range(30):
        database.execute(f"INSERT INTO accounts VALUES ({number}, 'x', 1)")
    database.execute("INSERT INTO accounts SELECT n, 'y', 1 FROM generate_series(100, 5099) n")
    reports = captured.run()
    assert len(reports) >= 4
    assert max(report["numInputRows"] for report in reports) == 5000
    assert len(captured.changes()) == 5030
    lsns = [value["source"]["lsn"] for _, value in captured.records()]
    assert len(set(lsns)) == len(lsns)


def test_the_slot_follows_although_only_other_tables_change(database, captured):
    database.execute(ACCOUNTS, "CREATE TABLE others (id INT)")
    captured.run()
    before = database.rows("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()")
    database.execute("INSERT INTO others SELECT * FROM generate_series(1, 1000)")
    assert captured.run() == []
    after = database.rows("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()")
    assert after > before
    database.execute("INSERT INTO accounts VALUES (1, 'ada', 1)")
    captured.run()
    assert captured.changes() == [("c", 1, row(1, "ada", "1.00"))]


def test_batches_without_a_change_of_the_table(database, captured):
    """A publication of several tables, or an older PostgreSQL, sends transactions that have nothing of the table."""
    captured.options = options_for(database.url, batch_size=10)
    database.execute(ACCOUNTS, "CREATE TABLE others (id INT PRIMARY KEY)")
    database.execute(f'CREATE PUBLICATION "{captured.options.publication}" FOR TABLE accounts, others')
    captured.run()
    for number in range(40):
        database.execute(f"INSERT INTO others VALUES ({number})")
    database.execute("INSERT INTO accounts VALUES (1, 'ada', 1)")
    captured.run()
    captured.run()
    assert captured.changes() == [("c", 1, row(1, "ada", "1.00"))]


def test_a_slot_that_was_left_behind(database, captured, monkeypatch):
    """A large transaction was committed, and the process ended before the slot was advanced."""
    captured.options = options_for(database.url, batch_size=10)
    database.execute(ACCOUNTS)
    captured.run()
    database.execute("INSERT INTO accounts SELECT n, 'x', 1 FROM generate_series(1, 50) n")
    with monkeypatch.context() as killed:
        killed.setattr(PostgresCapture, "_commit", commit_and_fail)
        with pytest.raises(PostgresError, match="the connection broke"):
            captured.run()
    assert captured.run() == []
    assert [number for _, number, _ in captured.changes()] == list(range(1, 51))


def commit_and_fail(capture, position, commit=PostgresCapture._commit):
    commit(capture, position)
    raise PostgresError("the connection broke")


def test_only_changes_from_now_on(database, captured):
    captured.options = options_for(database.url, with_rows=False)
    database.execute(ACCOUNTS, "INSERT INTO accounts VALUES (1, 'ada', 1)")
    captured.run()
    database.execute("INSERT INTO accounts VALUES (2, 'bob', 1)")
    captured.run()
    assert captured.changes() == [("c", 2, row(2, "bob", "1.00"))]


def test_a_running_capture_reports_its_slot_and_stops(database, captured):
    database.execute(ACCOUNTS)
    capture = captured.start(once=False, interval_s=0.05)
    try:
        wait_for(capture, lambda report: report["detail"] == "snapshot of 0 rows done")
        database.execute("INSERT INTO accounts VALUES (1, 'ada', 1)")
        wait_for(capture, lambda report: report["numInputRows"] == 1)
        report = capture.lastProgress
        assert report["slot_lag_bytes"] >= 0
        assert report["sources"][0]["endOffset"].count("/") == 1
    finally:
        capture.stop()
    assert not capture.isActive
    assert capture.exception() is None
    assert captured.changes() == [("c", 1, row(1, "ada", "1.00"))]


def test_a_second_capture_fences_the_first(database, captured):
    database.execute(ACCOUNTS)
    first = captured.start(once=False, interval_s=0.05)
    wait_for(first, lambda report: report["detail"] == "snapshot of 0 rows done")
    captured.run()
    database.execute("INSERT INTO accounts VALUES (1, 'ada', 1)")
    with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
        first.awaitTermination(60)
    captured.run()
    assert captured.changes() == [("c", 1, row(1, "ada", "1.00"))]


# What cannot be continued is refused, and reading the table again repairs it.


def rebuild(captured, generation=1):
    """As `--rebuild` does: another slot, another position, the same topic."""
    options = captured.options
    renewed = options_for(options.url, slot=f"{options.slot}_{generation}", older_slots=(options.slot,))
    return Captured(captured.bootstrap, captured.topic, renewed)


def refuse(captured, message):
    with pytest.raises(CaptureError, match=message):
        captured.run()


def test_a_dropped_slot(database, captured):
    database.execute(ACCOUNTS, "INSERT INTO accounts VALUES (1, 'ada', 1), (2, 'bob', 1)")
    captured.run()
    ((slot,),) = slots(database)
    database.execute(f"SELECT pg_drop_replication_slot('{slot}')", "DELETE FROM accounts WHERE id = 1")
    refuse(captured, "no replication slot .* are lost")
    database.execute("INSERT INTO accounts VALUES (3, 'eve', 1)")
    again = rebuild(captured)
    again.run()
    # Rows that were deleted meanwhile are deleted in the topic, too.
    assert again.rows() == {(2,): row(2, "bob", "1.00"), (3,): row(3, "eve", "1.00")}
    assert slots(database) == [(again.options.slot,)]


def test_a_rebuild_drops_the_old_slot(database, captured):
    database.execute(ACCOUNTS, "INSERT INTO accounts VALUES (1, 'ada', 1)")
    captured.run()
    again = rebuild(captured)
    again.run()
    assert slots(database) == [(again.options.slot,)]
    assert again.changes() == [("r", 1, row(1, "ada", "1.00"))] * 2


def test_a_slot_that_something_else_reads(database, captured):
    database.execute(ACCOUNTS)
    captured.run()
    database.execute("INSERT INTO accounts VALUES (1, 'ada', 1)")
    ((slot,),) = slots(database)
    database.execute(f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
    refuse(captured, "something else reads the slot")
    again = rebuild(captured)
    again.run()
    assert again.rows() == {(1,): row(1, "ada", "1.00")}


def test_a_slot_that_was_there_before(database, captured):
    database.execute(ACCOUNTS)
    database.execute(f"SELECT pg_create_logical_replication_slot('{captured.options.slot}', 'pgoutput')")
    refuse(captured, "has no position of it")


def test_a_topic_that_was_created_again(database, captured):
    database.execute(ACCOUNTS, "INSERT INTO accounts VALUES (1, 'ada', 1)")
    captured.run()
    with Admin(bootstrap_servers=captured.bootstrap) as admin:
        admin.delete_topics([captured.topic])
        admin.create_topic(captured.topic, 1)
    refuse(captured, "was deleted and created again")
    again = rebuild(captured)
    again.run()
    assert again.rows() == {(1,): row(1, "ada", "1.00")}


def test_an_error_hides_the_password(database, captured):
    url = database.url.replace("postgres@", "guest:hush@")
    captured.options = options_for(url)
    with pytest.raises(PostgresError) as refused:
        captured.run()
    assert "hush" not in str(refused.value)
    assert "guest" in str(refused.value)


def test_an_older_postgresql(klamm_broker, klamm_name):
    topic = klamm_name("accounts")
    with Admin(bootstrap_servers=klamm_broker.bootstrap) as admin:
        admin.create_topic(topic, 1)
    with running_server("16") as server:
        server.execute(ACCOUNTS, "INSERT INTO accounts VALUES (1, 'ada', 1)")
        captured = Captured(klamm_broker.bootstrap, topic, options_for(server.url()))
        captured.run()
        server.execute("UPDATE accounts SET balance = 2", "INSERT INTO accounts VALUES (2, 'bob', 1)")
        # A crash of the server keeps slot and log.
        server.stop("immediate")
        server.start()
        captured.run()
        assert captured.rows() == {(1,): row(1, "ada", "2.00"), (2,): row(2, "bob", "1.00")}
        assert [op for op, *_ in captured.changes()] == ["r", "u", "c"]
        assert captured.run() == []
