"""Tables against a broker: what a topic holds is what a query answers, through restarts and changes of the topic."""

import json
import threading
from decimal import Decimal

import pytest

from klamm.client.errors import KafkaTimeoutError, UnknownTopicOrPartitionError
from klamm.model.errors import ConfigError
from klamm.pipeline import open_tables
from klamm.pipeline.sql import SqlError
from klamm.pipeline.tables.queries import QueryError, QueryLimits
from klamm.registry.client import parse_settings, shared_registry
from klamm.registry.codecs.compilation import compile_schema
from klamm.registry.framing import prefix
from pipeline.small_registry import small_registry

PATIENCE_S = 60


@pytest.fixture
def bank(klamm_broker, tmp_path):
    """A topic, a file that declares it as a table, and a function that opens it."""
    topic = klamm_broker.topic("balances", partitions=2)
    file = tmp_path / "bank.sql"
    file.write_text(
        f"CREATE TABLE balances (account STRING, balance DECIMAL(12, 2) NOT NULL, place INT METADATA FROM 'partition')"
        f" WITH (topic = '{topic}', key = 'account');\n"
        f"CREATE STREAM payments (account STRING, amount DECIMAL(12, 2)) WITH (topic = '{topic}', key = 'account');\n"
        "CREATE TABLE sums AS SELECT account, sum(amount) AS amount FROM payments GROUP BY account;\n"
    )
    opened = []

    def make(**options):
        options = {"tables": ["balances"], "bootstrap": klamm_broker.bootstrap, "timeout_s": PATIENCE_S, **options}
        opened.append(open_tables(file, **options))
        return opened[-1]

    make.topic, make.file = topic, file
    yield make
    for tables in opened:
        tables.close()


def put(broker, topic, rows, **options):
    with broker.producer() as producer:
        for key, value in rows:
            data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
            producer.send(topic, data, key=key.encode(), **options)
        producer.flush()


def balances(tables):
    return {row["account"]: row["balance"] for row in tables.query("SELECT * FROM balances").to_pylist()}


def test_the_newest_row_of_each_key(klamm_broker, bank):
    put(klamm_broker, bank.topic, [("ada", {"balance": 1}), ("bob", {"balance": 2.5}), ("ada", {"balance": 3})])
    put(klamm_broker, bank.topic, [("eve", {"balance": 9}), ("eve", None)])
    tables = bank()
    assert balances(tables) == {"ada": Decimal("3.00"), "bob": Decimal("2.50")}
    assert tables.get("balances", "ada")["balance"] == 3
    assert tables.get("balances", "eve") is None
    assert tables.query("SELECT sum(balance) AS s FROM balances WHERE account <> ?", ["bob"]).to_pylist() == [{"s": 3}]
    put(klamm_broker, bank.topic, [("bob", None), ("zoe", {"balance": 7})])
    tables.catch_up(PATIENCE_S)
    assert balances(tables) == {"ada": Decimal("3.00"), "zoe": Decimal("7.00")}


