"""What tables must do, in and out, against any broker: every column, every way to choose a partition, every bound.

Stories as in `client_stories`: functions of bootstrap servers.
"""

import asyncio
import datetime as dt

import pyarrow as pa
import pytest

from harness.bounded_stories import BOUNDED, table
from harness.client_stories import PATIENCE_S, Story, read, reader, topic, until
from harness.wire import unique
from klamm.client import Admin, AsyncConsumer, Producer, TopicPartition
from klamm.client.columns import schema
from klamm.client.errors import (
    InvalidTransactionStateError,
    KafkaError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from klamm.client.producer.core.partitioners import by_murmur2

WHEN = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)


def every_column_makes_the_round(bootstrap: str) -> None:
    name = topic(bootstrap, 2)
    rows = pa.table(
        {
            "key": pa.array([b"a", None, b"c"]),
            "value": pa.array(["x", None, "ümlaut"]).dictionary_encode(),
            "timestamp": pa.array([WHEN, WHEN + dt.timedelta(seconds=1), WHEN], pa.timestamp("us", tz="UTC")),
            "headers": pa.array([[("h", b"1"), ("h", None)], None, []], schema().field("headers").type),
            "where": pa.array([1, 1, 0]),
        }
    )
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send_arrow(name, rows, partition="where")
    received = table(name, bootstrap).sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    assert [row["key"] for row in received] == [b"c", b"a", None]
    assert [row["value"] for row in received] == ["ümlaut".encode(), b"x", None]
    assert [row["partition"] for row in received] == [0, 1, 1]
    assert [row["timestamp"] for row in received] == [WHEN, WHEN, WHEN + dt.timedelta(seconds=1)]
    assert {row["timestampType"] for row in received} == {0}
    assert [row["headers"] for row in received][1] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]


def times_of_the_log_are_marked_as_such(bootstrap: str) -> None:
    name = topic(bootstrap, 1, message_timestamp_type="LogAppendTime")
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send_arrow(name, pa.table({"value": [b"v"] * 3, "timestamp": pa.array([1, 2, 3], pa.timestamp("ms"))}))
        stamped = producer.send(name, b"v", timestamp=4).result(PATIENCE_S).timestamp
    rows = table(name, bootstrap)
    assert rows["timestampType"].to_pylist() == [1] * 4
    assert rows["timestamp"].to_pylist()[3].timestamp() * 1000 == pytest.approx(stamped)
    assert stamped > 4


def the_way_out_is_a_way_in(bootstrap: str) -> None:
    first, second = topic(bootstrap, 3), topic(bootstrap, 3)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(1000):
            producer.send(first, b"v%d" % number, b"k%d" % number, headers={"n": b"%d" % number})
        producer.flush()
        producer.send_arrow(second, table(first, bootstrap))
    order = [("partition", "ascending"), ("offset", "ascending")]
    columns = ["key", "value", "partition", "offset", "timestamp", "headers"]
    one, two = (table(name, bootstrap).sort_by(order).select(columns) for name in (first, second))
    assert one.equals(two)


def keys_choose_as_send_does_and_rows_without_key_go_somewhere(bootstrap: str) -> None:
    name = topic(bootstrap, 5)
    keys = [None if number % 7 == 0 else b"%d" % number for number in range(500)]
    rows = pa.table({"key": pa.array(keys, pa.large_binary()), "value": pa.array([b"v"] * 500)})
    with Producer(bootstrap_servers=bootstrap, batch_size=1000) as producer:
        producer.send_arrow(name, rows)
    placed = table(name, bootstrap).to_pylist()
    assert sorted(row["key"] or b"" for row in placed) == sorted(key or b"" for key in keys)
    assert all(row["partition"] == by_murmur2(row["key"], 5) for row in placed if row["key"])


def a_partitioner_of_the_users_is_asked(bootstrap: str) -> None:
    name = topic(bootstrap, 3)
    rows = pa.table({"key": [b"%d" % number for number in range(30)], "value": [b"v"] * 30})
    with Producer(bootstrap_servers=bootstrap, partitioner=lambda _t, key, count: int(key) % count) as producer:
        producer.send_arrow(name, rows)
    assert all(int(row["key"]) % 3 == row["partition"] for row in table(name, bootstrap).to_pylist())


