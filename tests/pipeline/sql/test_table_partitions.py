"""A table's topic gets more partitions: keys move, and offsets of two partitions cannot be compared."""

import json

import pytest

import klamm
from klamm.client import TopicPartition
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.runner import run_pipeline

pytestmark = pytest.mark.timeout(600)
TEXT = """
CREATE TABLE customers (id STRING, owner STRING) WITH (topic = '{customers}', key = 'id');
CREATE STREAM orders (id STRING, customer STRING) WITH (topic = '{orders}', key = 'id');
CREATE TABLE copies WITH (topic = '{copies}', key = 'id') AS SELECT id, owner FROM customers;
CREATE STREAM owned WITH (topic = '{owned}') AS
  SELECT o.id, c.owner FROM orders o JOIN customers c ON o.customer = c.id;
CREATE STREAM owned_then WITH (topic = '{owned_then}') AS
  SELECT o.id, c.owner FROM orders o
  LEFT JOIN customers FOR SYSTEM_TIME AS OF (now()) AS c ON o.customer = c.id;
"""


@pytest.mark.long
def test_the_newest_row_wins_after_its_key_has_moved(spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path):
    names = {name: klamm_name(name) for name in ("customers", "orders", "copies", "owned", "owned_then")}
    keys = [f"c{number}" for number in range(12)]
    klamm_admin.create_topic(names["customers"], 1)
    klamm_admin.create_topic(names["orders"], 1)

    def send(topic, rows):
        with klamm_broker.producer() as producer:
            for key, row in rows:
                producer.send(topic, row if row is None else json.dumps(row).encode(), key=key.encode()).result(30)

    # Every key has a high offset in partition 0, where none of its later versions in another partition can reach.
    send(names["customers"], [(key, {"owner": f"old {turn}"}) for turn in range(5) for key in keys])
    klamm_admin.create_partitions({names["customers"]: 4})
    send(names["customers"], [(key, {"owner": "new"}) for key in keys[:8]] + [(key, None) for key in keys[8:10]])
    consumer_settings = {"bootstrap.servers": klamm_broker.bootstrap}
    with klamm.Consumer(consumer_settings) as consumer:
        partitions = [TopicPartition(names["customers"], index) for index in range(4)]
        ends = consumer.end_offsets(partitions)
    assert sum(ends[partition] > 0 for partition in partitions) > 1, "no key has moved"

    send(names["orders"], [(f"o{number}", {"customer": key}) for number, key in enumerate(keys)])
    settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": str(tmp_path / "home"), "partitions": "1"}
    patiently(run_pipeline, compile_text(TEXT.format(**names), "moved.sql", settings), once=True, spark=spark)

    def read(topic):
        rows = klamm.read_topic(topic, bootstrap=klamm_broker.bootstrap, timeout_s=60).to_pylist()
        return [json.loads(row["value"]) for row in rows]

    expected = {key: "new" if number < 8 else None if number < 10 else "old 4" for number, key in enumerate(keys)}
    existing = {key: owner for key, owner in expected.items() if owner is not None}
    assert {row["id"]: row["owner"] for row in read(names["copies"])} == existing
    by_order = {f"o{number}": expected[key] for number, key in enumerate(keys)}
    assert {row["id"]: row["owner"] for row in read(names["owned"])} == {k: v for k, v in by_order.items() if v}
    assert {row["id"]: row["owner"] for row in read(names["owned_then"])} == by_order