def test_what_is_not_committed_is_not_there(klamm_broker, bank):
    with klamm_broker.producer(transactional_id=bank.topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(bank.topic, b'{"balance":1}', key=b"kept")
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(bank.topic, b'{"balance":1}', key=b"aborted")
        producer.flush()
        producer.abort_transaction()
    tables = bank()
    assert list(balances(tables)) == ["kept"]
    assert tables.status()[0]["lag_records"] == 0


def test_bad_records_are_left_out_and_counted(klamm_broker, bank):
    bad = [b"no JSON", b'{"balance":1}{"balance":2}', {"balance": 1.239}, {"balance": None}, {"balance": "x"}, b"[]"]
    put(klamm_broker, bank.topic, [("ada", {"balance": 1}), *(("ada", value) for value in bad)])
    with klamm_broker.producer() as producer:
        producer.send(bank.topic, b'{"balance":1}').result()
        producer.send(bank.topic, b'{"balance":1}', key=b"\xff").result()
    tables = bank()
    assert balances(tables)["ada"] == 1
    (status,) = tables.status()
    assert status["bad_records"] == 7
    assert status["last_error"]
    # A key that is no text is a row like any other, whose column is null.
    assert status["rows"] == 2


def test_a_store_on_disk_continues(klamm_broker, bank, tmp_path):
    put(klamm_broker, bank.topic, [(f"k{number}", {"balance": number}) for number in range(100)])
    store = tmp_path / "store"
    first = bank(store=store)
    assert first.status()[0]["records"] == 100
    first.close()
    put(klamm_broker, bank.topic, [("k1", {"balance": 1000}), ("k2", None)])
    second = bank(store=store)
    assert second.status()[0]["records"] == 2
    expected = {f"k{number}": Decimal(number) for number in range(100)} | {"k1": Decimal(1000)}
    del expected["k2"]
    assert balances(second) == expected
    with pytest.raises(ConfigError, match="in use"):
        open_tables_elsewhere(store, bank)


def open_tables_elsewhere(store, bank):
    """As another process: within one, DuckDB shares the file."""
    import subprocess
    import sys

    program = (
        "import sys\n"
        "from klamm.pipeline.tables.queries import QueryLimits\n"
        "from klamm.pipeline.tables.store import TableStore\n"
        "from klamm.model.errors import ConfigError\n"
        "try: TableStore(sys.argv[1], QueryLimits())\n"
        "except ConfigError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(store)], capture_output=True, text=True, check=True)
    raise ConfigError(done.stdout)


def test_a_topic_created_anew_is_read_from_the_beginning(klamm_broker, bank, tmp_path):
    put(klamm_broker, bank.topic, [("old", {"balance": 1}), ("ada", {"balance": 1})])
    store = tmp_path / "store"
    bank(store=store).close()
    with klamm_broker.admin() as admin:
        admin.delete_topics([bank.topic])
        wait_until_gone(admin, bank.topic)
        admin.create_topic(bank.topic, 2)
    put(klamm_broker, bank.topic, [("ada", {"balance": 2}), ("bob", {"balance": 3}), ("bob", {"balance": 4})])
    assert balances(bank(store=store)) == {"ada": 2, "bob": 4}


def wait_until_gone(admin, topic):
    for _ in range(600):
        if topic not in {listing.name for listing in admin.list_topics()}:
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"{topic} is still there")


def test_a_topic_created_anew_while_it_is_followed(klamm_broker, bank):
    put(klamm_broker, bank.topic, [("old", {"balance": 1})])
    tables = bank()
    assert balances(tables) == {"old": 1}
    with klamm_broker.admin() as admin:
        admin.delete_topics([bank.topic])
        wait_until_gone(admin, bank.topic)
        admin.create_topic(bank.topic, 2)
    put(klamm_broker, bank.topic, [("new", {"balance": 2})])
    eventually(lambda: balances(tables) == {"new": 2})


def eventually(check):
    for _ in range(PATIENCE_S * 20):
        if check():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it did not happen")


def test_a_log_that_does_not_reach_back_is_read_again(klamm_broker, bank, tmp_path):
    put(klamm_broker, bank.topic, [("gone", {"balance": 1})], partition=0)
    store = tmp_path / "store"
    bank(store=store).close()
    # The deletion of `gone` is among what retention removes.
    put(klamm_broker, bank.topic, [("gone", None), ("ada", {"balance": 1}), ("ada", {"balance": 2})], partition=0)
    with klamm_broker.admin() as admin:
        admin.delete_records({(bank.topic, 0): 3})
    assert balances(bank(store=store)) == {"ada": 2}


@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "on disk"])
def test_a_topic_that_gets_more_partitions(klamm_broker, bank, tmp_path, kept):
    """A key that moves has its newest row in the new partition, at a lower offset than the old one."""
    names = [f"k{number}" for number in range(40)]
    put(klamm_broker, bank.topic, [(name, {"balance": round_}) for round_ in range(5) for name in names])
    options = {"store": tmp_path / "store"} if kept else {}
    tables = bank(**options)
    before = {row["account"]: row["place"] for row in tables.query("SELECT * FROM balances").to_pylist()}
    with klamm_broker.admin() as admin:
        admin.create_partitions({bank.topic: 5})
    with klamm_broker.producer(metadata_max_age_ms=50) as producer:
        eventually(lambda: len(producer.partitions_for(bank.topic)) == 5)
        for number, name in enumerate(names):
            value = None if number % 4 == 0 else b'{"balance":77}'
            producer.send(bank.topic, value, key=name.encode())
        producer.flush()
    expected = {name: Decimal(77) for number, name in enumerate(names) if number % 4}
    eventually(lambda: balances(tables) == expected)
    after = {row["account"]: row["place"] for row in tables.query("SELECT * FROM balances").to_pylist()}
    assert any(after[name] != before[name] for name in after), "no key moved: the test shows nothing"
    # And from the beginning, in whatever order the partitions come.
    assert balances(bank()) == expected


