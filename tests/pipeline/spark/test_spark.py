"""The format in a real Spark session: what its users type, and exactly once through failures that Spark handles."""

import json
import os

import pytest

import klamm
from klamm.client.types import TopicPartition
from klamm.coordinator.transactions import rules
from klamm.model.errors import ErrorCode, KlammError

pytestmark = pytest.mark.timeout(600)


def fill(broker, topic, count, partitions=2, first=0):
    with broker.producer() as producer:
        for number in range(first, first + count):
            producer.send(topic, str(number).encode(), key=f"k{number}".encode(), partition=number % partitions)
        producer.flush()


def values(broker, topic):
    table = klamm.read_topic(topic, bootstrap=broker.bootstrap, timeout_s=60)
    return sorted(int(row) for row in table["value"].to_pylist())


def run(spark, broker, source, sink, checkpoint, transform=None, **options):
    """A query from topic to topic over what is there now; returns when it has ended, raises when it failed."""
    servers = {"kafka.bootstrap.servers": broker.bootstrap}
    reading = spark.readStream.format("klamm").options(
        **servers, subscribe=source, startingOffsets="earliest", failOnDataLoss="true", **options
    )
    rows = reading.load()
    if transform is not None:
        rows = transform(rows)
    writing = rows.select("key", "value").writeStream.format("klamm").options(**servers, topic=sink)
    query = writing.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def test_a_batch_read_has_the_connectors_schema_and_rows(spark, klamm_broker, servers):
    topic = klamm_broker.topic("read", partitions=2)
    with klamm_broker.producer() as producer:
        producer.send(
            topic, b"v", key=b"k", partition=1, timestamp=1_700_000_000_123, headers=[("h", b"1"), ("n", None)]
        )
        producer.send(topic, None, key=None, partition=0, timestamp=1_700_000_000_000)
    rows = spark.read.format("klamm").options(**servers, subscribe=topic, includeHeaders="true").load()
    assert rows.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    records = rows.selectExpr("*", "unix_millis(timestamp) as ms").orderBy("partition").collect()
    assert [(row.key, row.value, row.topic, row.partition, row.offset, row.ms) for row in records] == [
        (None, None, topic, 0, 0, 1_700_000_000_000),
        (b"k", b"v", topic, 1, 0, 1_700_000_000_123),
    ]
    assert records[0].headers is None
    assert [(header.key, header.value) for header in records[1].headers] == [("h", b"1"), ("n", None)]


def test_a_batch_write_follows_its_columns(spark, klamm_broker, servers):
    topics = [klamm_broker.topic(f"write-{number}", partitions=3) for number in range(2)]
    rows = spark.createDataFrame(
        [
            (topics[0], "a", "1", 2, [("h", b"x")]),
            (topics[1], None, "2", 0, None),
            (topics[0], "c", None, None, []),
        ],
        "topic string, key string, value string, partition int, headers array<struct<key: string, value: binary>>",
    )
    rows.coalesce(1).write.format("klamm").options(**servers).mode("append").save()
    first = {row["key"]: row for row in klamm.read_topic(topics[0], bootstrap=klamm_broker.bootstrap).to_pylist()}
    assert (first[b"a"]["value"], first[b"a"]["partition"]) == (b"1", 2)
    assert first[b"a"]["headers"] == [{"key": "h", "value": b"x"}]
    assert first[b"c"]["value"] is None
    (second,) = klamm.read_topic(topics[1], bootstrap=klamm_broker.bootstrap).to_pylist()
    assert (second["key"], second["value"], second["partition"]) == (None, b"2", 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"subscribe": "t", "startingOfsets": "earliest"}, "did you mean startingOffsets?"), ({}, "exactly one of")],
)
def test_a_wrong_read_option_is_refused_with_the_right_one(spark, servers, options, words):
    with pytest.raises(Exception, match=r"option|exactly") as refusal:
        spark.read.format("klamm").options(**servers, **options).load().collect()
    assert words in str(refusal.value)


def test_a_wrong_write_is_refused_before_anything_is_written(spark, klamm_broker, servers):
    topic = klamm_broker.topic("wrong")
    rows = spark.range(3)
    for frame, words in (
        (rows, "no column value"),
        (rows.selectExpr("id as value"), "cast it to string or binary"),
    ):
        with pytest.raises(Exception, match="column") as refusal:
            frame.write.format("klamm").options(**servers, topic=topic).mode("append").save()
        assert words in str(refusal.value)