def a_partitioner_is_asked_for_rows_without_key_too(bootstrap: str) -> None:
    """As `send` calls it, whether there is a column for keys or not."""
    columns = {"none": {"value": [b"v"] * 6}, "some": {"key": [None, b"a"] * 3, "value": [b"v"] * 6}}
    for rows in map(pa.table, columns.values()):
        keys = rows["key"].to_pylist() if "key" in rows.schema.names else [None] * 6
        calls: list[tuple] = []

        def choose(*given, calls=calls) -> int:
            calls.append(given)
            return 2 if given[1] is None else 1

        one, two = topic(bootstrap, 3), topic(bootstrap, 3)
        with Producer(bootstrap_servers=bootstrap, partitioner=choose, partitioner_ignore_keys=True) as producer:
            producer.send_arrow(one, rows)
            by_row = [producer.send(two, b"v", key) for key in keys]
            producer.flush()
        assert calls == [(name, key, 3) for name in (one, two) for key in keys]
        assert sorted(table(one, bootstrap)["partition"].to_pylist()) == sorted(
            delivery.metadata.partition for delivery in by_row
        )
        name = topic(bootstrap, 3)
        with Producer(bootstrap_servers=bootstrap, partitioner="round_robin") as producer:
            producer.send_arrow(name, rows)
            producer.send_arrow(name, rows.slice(0, 1))
        assert sorted(table(name, bootstrap)["partition"].to_pylist()) == [0, 0, 0, 1, 1, 2, 2]


def rows_left_to_the_producer_go_in_batches_to_all_partitions(bootstrap: str) -> None:
    """With a column of keys that are missing, and when a partitioner has no opinion (-1); none overtakes another."""
    values = [b"%04d" % number + b"x" * 500 for number in range(300)]
    for keys, settings in (
        (pa.nulls(300), {}),
        (pa.array([None] * 300, pa.string()), {}),
        (pa.array(["a", None, None] * 100), {}),
        (None, {"partitioner": lambda *_: -1}),
    ):
        name = topic(bootstrap, 3)
        rows = pa.table({"value": values} if keys is None else {"key": keys, "value": values})
        with Producer(bootstrap_servers=bootstrap, batch_size=1000, **settings) as producer:
            for partition in range(3):
                # Apache Kafka takes the second batch of a producer it does not know when it was not ready for the
                # first, which comes behind it then.
                producer.send(name, None, partition=partition).result(PATIENCE_S)
            producer.send_arrow(name, rows)
        placed = [row for row in table(name, bootstrap).to_pylist() if row["value"] is not None]
        assert sorted(row["value"] for row in placed) == values
        for partition in range(3):
            here = [row["value"] for row in placed if row["partition"] == partition]
            assert here
            assert here == sorted(here)


def a_name_that_is_not_there_is_an_error(bootstrap: str) -> None:
    name = topic(bootstrap, 3)
    rows = pa.table({"key": ["a"], "value": ["b"], "part": [1], "twice": ["c"]})
    rows = rows.append_column("twice", [["d"]])
    with Producer(bootstrap_servers=bootstrap) as producer:
        for role in ("key", "headers", "timestamp", "partition", "value"):
            with pytest.raises(ValueError, match=f"no column 'kee' for {role}: did you mean 'key'"):
                producer.send_arrow(name, rows, **{role: "kee"})
            with pytest.raises(ValueError, match=rf"no column '\?-9' for {role}: the table has 'key', 'value', 'part'"):
                producer.send_arrow(name, rows, **{role: "?-9"})
            with pytest.raises(ValueError, match=f"2 columns 'twice': rename all but the one for {role}"):
                producer.send_arrow(name, rows, **{role: "twice"})
        with pytest.raises(ValueError, match="no column 'value' for value"):
            producer.send_arrow(name, rows.select(["key"]))
        with pytest.raises(ValueError, match="nothing to send"):
            producer.send_arrow(name, rows, key=None, value=None)
        for wrong in (True, 1.5, b"part"):
            with pytest.raises(TypeError, match=r"partition=.*number, or the name of a column"):
                producer.send_arrow(name, rows, partition=wrong)
        with pytest.raises(TypeError, match="key=3: write the name of a column"):
            producer.send_arrow(name, rows, key=3)
    assert table(name, bootstrap).num_rows == 0