def test_changes_are_pushed(klamm_broker, bank):
    put(klamm_broker, bank.topic, [("ada", {"balance": 1}), ("bob", {"balance": 50})])
    tables = bank()
    watch = tables.open_watch("SELECT account, balance FROM balances WHERE balance < 10 ORDER BY account")
    assert [(change.sign, *change.row) for change in watch.next_changes(1)] == [("+", "ada", 1)]
    put(klamm_broker, bank.topic, [("ada", {"balance": 2})])
    assert signs(watch) == [("-", "ada", 1), ("+", "ada", 2)]
    put(klamm_broker, bank.topic, [("ada", {"balance": 99})])
    assert signs(watch) == [("-", "ada", 2)]
    changes = tables.watch("SELECT count(*) FROM balances", snapshot=False)
    put(klamm_broker, bank.topic, [("zoe", {"balance": 99})])
    assert next(changes).row == (2,)
    assert next(changes).row == (3,)
    tables.close()
    assert list(changes) == []
    assert watch.next_changes(1) is None


def test_a_closed_push_query_does_not_wait_on(klamm_broker, bank):
    put(klamm_broker, bank.topic, [("ada", {"balance": 1})])
    watch = bank().open_watch("SELECT * FROM balances", snapshot=False)
    answers = []

    def wait():
        answers.append(watch.next_changes(10 * PATIENCE_S))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    watch.close()
    thread.join(PATIENCE_S)
    assert answers == [None]


def signs(watch):
    for _ in range(PATIENCE_S):
        changes = watch.next_changes(1)
        if changes:
            return [(change.sign, *change.row) for change in changes]
    raise AssertionError("nothing changed")


def test_names_are_explained(klamm_broker, bank):
    tables = bank()
    with pytest.raises(QueryError, match="payments is a stream"):
        tables.query("SELECT * FROM payments")
    with pytest.raises(QueryError, match="sums is not followed here"):
        tables.query("SELECT * FROM sums")
    with pytest.raises(QueryError, match="there is no table balanced; did you mean balances"):
        tables.get("balanced", "a")
    with pytest.raises(QueryError, match="is a stream"):
        bank(tables=["payments"])
    with pytest.raises(UnknownTopicOrPartitionError):
        bank(tables=["sums"])
    put(klamm_broker, bank.topic, [("a", {"balance": 1}), ("b", {"balance": 1})])
    limited = bank(limits=QueryLimits(rows=1))
    with pytest.raises(QueryError, match="more than 1 rows"):
        limited.query("SELECT * FROM balances")


def test_a_file_with_an_error_is_refused(tmp_path):
    (tmp_path / "p.sql").write_text("CREATE TABLE t (a STRING);")
    with pytest.raises(SqlError, match="a table needs a key"):
        open_tables(tmp_path / "p.sql")
    (tmp_path / "p.sql").write_text("CREATE STREAM s (a STRING);")
    with pytest.raises(ConfigError, match="has no table"):
        open_tables(tmp_path / "p.sql")


