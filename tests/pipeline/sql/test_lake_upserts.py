"""Upserts and deletes of Delta and Iceberg tables: a batch is one commit, and the last change of a key counts."""

import json
import random

import deltalake
import pytest
from pyiceberg.catalog import load_catalog

from klamm.pipeline.core.lake_tables import DELETED, LakeTable
from klamm.pipeline.lake.delta import DeltaSink
from klamm.pipeline.lake.iceberg import IcebergSink
from klamm.pipeline.lake.sinks import open_sink
from klamm.pipeline.sql import SqlError, compile_text
from klamm.pipeline.sql.runner import run_pipeline
from klamm.pipeline.testing import Deleted, run

pytestmark = pytest.mark.timeout(300)
SCHEMA = f"id bigint, region string, `Name` string, {DELETED} boolean"


def read(kind, path):
    if kind == "delta":
        rows = deltalake.DeltaTable(path).to_pyarrow_dataset().to_table()
    else:
        table = load_catalog("klamm", type="sql", uri=f"sqlite:///{path}/catalog.db").load_table("klamm.people")
        rows = table.scan().to_arrow()
    return rows.to_pylist()


def commits(kind, path):
    if kind == "delta":
        return deltalake.DeltaTable(path).version()
    table = load_catalog("klamm", type="sql", uri=f"sqlite:///{path}/catalog.db").load_table("klamm.people")
    return len(table.metadata.metadata_log)


def sink(kind, path):
    return open_sink(LakeTable("people", kind, path, partition_by=("region",)))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("keys", [["id"], ["id", "region"]])
def test_random_changes_against_a_dict(spark, tmp_path, kind, keys):
    random_numbers = random.Random(11)
    table, expected = sink(kind, str(tmp_path)), {}
    for batch in range(6):
        changes = {}
        for _ in range(15):
            number = random_numbers.randrange(20)
            region = f"r{number % 3}" if len(keys) > 1 else f"r{random_numbers.randrange(3)}"
            deleted = random_numbers.random() < 0.4
            changes[number] = (number, region, None if deleted else f"name-{batch}-{number}", deleted)
        frame = spark.createDataFrame(list(changes.values()), SCHEMA)
        assert table.upsert(frame, keys, "app", batch)
        for number, (_, region, name, deleted) in changes.items():
            expected.pop(number, None)
            if not deleted:
                expected[number] = (region, name)
        rows = read(kind, str(tmp_path))
        assert {row["id"]: (row["region"], row["Name"]) for row in rows} == expected
        assert len(rows) == len(expected)
        # A batch that is done again is recognized, also by another driver.
        count = commits(kind, str(tmp_path))
        assert not sink(kind, str(tmp_path)).upsert(frame, keys, "app", batch)
        assert commits(kind, str(tmp_path)) == count


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_one_commit_for_each_batch(spark, tmp_path, kind):
    """Rows to insert, to update and to delete: a reader never sees a part of the batch."""
    table = sink(kind, str(tmp_path))
    assert table.upsert(spark.createDataFrame([(1, "a", "x", False), (2, "a", "y", False)], SCHEMA), ["id"], "app", 0)
    before = commits(kind, str(tmp_path))
    changes = [(1, "b", "z", False), (2, "a", None, True), (3, "a", "w", False), (4, "a", None, True)]
    assert table.upsert(spark.createDataFrame(changes, SCHEMA), ["id"], "app", 1)
    assert commits(kind, str(tmp_path)) == before + 1
    rows = sorted((row["id"], row["region"], row["Name"]) for row in read(kind, str(tmp_path)))
    assert rows == [(1, "b", "z"), (3, "a", "w")]


@pytest.mark.parametrize(
    ("kind", "owner", "method"), [("delta", DeltaSink, "_merge"), ("iceberg", IcebergSink, "_commit")]
)
@pytest.mark.parametrize("after", [False, True])
def test_a_batch_that_failed_at_its_commit_is_done_again(spark, tmp_path, monkeypatch, kind, owner, method, after):
    """The driver ends before or after the commit: replayed, the batch is in the table once."""
    original = getattr(owner, method)

    def fail(self, *args, **keywords):
        if after:
            original(self, *args, **keywords)
        raise RuntimeError("killed")

    table = sink(kind, str(tmp_path))
    table.upsert(spark.createDataFrame([(1, "a", "x", False), (2, "a", "y", False)], SCHEMA), ["id"], "app", 0)
    changes = spark.createDataFrame([(1, "a", "z", False), (2, "a", None, True), (3, "c", "w", False)], SCHEMA)
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, fail)
        with pytest.raises(RuntimeError, match="killed"):
            table.upsert(changes, ["id"], "app", 1)
    assert sink(kind, str(tmp_path)).upsert(changes, ["id"], "app", 1) is not after
    rows = sorted((row["id"], row["Name"]) for row in read(kind, str(tmp_path)))
    assert rows == [(1, "z"), (3, "w")]


PEOPLE = """
CREATE TABLE people_topic (id BIGINT, name STRING, credit BIGINT)
  WITH (key = 'id', partitions = 1, bad_records = 'fail');
CREATE SINK people WITH (format = 'delta', path = 'lake', mode = 'upsert', key = 'id') AS
  SELECT id, upper(name) AS name FROM people_topic WHERE credit >= 0;
CREATE SINK some WITH (format = 'delta', path = 'some', mode = 'upsert', key = 'id', delete_when = 'name = "F"') AS
  SELECT id, upper(name) AS name FROM people_topic WHERE credit >= 0;
"""