def a_table_that_cannot_be_sent_is_not_sent_in_part(bootstrap: str) -> None:
    """An error in the last row is raised before the first one is accepted."""
    name = topic(bootstrap, 3)
    good = pa.table({"value": [b"x" * 100] * 5000, "at": [1] * 5000, "when": [1] * 5000})

    def after_good(**columns) -> pa.Table:
        return pa.concat_tables([good, pa.table({"value": [b"v"], "at": [1], "when": [1]} | columns)])

    long = pa.concat_tables([pa.table({"value": [b"v"] * 3}), pa.table({"value": [b"v", b"x" * 2_000_000, b"v"]})])
    folded = pa.table({"value": pa.chunked_array([chunk.dictionary_encode() for chunk in long["value"].chunks])})
    with Producer(bootstrap_servers=bootstrap, batch_size=1000) as producer:
        for partition in (9, -1, 3_000_000_000):
            with pytest.raises(UnknownTopicOrPartitionError, match=f"3 partitions, and no partition {partition}"):
                producer.send_arrow(name, after_good(at=[partition]), partition="at")
            with pytest.raises(UnknownTopicOrPartitionError, match=f"3 partitions, and no partition {partition}"):
                producer.send_arrow(name, good, partition=partition)
        with pytest.raises(ValueError, match="'at' has 1 nulls"):
            producer.send_arrow(name, after_good(at=pa.array([None], pa.int64())), partition="at")
        for rows in (long, folded, long.cast(pa.schema([("value", pa.large_binary())]))):
            with pytest.raises(RecordTooLargeError, match=r"row 4 is larger than max\.request\.size=1048576"):
                producer.send_arrow(name, rows)
        with pytest.raises(RecordTooLargeError, match="row 0"):
            producer.send_arrow(name, pa.table({"key": [b"k" * 600_000], "value": [b"v" * 600_000]}))
        headers = pa.array([[("a", b""), ("b", b"x" * 1_100_000)]], pa.map_(pa.string(), pa.binary()))
        with pytest.raises(RecordTooLargeError, match="row 0"):
            producer.send_arrow(name, pa.table({"value": [b"v"], "headers": headers}))
        late = pa.concat_tables(
            [pa.table({"value": [b"v"], "when": pa.array([value], pa.uint64())}) for value in (1, 1 << 63)]
        )
        with pytest.raises(ValueError, match="'when' cannot be sent as timestamp"):
            producer.send_arrow(name, late, timestamp="when")
    partitions = iter(range(5001))
    with (
        Producer(bootstrap_servers=bootstrap, partitioner=lambda *_: 0 if next(partitions) < 5000 else 7) as producer,
        pytest.raises(ValueError, match="chose 7 of the 3"),
    ):
        producer.send_arrow(name, after_good())
    assert table(name, bootstrap).num_rows == 0
    with Producer(bootstrap_servers=bootstrap) as producer:  # just below the limit, of which all columns have a share
        most = pa.table({"key": [b"k" * 500_000] * 2, "value": pa.array(["v" * 500_000] * 2).dictionary_encode()})
        producer.send_arrow(name, most)
    assert table(name, bootstrap).num_rows == 2