def test_columns_of_a_select_are_inferred(klamm_broker, tmp_path):
    """What a run of the pipeline writes, read on a machine where it never ran."""
    topic = klamm_broker.topic("sums")
    file = tmp_path / "p.sql"
    file.write_text(
        "CREATE STREAM payments (account STRING, amount BIGINT);\n"
        f"CREATE TABLE sums WITH (topic = '{topic}') AS"
        " SELECT account, sum(amount) AS amount FROM payments GROUP BY account;"
    )
    put(klamm_broker, topic, [("ada", {"account": "ada", "amount": 5}), ("bob", {"account": "bob", "amount": 7})])
    with open_tables(file, bootstrap=klamm_broker.bootstrap, store=tmp_path / "s", timeout_s=PATIENCE_S) as tables:
        assert tables.query("SELECT sum(amount) AS s FROM sums").to_pylist() == [{"s": 12}]
        put(klamm_broker, topic, [("ada", {"account": "ada", "amount": 5.5, "note": {"a": [1]}}), ("bob", None)])
        tables.catch_up(PATIENCE_S)
        assert tables.query("SELECT * FROM sums").to_pylist() == [
            {"account": "ada", "amount": 5.5, "note": '{"a":[1]}'}
        ]
        assert tables.get("sums", "ada")["amount"] == 5.5
    with open_tables(file, bootstrap=klamm_broker.bootstrap, store=tmp_path / "s", timeout_s=PATIENCE_S) as tables:
        assert tables.query("SELECT note ->> '$.a[0]' AS a FROM sums").to_pylist() == [{"a": "1"}]
        assert tables.status()[0]["records"] == 0


def test_several_tables_and_a_key_of_several_columns(klamm_broker, tmp_path):
    first, second = klamm_broker.topic("a"), klamm_broker.topic("b")
    file = tmp_path / "p.sql"
    file.write_text(
        f"CREATE TABLE customers (id BIGINT, owner STRING) WITH (topic = '{first}', key = 'id', format = 'csv');\n"
        f"CREATE TABLE spend (id BIGINT, day DATE, cents BIGINT) WITH (topic = '{second}', key = 'id, day');\n"
    )
    put(klamm_broker, first, [("1", b"1,Ada"), ("2", b'2,"Bob, the builder"')])
    put(
        klamm_broker,
        second,
        [('{"id":1,"day":"2026-05-01"}', {"cents": 5}), ('{"id":2,"day":"2026-05-01"}', {"cents": 7})],
    )
    with open_tables(file, bootstrap=klamm_broker.bootstrap, timeout_s=PATIENCE_S) as tables:
        joined = tables.query("SELECT owner, cents FROM customers JOIN spend USING (id) ORDER BY id").to_pylist()
        assert joined == [{"owner": "Ada", "cents": 5}, {"owner": "Bob, the builder", "cents": 7}]
        assert tables.get("spend", {"id": 1, "day": "2026-05-01"})["cents"] == 5
        assert tables.get("spend", ["2", "2026-05-01"])["cents"] == 7
        assert tables.get("customers", "2")["owner"] == "Bob, the builder"
        with pytest.raises(QueryError, match="the key of spend is id, day"):
            tables.get("spend", "1")
        with pytest.raises(QueryError, match="id: x is no BIGINT"):
            tables.get("customers", "x")


def test_times_out_of_range_and_of_another_unit(klamm_broker, tmp_path):
    topic = klamm_broker.topic("t")
    (tmp_path / "p.sql").write_text(
        f"CREATE TABLE t (id STRING, seen TIMESTAMP) WITH (topic = '{topic}', key = 'id', timestamp = 'seen',"
        " timestamp_format = 'seconds');"
    )
    put(
        klamm_broker, topic, [("a", {"seen": 1777629600}), ("b", {"seen": 1777629600000}), ("c", {"seen": 99999999999})]
    )
    with open_tables(tmp_path / "p.sql", bootstrap=klamm_broker.bootstrap, timeout_s=PATIENCE_S) as tables:
        assert tables.query("SELECT id, year(seen) AS y FROM t").to_pylist() == [{"id": "a", "y": 2026}]
        (status,) = tables.status()
        assert status["bad_records"] == 2
        assert status["last_error"] == "seen is not between the years 1900 and 2200"


def test_two_tables_of_one_topic(klamm_broker, tmp_path):
    """The second one was declared later: the topic is read again for it, and the rows of the first stay as they are."""
    topic = klamm_broker.topic("t")
    first = f"CREATE TABLE first (id STRING, n INT) WITH (topic = '{topic}', key = 'id');\n"
    second = f"CREATE TABLE second (id STRING, n DOUBLE) WITH (topic = '{topic}', key = 'id');\n"
    put(klamm_broker, topic, [("a", {"n": 1}), ("b", {"n": 1.5}), ("c", b"bad")])
    options = {"bootstrap": klamm_broker.bootstrap, "store": tmp_path / "store", "timeout_s": PATIENCE_S}
    (tmp_path / "p.sql").write_text(first)
    with open_tables(tmp_path / "p.sql", **options) as tables:
        assert tables.status()[0]["bad_records"] == 2
    put(klamm_broker, topic, [("a", {"n": 2})])
    (tmp_path / "p.sql").write_text(first + second)
    with open_tables(tmp_path / "p.sql", **options) as tables:
        assert tables.query("SELECT * FROM first").to_pylist() == [{"id": "a", "n": 2}]
        assert tables.query("SELECT * FROM second ORDER BY id").to_pylist() == [
            {"id": "a", "n": 2.0},
            {"id": "b", "n": 1.5},
        ]
        assert [status["bad_records"] for status in tables.status()] == [2, 1]
        assert [status["lag_records"] for status in tables.status()] == [0, 0]


