"""State that a changed file keeps, on Spark and a cluster: results are those of a recomputation."""

import json
import shutil

import pytest

import klamm
from klamm.model.errors import ConfigError
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.runner import run_pipeline
from klamm.pipeline.sql.state_folders import home_of

pytestmark = pytest.mark.timeout(600)

TEXT = """
CREATE STREAM payments ({columns}) WITH (topic = '{payments}', timestamp = 'at', watermark = '1 hour');
CREATE TABLE sums WITH (topic = '{sums}') AS
  SELECT account, sum(amount) AS total, count(amount) AS n, avg(amount) AS mean FROM payments GROUP BY account;
CREATE STREAM pairs WITH (topic = '{pairs}') AS
  SELECT p.account AS account, p.note AS a, q.note AS b FROM payments p JOIN payments q
  ON p.account = q.account AND q.note > p.note AND q.at BETWEEN p.at AND p.at + INTERVAL 10 MINUTES;
"""
STEPS = [
    "account STRING, note STRING, amount INT, at TIMESTAMP",
    "account STRING, more STRING, note STRING, unused DOUBLE, amount INT, at TIMESTAMP",
    "account STRING, more STRING, note STRING, amount BIGINT, at TIMESTAMP",
]


def rows(broker, topic):
    table = klamm.read_topic(topic, bootstrap=broker.bootstrap, timeout_s=60)
    return [(row["key"], json.loads(row["value"])) for row in table.to_pylist()]


def test_new_unused_and_wider_columns_keep_sums_and_joined_rows(
    spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path
):
    names = {name: klamm_name(name) for name in ("payments", "sums", "pairs")}
    settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": str(tmp_path / "home"), "partitions": "1"}
    klamm_admin.create_topic(names["payments"], 1)
    payments = []
    for step, columns in enumerate(STEPS):
        with klamm_broker.producer() as producer:
            for account in "ab":
                payments.append({"account": account, "note": f"n{step}", "amount": 10**step, "more": "x"})
                value = {**payments[-1], "at": f"2026-01-01T00:0{step}:00Z"}
                producer.send(names["payments"], json.dumps(value).encode())
        pipeline = compile_text(TEXT.format(columns=columns, **names), "bank.sql", settings)
        patiently(run_pipeline, pipeline, once=True, spark=spark)
        assert set(home_of(pipeline).identity().generations.values()) == {0}
        newest = dict(rows(klamm_broker, names["sums"]))
        for account in "ab":
            amounts = [payment["amount"] for payment in payments if payment["account"] == account]
            total, number = sum(amounts), len(amounts)
            expected = {"account": account, "total": total, "n": number, "mean": total / number}
            assert newest[account.encode()] == expected, step
    pairs = sorted((row["account"], row["a"], row["b"]) for _, row in rows(klamm_broker, names["pairs"]))
    notes = [f"n{step}" for step in range(len(STEPS))]
    assert pairs == [(account, a, b) for account in "ab" for a in notes for b in notes if b > a]


SINK = """
CREATE STREAM payments (account STRING, amount INT) WITH (topic = '{payments}', bad_records = 'fail');
CREATE SINK lake WITH (format = 'parquet', path = '{path}') AS SELECT account, amount FROM payments;
"""


def test_a_lake_sink_moves_without_its_rows_only_when_that_is_said(
    spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path
):
    topic = klamm_name("payments")
    settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": str(tmp_path / "home"), "partitions": "1"}
    klamm_admin.create_topic(topic, 1)

    def send(amount):
        with klamm_broker.producer() as producer:
            producer.send(topic, json.dumps({"account": "a", "amount": amount}).encode())

    def run(folder, **options):
        text = SINK.format(payments=topic, path=tmp_path / folder)
        patiently(run_pipeline, compile_text(text, "bank.sql", settings), once=True, spark=spark, **options)
        return sorted(row["amount"] for row in spark.read.parquet(str(tmp_path / folder)).collect())

    send(1)
    assert run("old") == [1]
    send(2)
    with pytest.raises(ConfigError, match="--continue lake"):
        run("new")
    assert not (tmp_path / "new").exists()
    assert run("new", continued=["lake"]) == [2]
    send(3)
    assert run("new") == [2, 3]
    # A folder that was removed is refused as before, also with --continue: it has not moved.
    shutil.rmtree(tmp_path / "new")
    with pytest.raises(ConfigError, match="was removed or set back"):
        run("new", continued=["lake"])
    assert run("whole", rebuild=["lake"]) == [1, 2, 3]
