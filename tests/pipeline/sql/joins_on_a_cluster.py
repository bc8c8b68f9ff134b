"""Joined tables on a cluster: deleted keys, a batch that dies between topic and store, keys that change partition.

python -m pytest tests/pipeline/sql/joins_on_a_cluster.py     (or: make campaign)
"""

import json
from collections import Counter

import pytest

import klamm
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.join_store import JoinStore
from klamm.pipeline.sql.runner import run_pipeline

pytestmark = pytest.mark.timeout(600)
TEXT = """
CREATE TABLE customers (id STRING, owner STRING) WITH (topic = '{customers}', key = 'id');
CREATE TABLE accounts (id STRING, customer STRING, balance INT) WITH (topic = '{accounts}', key = 'id');
CREATE TABLE owned WITH (topic = '{owned}', key = 'id', partitions = 2) AS
  SELECT a.id, a.balance, c.owner FROM accounts a LEFT JOIN customers c ON a.customer = c.id;
"""


def test_results_equal_a_recomputation(
    spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path, monkeypatch, caplog
):
    names = {name: klamm_name(name) for name in ("customers", "accounts", "owned")}
    tables = {"customers": {}, "accounts": {}}
    klamm_admin.create_topic(names["customers"], 1)
    klamm_admin.create_topic(names["accounts"], 2)
    settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": str(tmp_path / "home")}
    pipeline = compile_text(TEXT.format(**names), "owned.sql", settings)

    def send(table, rows):
        with klamm_broker.producer() as producer:
            for key, row in rows.items():
                value = None if row is None else json.dumps({"id": key, **row}).encode()
                producer.send(names[table], value, key=key.encode()).result(30)
        tables[table] = {key: row for key, row in {**tables[table], **rows}.items() if row is not None}

    def run():
        patiently(run_pipeline, pipeline, once=True, spark=spark)

    def changes():
        rows = klamm.read_topic(names["owned"], bootstrap=klamm_broker.bootstrap, timeout_s=60).to_pylist()
        return [(row["key"], row["value"]) for row in rows]

    def check():
        result = {key: json.loads(value) for key, value in dict(changes()).items() if value is not None}
        owners = {key: row["owner"] for key, row in tables["customers"].items()}
        assert result == {
            key.encode(): {"id": key, "balance": row["balance"], "owner": owners.get(row["customer"])}
            for key, row in tables["accounts"].items()
        }

    send("customers", {f"c{number}": {"owner": f"owner {number}"} for number in range(6)})
    send("accounts", {f"a{number}": {"customer": f"c{number % 7}", "balance": number} for number in range(12)})
    run()
    check()

    # The batch dies when the topic has it and the store has not; the query is restarted and runs it again.
    send("customers", {"c1": None, "c2": {"owner": "another"}})
    send("accounts", {"a3": {"customer": "c2", "balance": 5}, "a4": None})
    put, deaths = JoinStore.put, []

    def die_once(self, name, value):
        if name == "batch" and not deaths:
            deaths.append(value)
            raise MemoryError("the batch dies here")
        put(self, name, value)

    before = Counter(changes())
    monkeypatch.setattr(JoinStore, "put", die_once)
    run()
    assert deaths
    # c1 is joined with a1 and a8, c2 with a2, a9 and a3; a4 is gone. Each is written once.
    written = Counter(changes()) - before
    assert sorted(key for key, _ in written.elements()) == [b"a1", b"a2", b"a3", b"a4", b"a8", b"a9"]
    check()

    # Keys move to partitions in which their offsets are lower.
    klamm_admin.create_partitions({names["customers"]: 4})
    send("customers", {f"c{number}": {"owner": f"moved {number}"} for number in range(6)})
    send("accounts", {"a0": {"customer": "c5", "balance": 1}})
    caplog.clear()
    caplog.set_level("INFO", "klamm.pipeline")
    run()
    check()
    assert not [record for record in caplog.records if "computed whole" in record.message]
