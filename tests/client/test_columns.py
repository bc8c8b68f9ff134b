"""Tables in and out: every column, every way to choose a partition, what is wrong is said."""

import asyncio
import datetime as dt

import pyarrow as pa
import pytest

import klamm
from harness.client_stories import PATIENCE_S, reader, topic
from klamm.client import AsyncConsumer, Producer
from klamm.client.columns import schema
from klamm.client.errors import InvalidTransactionStateError, KafkaError, RecordTooLargeError
from klamm.client.producer.partitioners import by_murmur2

WHEN = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)


def table(name, klamm_node, **options):
    return klamm.read_topic(name, bootstrap=klamm_node.bootstrap, timeout_s=PATIENCE_S, **options)


def test_every_column_makes_the_round(klamm):
    name = topic(klamm.bootstrap, 2)
    rows = pa.table(
        {
            "key": pa.array([b"a", None, b"c"]),
            "value": pa.array(["x", None, "ümlaut"]).dictionary_encode(),
            "timestamp": pa.array([WHEN, WHEN + dt.timedelta(seconds=1), WHEN], pa.timestamp("us", tz="UTC")),
            "headers": pa.array([[("h", b"1"), ("h", None)], None, []], schema().field("headers").type),
            "where": pa.array([1, 1, 0]),
        }
    )
    with Producer(bootstrap_servers=klamm.bootstrap) as producer:
        producer.send_arrow(name, rows, partition="where")
    found = table(name, klamm).sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    assert [each["key"] for each in found] == [b"c", b"a", None]
    assert [each["value"] for each in found] == ["ümlaut".encode(), b"x", None]
    assert [each["partition"] for each in found] == [0, 1, 1]
    assert [each["timestamp"] for each in found] == [WHEN, WHEN, WHEN + dt.timedelta(seconds=1)]
    assert [each["headers"] for each in found][1] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]


def test_the_way_out_is_a_way_in(klamm):
    first, second = topic(klamm.bootstrap, 3), topic(klamm.bootstrap, 3)
    with Producer(bootstrap_servers=klamm.bootstrap) as producer:
        for number in range(1000):
            producer.send(first, b"v%d" % number, b"k%d" % number, headers={"n": b"%d" % number})
        producer.flush()
        producer.send_arrow(second, table(first, klamm))
    order = [("partition", "ascending"), ("offset", "ascending")]
    columns = ["key", "value", "partition", "offset", "timestamp", "headers"]
    one, two = (table(each, klamm).sort_by(order).select(columns) for each in (first, second))
    assert one.equals(two)


def test_keys_choose_as_send_does_and_rows_without_key_go_somewhere(klamm):
    name = topic(klamm.bootstrap, 5)
    keys = [None if each % 7 == 0 else b"%d" % each for each in range(500)]
    rows = pa.table({"key": pa.array(keys, pa.large_binary()), "value": pa.array([b"v"] * 500)})
    with Producer(bootstrap_servers=klamm.bootstrap, batch_size=1000) as producer:
        producer.send_arrow(name, rows)
    found = table(name, klamm).to_pylist()
    assert sorted(each["key"] or b"" for each in found) == sorted(each or b"" for each in keys)
    assert all(each["partition"] == by_murmur2(each["key"], 5) for each in found if each["key"])


def test_a_partitioner_of_the_users_is_asked(klamm):
    name = topic(klamm.bootstrap, 3)
    rows = pa.table({"key": [b"%d" % each for each in range(30)], "value": [b"v"] * 30})
    with Producer(bootstrap_servers=klamm.bootstrap, partitioner=lambda _t, key, count: int(key) % count) as producer:
        producer.send_arrow(name, rows)
    assert all(int(each["key"]) % 3 == each["partition"] for each in table(name, klamm).to_pylist())


def test_what_is_wrong_is_said(klamm):
    name = topic(klamm.bootstrap)
    rows = pa.table({"value": [b"v"]})
    with Producer(bootstrap_servers=klamm.bootstrap) as producer:
        with pytest.raises(ValueError, match="no column 'body'"):
            producer.send_arrow(name, rows, value="body")
        with pytest.raises(KafkaError, match="1 partitions"):
            producer.send_arrow(name, rows, partition=4)
        with pytest.raises(RecordTooLargeError):
            producer.send_arrow(name, pa.table({"value": [b"x" * 2_000_000]}))
        assert producer.send_arrow(name, rows.slice(0, 0)) == []
    with Producer(bootstrap_servers=klamm.bootstrap, transactional_id="columns") as producer:
        producer.init_transactions()
        with pytest.raises(InvalidTransactionStateError):
            producer.send_arrow(name, rows)
        with producer.transaction():
            producer.send_arrow(name, rows)
        producer.begin_transaction()
        producer.send_arrow(name, rows)
        producer.abort_transaction()
    assert table(name, klamm).num_rows == 1
    assert table(name, klamm, isolation="read_uncommitted").num_rows >= 1


def test_a_table_is_bounded_by_moments(klamm):
    name = topic(klamm.bootstrap, 2)
    base = 1_700_000_000_000
    with Producer(bootstrap_servers=klamm.bootstrap) as producer:
        for number in range(100):
            producer.send(name, b"%d" % number, partition=number % 2, timestamp=base + number)
    found = table(name, klamm, start=base + 20, end=base + 60)
    assert sorted(int(each) for each in found["value"].to_pylist()) == list(range(20, 60))
    assert table(name, klamm, partitions=[1]).num_rows == 50
    assert table(name, klamm, start="latest").num_rows == 0
    assert table(name, klamm, start="latest").schema == schema()
    with pytest.raises(ValueError, match="milliseconds"):
        table(name, klamm, start="yesterday")


def test_inside_a_running_loop(klamm):
    name = topic(klamm.bootstrap)

    async def notebook():
        with Producer(bootstrap_servers=klamm.bootstrap) as producer:
            producer.send(name, b"x")
        return table(name, klamm).num_rows

    assert asyncio.run(notebook()) == 1


def test_records_and_columns_can_be_mixed(klamm):
    name = topic(klamm.bootstrap)
    with Producer(bootstrap_servers=klamm.bootstrap) as producer:
        for number in range(1000):
            producer.send(name, b"%d" % number)
    seen: list[int] = []
    with reader(klamm.bootstrap) as consumer:
        consumer.assign([(name, 0)])
        while len(seen) < 1000:
            seen += [int(each.value) for each in consumer.poll(5, max_records=7)]
            seen += [int(each) for each in consumer.poll_arrow(0.5, max_records=50)["value"].to_pylist()]
    assert seen == list(range(1000))


def test_an_empty_poll_has_all_columns(klamm):
    name = topic(klamm.bootstrap)

    async def main():
        async with AsyncConsumer(bootstrap_servers=klamm.bootstrap) as consumer:
            consumer.assign([(name, 0)])
            return await consumer.poll_arrow(0.1)

    found = asyncio.run(main())
    assert found.num_rows == 0
    assert found.schema == schema()