def what_is_wrong_with_a_table_is_said(bootstrap: str) -> None:
    name = topic(bootstrap)
    rows = pa.table({"value": [b"v"]})
    with Producer(bootstrap_servers=bootstrap) as producer:
        with pytest.raises(ValueError, match="no column 'body'"):
            producer.send_arrow(name, rows, value="body")
        with pytest.raises(KafkaError, match="1 partitions"):
            producer.send_arrow(name, rows, partition=4)
        with pytest.raises(RecordTooLargeError):
            producer.send_arrow(name, pa.table({"value": [b"x" * 2_000_000]}))
        assert producer.send_arrow(name, rows.slice(0, 0)) == []
    with Producer(bootstrap_servers=bootstrap, transactional_id=unique("columns")) as producer:
        producer.init_transactions()
        with pytest.raises(InvalidTransactionStateError):
            producer.send_arrow(name, rows)
        with producer.transaction():
            producer.send_arrow(name, rows)
        producer.begin_transaction()
        producer.send_arrow(name, rows)
        producer.abort_transaction()
    assert table(name, bootstrap).num_rows == 1
    assert table(name, bootstrap, isolation="read_uncommitted").num_rows >= 1


def tables_hold_what_is_committed(bootstrap: str) -> None:
    """Aborted rows lie between committed ones, an open transaction lies at the end."""
    name = topic(bootstrap)
    where = TopicPartition(name, 0)
    with Producer(bootstrap_servers=bootstrap, transactional_id=unique("columns")) as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            word = b"aborted" if number % 2 else b"committed"
            for delivery in producer.send_arrow(name, pa.table({"value": [word] * 50})):
                delivery.result(PATIENCE_S)
            producer.abort_transaction() if number % 2 else producer.commit_transaction()
        producer.begin_transaction()
        for delivery in producer.send_arrow(name, pa.table({"value": [b"open"] * 50})):
            delivery.result(PATIENCE_S)
        committed = table(name, bootstrap)
        assert committed["value"].to_pylist() == [b"committed"] * 150
        assert committed["offset"].to_pylist()[50] == 102, "markers and aborted rows have offsets too"
        assert table(name, bootstrap, isolation="read_uncommitted").num_rows == 350
        with reader(bootstrap, isolation_level="read_committed") as consumer:
            consumer.assign([where])
            rows = 0
            while rows < 150:
                rows += consumer.poll_arrow(PATIENCE_S).num_rows
            stable = consumer.end_offsets([where])[where]
            assert (
                until(lambda: consumer.poll_arrow(0).num_rows == 0 and consumer.position(where), "all read") <= stable
            )
            producer.commit_transaction()
            until(lambda: consumer.end_offsets([where])[where] > stable, "the last one counts")
            assert set(consumer.poll_arrow(PATIENCE_S)["value"].to_pylist()) == {b"open"}
    assert table(name, bootstrap).num_rows == 200


