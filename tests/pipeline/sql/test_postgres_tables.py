"""A table of PostgreSQL in a pipeline on Spark and a cluster: rows, changes, restarts, a lost slot and its rebuild."""

import json

import pytest

import klamm
from klamm.client import Admin
from klamm.client.admin.types import ConfigResource
from klamm.model.errors import ConfigError
from klamm.pipeline.sql import SqlError, compile_text
from klamm.pipeline.sql.runner import run_pipeline
from klamm.pipeline.testing import run

pytestmark = pytest.mark.timeout(600)
TEXT = """
CREATE TABLE accounts (
    id BIGINT, owner STRING, balance DECIMAL(12, 2), since TIMESTAMP, day DATE, tags ARRAY<STRING>, extra STRING,
    rate DOUBLE, vip BOOLEAN, picture BINARY) WITH (
  connector = 'postgres', url = '${KLAMM_TEST_POSTGRES}', table = 'accounts', key = 'id', topic = '{accounts}',
  partitions = 1, bad_records = 'fail');
CREATE STREAM changes (id BIGINT, balance DECIMAL(12, 2), op STRING METADATA) WITH (
  topic = '{accounts}', format = 'debezium', key = 'id');
CREATE TABLE debtors WITH (topic = '{debtors}', key = 'id') AS
  SELECT id, owner, balance, year(since) AS since, date_add(day, 1) AS due, size(tags) AS tags,
    get_json_object(extra, '$.a') AS a, isnan(rate) AS odd, vip, hex(picture) AS picture
  FROM accounts WHERE balance < 0;
CREATE STREAM withdrawn WITH (topic = '{withdrawn}') AS SELECT op, id, balance FROM changes;
"""
ROW = """({}, '{}', {}, '2026-01-02 03:04:05+00', '2026-01-02', '{{a,"b c"}}', '{{"a": 1}}', 'NaN', true, '\\xff')"""


def row_of(number, owner, balance):
    return {
        "id": number,
        "owner": owner,
        "balance": balance,
        "since": 2026,
        "due": "2026-01-03",
        "tags": 2,
        "a": "1",
        "odd": True,
        "vip": True,
        "picture": "FF",
    }


def read(broker, topic):
    table = klamm.read_topic(topic, bootstrap=broker.bootstrap, timeout_s=60)
    return [(row["key"], row["value"] and json.loads(row["value"])) for row in table.to_pylist()]


@pytest.mark.long
def test_a_pipeline_over_a_database(
    spark, patiently, postgres_database, klamm_broker, klamm_name, tmp_path, monkeypatch
):
    database = postgres_database
    names = {name: klamm_name(name) for name in ("accounts", "debtors", "withdrawn")}
    text = TEXT
    for name, topic in names.items():
        text = text.replace(f"{{{name}}}", topic)
    monkeypatch.setenv("KLAMM_TEST_POSTGRES", database.url)
    settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": str(tmp_path / "home"), "name": klamm_name("shop")}
    pipeline = compile_text(text, "shop.sql", settings)

    def once(**more):
        patiently(run_pipeline, pipeline, once=True, spark=spark, **more)

    with pytest.raises(SqlError, match=r"has no table public\.accounts"):
        once()
    database.execute(
        "CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner TEXT, balance NUMERIC(12, 2), since TIMESTAMPTZ, day DATE,"
        " tags TEXT[], extra JSONB, rate DOUBLE PRECISION, vip BOOLEAN, picture BYTEA)",
        f"INSERT INTO accounts VALUES {ROW.format(1, 'ada', -5)}, {ROW.format(2, 'bob', 10)}",
    )
    once()
    assert dict(read(klamm_broker, names["debtors"])) == {b"1": row_of(1, "ada", -5.0)}
    assert sorted((row["op"], row["id"]) for _, row in read(klamm_broker, names["withdrawn"])) == [("r", 1), ("r", 2)]
    resource = ConfigResource.topic(names["accounts"])
    with Admin(bootstrap_servers=klamm_broker.bootstrap) as admin:
        assert admin.describe_configs([resource])[resource]["cleanup.policy"].value == "compact"

    database.execute("UPDATE accounts SET balance = -1 WHERE id = 2", "DELETE FROM accounts WHERE id = 1")
    database.execute("ALTER TABLE accounts ADD COLUMN unknown TEXT")
    once()
    once()
    assert dict(read(klamm_broker, names["debtors"])) == {b"1": None, b"2": row_of(2, "bob", -1.0)}
    changes = [(row["op"], row["id"], row["balance"]) for _, row in read(klamm_broker, names["withdrawn"])]
    assert changes[2:] == [("u", 2, -1.0), ("d", 1, None)]

    # The slot is lost: nothing is passed over in silence, and a rebuild ends with the rows of the database.
    ((slot,),) = database.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    database.execute(f"SELECT pg_drop_replication_slot('{slot}')", "DELETE FROM accounts WHERE id = 2")
    database.execute(f"INSERT INTO accounts VALUES {ROW.format(3, 'eve', -3)}")
    with pytest.raises(
        ConfigError, match=r"accounts\.source failed: .*the capture cannot continue.*no replication slot"
    ):
        once()
    once(rebuild=["accounts.source"])
    assert {key: row for key, row in dict(read(klamm_broker, names["debtors"])).items() if row} == {
        b"3": row_of(3, "eve", -3.0)
    }
    ((renewed,),) = database.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    assert renewed == f"{slot}_1"


def test_rows_are_given_in_tests(spark):
    text = """
    CREATE TABLE accounts (id BIGINT, balance DECIMAL(12, 2)) WITH (
      connector = 'postgres', url = 'postgresql://nowhere/x', table = 'accounts', key = 'id');
    CREATE TABLE debtors WITH (key = 'id') AS SELECT id FROM accounts WHERE balance < 0;
    """
    out = run(text, [{"accounts": [{"id": 1, "balance": -1}, {"id": 2, "balance": 1}]}], spark=spark)
    out.expect("debtors", [{"id": 1}])
