"""Streams joined with tables: as they were at the time, and as they are, while they change."""

import json
import random
import threading
import time
from pathlib import Path

import pytest

import klamm
from klamm.pipeline.sql import SqlError, compile_text
from klamm.pipeline.sql.runner import run_pipeline
from klamm.pipeline.sql.state_folders import home_of
from klamm.pipeline.testing import Deleted, Raw, run

pytestmark = pytest.mark.timeout(600)

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipeline" / "sql"
MATCHED = """
CREATE STREAM matched WITH (key = 'id') AS
  SELECT p.id, rates.rate FROM payments p JOIN rates FOR SYSTEM_TIME AS OF p.at ON p.currency = rates.currency;
"""
START_MS = 1_767_225_600_000


def moment(second):
    return f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}.000000Z"


def test_the_value_at_the_time_is_what_python_finds_in_the_history(spark):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    history, steps, expected = [], [], {}
    number = 0
    for _ in range(2):
        changes = []
        for _ in range(12):
            currency, second = chance.choice("xyz"), chance.randrange(300)
            rate = None if chance.random() < 0.25 else float(chance.randrange(1, 90))
            history.append((second, len(history), currency, rate))
            value = None if rate is None else json.dumps({"currency": currency, "rate": rate}).encode()
            changes.append(Raw(currency.encode(), value, START_MS + second * 1000))
        payments = []
        for _ in range(20):
            number += 1
            currency, second = chance.choice("wxyz"), chance.randrange(310)
            payments.append({"id": number, "currency": currency, "amount": 2.0, "payer": "ann", "at": moment(second)})
            then = [version for version in history if version[2] == currency and version[0] <= second]
            expected[number] = max(then)[3] if then else None
        steps.append({"rates": changes, "payments": payments})
    out = run((EXAMPLES / "rates.sql").read_text() + MATCHED, steps, spark=spark)
    out.expect(
        "paid",
        [
            {"id": payment, "payer": "Ann", "value": rate and 2 * rate, "rate": rate}
            for payment, rate in expected.items()
        ],
    )
    out.expect("matched", [{"id": payment, "rate": rate} for payment, rate in expected.items() if rate is not None])
    assert any(rate is None for rate in expected.values())


EVENT_TIMES = """
CREATE TABLE prices (item STRING, price INT, since TIMESTAMP) WITH (key = 'item', timestamp = 'since');
CREATE VIEW sold AS SELECT s.item, s.at FROM sales s WHERE s.item <> 'nothing';
CREATE STREAM sales (item STRING, at TIMESTAMP);
CREATE STREAM priced AS
  SELECT o.item, p.price FROM sold o, prices FOR SYSTEM_TIME AS OF (o.at + INTERVAL 1 SECOND) p WHERE o.item = p.item;
CREATE TABLE counted AS
  SELECT p.price, count(*) AS n FROM sales s JOIN prices p ON s.item = p.item GROUP BY p.price;
"""


def test_a_table_with_times_of_its_own(spark):
    """Versions count from the time in the row; a deletion has only the time of its record.

    A query that counts reads the newest version instead, and what is deleted no more.
    """
    prices = [("tea", 1, 0), ("tea", 3, 20), ("tea", 2, 10)]
    first = [{"item": item, "price": price, "since": moment(since)} for item, price, since in prices]
    sales = [{"item": "tea", "at": moment(number)} for number in (8, 9, 18, 19, 39)]
    out = run(
        EVENT_TIMES,
        [{"prices": first, "sales": sales[:2]}, {"prices": [Deleted(item="tea")], "sales": sales[2:]}],
        clock=[START_MS + 30_000, START_MS + 40_000],
        spark=spark,
    )
    out.expect("priced", [{"item": "tea", "price": number} for number in (1, 2, 2, 3)])
    out.expect("counted", [{"price": 2, "n": 2}])