def large_batches_make_the_same_tables(bootstrap: str) -> None:
    """Megabytes at a time, some aborted, some compressed, read on from the middle of a batch."""
    name = topic(bootstrap, 2)
    rows = 3000
    expected: dict[int, list[bytes]] = {0: [], 1: []}
    for codec in ("none", "lz4"):
        with Producer(
            bootstrap_servers=bootstrap, transactional_id=unique("columns"), batch_size=900_000, compression_type=codec
        ) as producer:
            producer.init_transactions()
            for number in range(4):
                values = [b"%s %d %d " % (codec.encode(), number, index) + b"." * 1000 for index in range(rows)]
                producer.begin_transaction()
                for delivery in producer.send_arrow(name, pa.table({"value": values}), partition=number % 2):
                    delivery.result(PATIENCE_S)
                if number == 1:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                    expected[number % 2] += values
    received: dict[int, list[bytes]] = {0: [], 1: []}
    with reader(bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([(name, 0), (name, 1)])
        while sum(map(len, received.values())) < sum(map(len, expected.values())):
            part = consumer.poll_arrow(PATIENCE_S)
            for where, value in zip(part["partition"].to_pylist(), part["value"].to_pylist(), strict=True):
                received[where].append(value)
        assert received == expected
        consumer.seek((name, 0), 1234)
        consumer.pause((name, 1))
        assert consumer.poll_arrow(PATIENCE_S)["value"][0].as_py() == expected[0][1234]


def a_table_is_bounded_by_moments(bootstrap: str) -> None:
    name = topic(bootstrap, 2)
    base = 1_700_000_000_000
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(100):
            producer.send(name, b"%d" % number, partition=number % 2, timestamp=base + number)
    rows = table(name, bootstrap, start=base + 20, end=base + 60)
    assert sorted(int(value) for value in rows["value"].to_pylist()) == list(range(20, 60))
    assert table(name, bootstrap, partitions=[1]).num_rows == 50
    assert table(name, bootstrap, start="latest").num_rows == 0
    assert table(name, bootstrap, start="latest").schema == schema()
    with pytest.raises(ValueError, match="milliseconds"):
        table(name, bootstrap, start="yesterday")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.delete_records({TopicPartition(name, 0): 40})
    assert table(name, bootstrap).num_rows == 60, "what was deleted is not waited for"


def records_and_columns_can_be_mixed(bootstrap: str) -> None:
    name = topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(1000):
            producer.send(name, b"%d" % number)
    seen: list[int] = []
    with reader(bootstrap) as consumer:
        consumer.assign([(name, 0)])
        while len(seen) < 1000:
            seen += [int(record.value) for record in consumer.poll(5, max_records=7)]
            seen += [int(value) for value in consumer.poll_arrow(0.5, max_records=50)["value"].to_pylist()]
    assert seen == list(range(1000))


def columns_move_with_positions_and_groups(bootstrap: str, **settings) -> None:
    """Seeking, pausing and committing mean the same for tables as for records."""
    name, group = topic(bootstrap), unique("group")
    where = TopicPartition(name, 0)
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send_arrow(name, pa.table({"value": [b"%d" % number for number in range(100)]}))
    with reader(bootstrap, group_id=group, enable_auto_commit=False, **settings) as consumer:
        consumer.subscribe([name])
        rows = until(lambda: consumer.poll_arrow(0.2).to_pylist(), "rows came")
        assert isinstance(rows, list)
        consumer.seek(where, 30)
        consumer.pause(where)
        assert consumer.poll_arrow(0).num_rows == 0
        consumer.resume(where)
        first = until(lambda: consumer.poll_arrow(0.2).to_pylist(), "rows came again")
        assert isinstance(first, list)
        assert first[0]["offset"] == 30, "in the middle of a batch"
        consumer.commit()
        after = first[-1]["offset"] + 1
        committed = consumer.committed([where])[where]
        assert committed is not None
        assert committed.offset == after
        consumer.commit({where: 60})
    with reader(bootstrap, group_id=group, **settings) as consumer:
        consumer.subscribe([name])
        assert read(consumer, 40)[0].offset == 60


def an_empty_poll_has_all_columns(bootstrap: str) -> None:
    name = topic(bootstrap)

    async def main() -> pa.RecordBatch:
        async with AsyncConsumer(bootstrap_servers=bootstrap) as consumer:
            consumer.assign([(name, 0)])
            return await consumer.poll_arrow(0.1)

    rows = asyncio.run(main())
    assert rows.num_rows == 0
    assert rows.schema == schema()


COLUMNS: dict[str, Story] = {
    story.__name__: story
    for story in (
        every_column_makes_the_round,
        times_of_the_log_are_marked_as_such,
        the_way_out_is_a_way_in,
        keys_choose_as_send_does_and_rows_without_key_go_somewhere,
        a_partitioner_of_the_users_is_asked,
        a_partitioner_is_asked_for_rows_without_key_too,
        rows_left_to_the_producer_go_in_batches_to_all_partitions,
        a_name_that_is_not_there_is_an_error,
        a_table_that_cannot_be_sent_is_not_sent_in_part,
        what_is_wrong_with_a_table_is_said,
        tables_hold_what_is_committed,
        large_batches_make_the_same_tables,
        a_table_is_bounded_by_moments,
        records_and_columns_can_be_mixed,
        columns_move_with_positions_and_groups,
        an_empty_poll_has_all_columns,
    )
} | {
    "columns_move_with_positions_and_groups_consumer": lambda bootstrap: columns_move_with_positions_and_groups(
        bootstrap, group_protocol="consumer"
    ),
    **BOUNDED,
}