def test_a_numbered_batch_write_is_done_once(spark, klamm_broker, servers):
    topic = klamm_broker.topic("numbered")
    rows = spark.range(4).selectExpr("cast(id as string) as value")
    writing = rows.write.format("klamm").options(**servers, topic=topic, txnAppId=topic).mode("append")
    writing.option("txnVersion", "1").save()
    writing.option("txnVersion", "1").save()
    assert values(klamm_broker, topic) == [0, 1, 2, 3]


def test_a_first_batch_from_latest_that_died_begins_where_it_began(spark, patiently, klamm_broker, servers, tmp_path):
    """Spark asks for the start again, which is behind the records that came in between."""
    source = klamm_broker.topic("in", partitions=2)
    fill(klamm_broker, source, 4)
    seen = []

    def die(_rows, number):
        assert number == 0
        raise RuntimeError("the driver dies here")

    def collect(rows, _number):
        seen.extend(int(row.value) for row in rows.collect())

    def start(save):
        frame = spark.readStream.format("klamm").options(**servers, subscribe=source, startingOffsets="latest").load()
        writing = frame.writeStream.foreachBatch(save).option("checkpointLocation", str(tmp_path / "c"))
        writing.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="the driver dies here"):
        patiently(start, die)
    assert os.listdir(tmp_path / "c" / "commits") == []
    fill(klamm_broker, source, 3, first=4)
    patiently(start, collect)
    assert sorted(seen) == [4, 5, 6]


def test_a_query_goes_on_where_it_stopped(spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path):
    """In between the topic grows and the log of commits is lost: the last batch runs again, and is not written."""
    source, sink = klamm_broker.topic("in", partitions=2), klamm_broker.topic("out", partitions=2)
    group = klamm_name("progress")
    fill(klamm_broker, source, 30)
    options = {"maxOffsetsPerTrigger": "20", "kafka.group.id": group}
    patiently(run, spark, klamm_broker, source, sink, tmp_path / "c", **options)
    assert values(klamm_broker, sink) == list(range(30))
    for name in ("1", ".1.crc"):
        (tmp_path / "c" / "commits" / name).unlink()
    klamm_admin.create_partitions({source: 3})
    fill(klamm_broker, source, 15, partitions=3, first=30)
    patiently(run, spark, klamm_broker, source, sink, tmp_path / "c", **options)
    assert values(klamm_broker, sink) == list(range(45))
    shown = klamm_admin.list_group_offsets(group)
    assert sum(shown[TopicPartition(source, number)].offset for number in range(3)) == 45
    offsets = json.loads((tmp_path / "c" / "offsets" / "1").read_text().splitlines()[-1])
    assert sum(offsets[source].values()) == 30


def dying_first_attempts(mark):
    """Every task fails on its first attempt, after it has sent its rows on: one raises, the other's process dies."""

    def work(batches):
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        if context.attemptNumber() == 0:
            open(os.path.join(mark, str(context.partitionId())), "w").close()
            if context.partitionId() == 0:
                raise RuntimeError("a task that fails once")
            os._exit(9)

    return lambda rows: rows.select("key", "value").mapInArrow(work, "key binary, value binary")


def test_tasks_that_die_and_a_commit_that_fails_in_the_middle(spark, patiently, klamm_broker, tmp_path, monkeypatch):
    """Second attempts have written; one of two transactions is committed, the other open, when the driver fails.

    The replay computes something else, as a query that is not deterministic may: what was decided is what counts.
    """
    source, sink = klamm_broker.topic("in", partitions=2), klamm_broker.topic("out")
    fill(klamm_broker, source, 20)
    mark = tmp_path / "failed"
    mark.mkdir()
    original = rules.end

    def refusing(metadata, transactional_id, *args, **keywords):
        if transactional_id.endswith(".1.1"):
            raise KlammError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not now")
        return original(metadata, transactional_id, *args, **keywords)

    monkeypatch.setattr(rules, "end", refusing)
    work = dying_first_attempts(str(mark))
    with pytest.raises(Exception, match=r"(?i)cluster.*authoriz"):
        patiently(run, spark, klamm_broker, source, sink, tmp_path / "c", work, minPartitions="2")
    monkeypatch.undo()
    assert len(list(mark.iterdir())) == 2
    patiently(
        run,
        spark,
        klamm_broker,
        source,
        sink,
        tmp_path / "c",
        lambda rows: rows.selectExpr("key", "value || '0' as value"),
        minPartitions="2",
    )
    assert values(klamm_broker, sink) == list(range(20))
    with klamm_broker.admin() as admin:
        left = [
            transaction
            for transaction in admin.list_transactions(states=["Ongoing"])
            if transaction.transactional_id.startswith("klamm-")
        ]
    assert not left