STREAMS = "CREATE STREAM s (id INT, at TIMESTAMP); CREATE STREAM r (id INT); CREATE TABLE t (id INT) WITH (key = 'id');"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "CREATE STREAM x AS SELECT s.id FROM s JOIN r FOR SYSTEM_TIME AS OF s.at ON true",
            "r is a stream: only a table",
        ),
        ("CREATE TABLE x AS SELECT t.id FROM t FOR SYSTEM_TIME AS OF now()", "beside one stream"),
        ("CREATE STREAM x AS SELECT s.id FROM s JOIN t FOR SYSTEM_TIME AS OF 5 ON true", "takes a column, or an expr"),
        (
            "CREATE TABLE x AS SELECT s.id, count(*) n FROM s JOIN t FOR SYSTEM_TIME AS OF s.at ON true GROUP BY s.id",
            "do that in a stream of its own",
        ),
        ("CREATE VIEW v AS SELECT s.id FROM s JOIN t FOR SYSTEM_TIME AS OF s.at ON true", "in a STREAM or TABLE"),
    ],
)
def test_refusals(text, words):
    with pytest.raises(SqlError) as refused:
        compile_text(f"{STREAMS}{text};")
    assert words in str(refused.value)


def test_what_spark_refuses_is_told_where_it_was_written(spark):
    for select, place, words in (
        ("SELECT s.id,\n r.nothing FROM s JOIN t FOR SYSTEM_TIME AS OF s.at r ON s.id = r.id", "2:2", "nothing"),
        ("SELECT s.id FROM s JOIN t FOR SYSTEM_TIME AS OF s.when r\n ON s.id = r.id", "1:", "when"),
        ("SELECT t.id FROM t LEFT JOIN s ON s.id = t.id", "1:", "not supported"),
    ):
        with pytest.raises(SqlError) as refused:
            run(f"{STREAMS}CREATE STREAM x AS {select};", {"s": [{"id": 1}]}, spark=spark)
        assert f"pipeline.sql:{place}" in str(refused.value)
        assert words in str(refused.value)


CHANGING = """
SET name = 'changing';
CREATE TABLE customers (id STRING, owner STRING) WITH (topic = '{customers}', key = 'id');
CREATE STREAM payments (id INT, account STRING) WITH (topic = '{payments}');
CREATE STREAM named WITH (topic = '{named}') AS
  SELECT p.id, c.owner FROM payments p JOIN customers c ON p.account = c.id;
CREATE TABLE owned WITH (topic = '{owned}') AS SELECT owner, count(*) AS n FROM customers GROUP BY owner;
"""


@pytest.mark.long
def test_tables_that_change_while_a_pipeline_runs(spark, klamm_broker, klamm_admin, klamm_name, tmp_path):
    names = {word: klamm_name(word) for word in ("customers", "payments", "named", "owned")}
    klamm_admin.create_topic(names["customers"], 2, configs={"cleanup.policy": "compact"})
    klamm_admin.create_topic(names["payments"], 1)
    settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": str(tmp_path / "home"), "partitions": "1"}
    pipeline = compile_text(CHANGING.format(**names), "changing.sql", settings)
    failed = []

    def work():
        try:
            run_pipeline(pipeline, spark=spark)
        except Exception as error:  # noqa: BLE001 - told by the test
            failed.append(error)

    def read(name):
        table = klamm.read_topic(names[name], bootstrap=klamm_broker.bootstrap, timeout_s=60)
        return [(row["key"], row["value"] and json.loads(row["value"])) for row in table.to_pylist()]

    def until(wanted, read):
        deadline = time.monotonic() + 300
        while (rows := read()) != wanted:
            assert thread.is_alive(), failed
            assert time.monotonic() < deadline, rows
            thread.join(0.05)

    def owned():
        return {value["owner"]: value["n"] for value in dict(read("owned")).values() if value is not None}

    def named():
        return [(value["id"], value["owner"]) for _, value in read("named")]

    with klamm_broker.producer() as producer:

        def customer(key, owner):
            value = None if owner is None else json.dumps({"id": key, "owner": owner}).encode()
            producer.send(names["customers"], value, key=key.encode()).result(60)

        def paid(number, account):
            producer.send(names["payments"], json.dumps({"id": number, "account": account}).encode()).result(60)

        customer("a", "Ann")
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            until({"Ann": 1}, owned)
            paid(1, "a")
            until([(1, "Ann")], named)
            customer("a", "Bob")
            customer("b", "Bob")
            paid(2, "a")
            until([(1, "Ann"), (2, "Bob")], named)
            until({"Bob": 2}, owned)
            customer("a", None)
            paid(3, "a")
            paid(4, "b")
            until([(1, "Ann"), (2, "Bob"), (4, "Bob")], named)
            until({"Bob": 1}, owned)
        finally:
            home_of(pipeline).request_stop()
            thread.join(180)
    assert not thread.is_alive()
    assert not failed
    assert named() == [(1, "Ann"), (2, "Bob"), (4, "Bob")]