@pytest.mark.usefixtures("spark")
def test_a_sink_of_a_table_follows_it():
    """Updated and deleted rows, and rows that the condition leaves out from some change on."""
    steps = [
        {"people_topic": [{"id": 1, "name": "a", "credit": 1}, {"id": 2, "name": "b", "credit": 1}]},
        {"people_topic": [{"id": 1, "name": "c", "credit": 1}, {"id": 1, "name": "d", "credit": 2}, Deleted(id=2)]},
        {"people_topic": [{"id": 3, "name": "e", "credit": -1}, {"id": 1, "name": "d", "credit": -1}]},
        {"people_topic": [{"id": 3, "name": "e", "credit": 0}, {"id": 4, "name": "f", "credit": 0}]},
    ]
    out = run(PEOPLE, steps)
    assert {row["id"]: row["name"] for row in out["people"]} == {3: "E", 4: "F"}
    assert {row["id"]: row["name"] for row in out["some"]} == {3: "E"}
    # A step is a batch, with at most one change of a key.
    changes = {1: [], 2: [], 3: [], 4: []}
    for key, value in out.changes["people"]:
        changes[json.loads(key)["id"]].append(value and value["name"])
    assert (changes[1], changes[2], changes[4]) == (["A", "D", None], ["B", None], ["F"])
    assert [name for name in changes[3] if name is not None] == ["E"]


@pytest.mark.usefixtures("spark")
def test_a_sink_of_a_stream_keeps_the_last_row_of_each_key():
    text = """
    CREATE STREAM orders (id BIGINT, state STRING, version INT);
    CREATE SINK states WITH (format = 'iceberg', path = 'lake', mode = 'upsert', key = 'id', order_by = 'version',
      delete_when = 'state = "gone"') AS SELECT * FROM orders;
    CREATE SINK counts WITH (format = 'delta', path = 'lake', mode = 'upsert', key = 'state') AS
      SELECT state, count(*) AS n FROM orders GROUP BY state;
    """

    def order(number, state, version):
        return {"id": number, "state": state, "version": version}

    steps = [
        {"orders": [order(1, "sent", 2), order(1, "new", 1), order(2, "new", 1), order(None, "new", 1)]},
        {"orders": [order(2, "gone", 3), order(2, "sent", 2), order(3, "new", 1)]},
    ]
    out = run(text, steps)
    assert {row["id"]: row["state"] for row in out["states"]} == {1: "sent", 3: "new"}
    assert {row["state"]: row["n"] for row in out["counts"]} == {"sent": 2, "new": 4, "gone": 1}


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_from_a_debezium_topic_to_a_lake_table(spark, klamm_broker, tmp_path, monkeypatch, patiently, kind):
    """As typed: the changes of a database in a topic, and a table of the lake that has its rows."""
    monkeypatch.chdir(tmp_path)
    topic = klamm_broker.topic("customers", partitions=2)
    text = f"""
    CREATE TABLE customers (id BIGINT, name STRING) WITH (topic = '{topic}', format = 'debezium', key = 'id');
    CREATE SINK people WITH (format = '{kind}', path = 'lake', mode = 'upsert', key = 'id') AS SELECT * FROM customers;
    """
    settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": str(tmp_path / "state"), "name": f"people-{kind}"}

    def log(*changes):
        with klamm_broker.producer() as producer:
            for op, number, name in changes:
                after = None if op == "d" else {"id": number, "name": name}
                value = json.dumps({"op": op, "before": None, "after": after}).encode()
                producer.send(topic, value, key=json.dumps({"id": number}).encode())
                if op == "d":
                    producer.send(topic, None, key=json.dumps({"id": number}).encode())

    log(("r", 1, "a"), ("r", 2, "b"), ("c", 3, "c"))
    patiently(lambda: run_pipeline(compile_text(text, "people.sql", settings), once=True, spark=spark))
    assert {row["id"]: row["name"] for row in read(kind, str(tmp_path / "lake"))} == {1: "a", 2: "b", 3: "c"}
    log(("u", 1, "x"), ("u", 1, "y"), ("d", 2, None), ("d", 3, None), ("c", 3, "z"))
    patiently(lambda: run_pipeline(compile_text(text, "people.sql", settings), once=True, spark=spark))
    rows = read(kind, str(tmp_path / "lake"))
    assert {row["id"]: row["name"] for row in rows} == {1: "y", 3: "z"}
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("options", "select", "words"),
    [
        ("format = 'parquet', mode = 'upsert', key = 'id'", "t", "parquet is only appended to"),
        ("format = 'delta', mode = 'upsert'", "t", "upserts need a key"),
        ("format = 'delta', mode = 'upsert', key = 'id'", "s", "need order_by"),
        ("format = 'delta', mode = 'upsert', key = 'name'", "t", "the key is that of the table t: key = 'id'"),
        ("format = 'delta', mode = 'upsert', key = 'id'", "t JOIN t AS u USING (id)", "row by row"),
        ("format = 'delta', key = 'id'", "s", "key of a sink is for mode = 'upsert'"),
        ("format = 'delta'", "t", "a sink of a table needs mode = 'upsert'"),
    ],
)
def test_sinks_that_cannot_upsert_are_refused(options, select, words):
    declared = "CREATE STREAM s (id INT, name STRING); CREATE TABLE t (id INT, name STRING) WITH (key = 'id');"
    with pytest.raises(SqlError, match=words):
        compile_text(f"{declared} CREATE SINK k WITH (path = 'x', {options}) AS SELECT id, name FROM {select};")