def test_a_broker_that_goes_away_and_comes_back(klamm_own_broker, tmp_path):
    topic = klamm_own_broker.topic("t")
    (tmp_path / "p.sql").write_text(f"CREATE TABLE t (id STRING, n INT) WITH (topic = '{topic}', key = 'id');")
    put(klamm_own_broker, topic, [("a", {"n": 1})])
    with open_tables(tmp_path / "p.sql", bootstrap=klamm_own_broker.bootstrap, timeout_s=PATIENCE_S) as tables:
        klamm_own_broker.stop()
        assert tables.query("SELECT n FROM t").to_pylist() == [{"n": 1}]
        klamm_own_broker.start()
        put(klamm_own_broker, topic, [("a", {"n": 2})])
        eventually(lambda: tables.query("SELECT n FROM t").to_pylist() == [{"n": 2}])


def test_waiting_has_an_end(klamm_broker, bank):
    with klamm_broker.producer(transactional_id=f"{bank.topic}-open") as producer:
        put(klamm_broker, bank.topic, [("a", {"balance": 1})])
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(bank.topic, b'{"balance":1}', key=b"a").result()
        # The end is the last stable offset: what is open is not waited for.
        assert list(balances(bank())) == ["a"]
        producer.abort_transaction()
    follower = bank(wait=False)._follower
    with pytest.raises(KafkaTimeoutError, match="not read yet"):
        follower.wait_for({where: end + 10 for where, end in follower.ends().items()}, 0.2)


def test_values_and_keys_of_a_registry(klamm_broker, tmp_path):
    record = {
        "type": "record",
        "name": "Drink",
        "fields": [
            {"name": "name", "type": "string"},
            {"name": "cents", "type": "long"},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
        ],
    }
    topic = klamm_broker.topic("drinks")
    with small_registry() as registry:
        client = shared_registry(parse_settings(registry.url))
        value = client.register(f"{topic}-value", json.dumps(record), "AVRO")
        key = client.register(f"{topic}-key", '"long"', "AVRO")
        values, keys = compile_schema(client, value), compile_schema(client, key)
        with klamm_broker.producer() as producer:
            for number, name in enumerate(["espresso", "tea"]):
                row = {"name": name, "cents": 100 * number, "tags": ["hot", name]}
                producer.send(topic, prefix(value.id) + values.encode(row), key=prefix(key.id) + keys.encode(number))
            producer.send(topic, b"not framed", key=prefix(key.id) + keys.encode(5))
            producer.flush()
        (tmp_path / "p.sql").write_text(
            f"SET registry = '{registry.url}';\n"
            f"CREATE TABLE drinks WITH (topic = '{topic}', format = 'avro', key_format = 'avro', key = 'id');\n"
            "CREATE TABLE prices (id BIGINT, cents DECIMAL(8, 2))"
            f" WITH (topic = '{topic}', format = 'avro', key_format = 'avro', key = 'id');\n"
        )
        with open_tables(tmp_path / "p.sql", bootstrap=klamm_broker.bootstrap, timeout_s=PATIENCE_S) as tables:
            expected = {"id": 1, "name": "tea", "cents": 100, "tags": ["hot", "tea"]}
            assert tables.get("drinks", 1) == expected
            assert tables.query("SELECT name FROM drinks WHERE list_contains(tags, 'tea')").to_pylist() == [
                {"name": "tea"}
            ]
            assert tables.get("prices", "1") == {"id": 1, "cents": Decimal("100.00")}
            assert [status["bad_records"] for status in tables.status()] == [1, 1]
