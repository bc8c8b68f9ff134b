"""Readers as Spark's planner and tasks call them, against a real broker and without Spark's weight."""

import json
import pickle
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

import klamm
from klamm.client import Consumer
from klamm.client.errors import KafkaError
from klamm.client.types import TopicPartition
from klamm.model.errors import ConfigError
from klamm.pipeline import DataLoss, partition_reader
from klamm.pipeline.source import BatchReader, StreamReader
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.topics import ClusterTopics


@pytest.fixture
def batch(servers):
    return lambda **options: BatchReader({**servers, **options})


@pytest.fixture
def stream(servers):
    readers = []

    def make(**options):
        readers.append(StreamReader({**servers, **options}))
        return readers[-1]

    yield make
    for reader in readers:
        reader.stop()


def fill(broker, topic, values, **options):
    with broker.producer(**options) as producer:
        for value in values:
            producer.send(topic, value.encode(), partition=0)
        producer.flush()


def rows(reader, pieces=None):
    """What all tasks read, as rows; each task has a copy of the reader."""
    copy = pickle.loads(pickle.dumps(reader))
    batches = []
    for piece in reader.partitions() if pieces is None else pieces:
        for part in copy.read(pickle.loads(pickle.dumps(piece))):
            batches += part.to_pylist()
    return batches


def texts(rows):
    return [row["value"].decode() for row in rows]


def ranges(pieces):
    return sorted((range_.partition, range_.start, range_.end) for piece in pieces for range_ in piece.ranges)


# Batch


def test_rows_are_those_of_the_columns_api(klamm_broker, batch):
    topic = klamm_broker.topic("rows", partitions=3)
    keys = [f"k{number}" for number in range(500)]
    with klamm_broker.producer() as producer:
        producer.send_arrow(topic, pa.table({"key": keys, "value": keys}), timestamp=None)
        producer.send(topic, None, key=b"gone", headers=[("trace", b"7"), ("none", None)])
    expected = klamm.read_topic(topic, bootstrap=klamm_broker.bootstrap).to_pylist()
    # Null for a record without headers, as in Spark's Kafka connector; the columns API has an empty list.
    expected = [{**row, "headers": row["headers"] or None} for row in expected]

    def order(row):
        return row["partition"], row["offset"]

    assert sorted(rows(batch(subscribe=topic, includeHeaders="true")), key=order) == sorted(expected, key=order)
    plain = rows(batch(subscribe=topic, minPartitions="10"))
    assert "headers" not in plain[0]
    assert len(plain) == 501


def test_large_ranges_become_several_tasks(klamm_broker, batch):
    topic = klamm_broker.topic("large")
    fill(klamm_broker, topic, map(str, range(100)))
    reader = batch(subscribe=topic, minPartitions="4")
    assert ranges(reader.partitions()) == [(0, 0, 25), (0, 25, 50), (0, 50, 75), (0, 75, 100)]
    assert texts(rows(reader)) == [str(number) for number in range(100)]
    assert len(batch(subscribe=topic, maxRecordsPerPartition="30").partitions()) == 4


def test_a_task_sends_no_fetch_behind_its_ranges(klamm_broker, batch):
    """Such a fetch waits at the end of the log, and the fetch of the next range would wait for it."""
    topic = klamm_broker.topic("source", partitions=3)
    with klamm_broker.producer() as producer:
        for row in range(6):
            producer.send(topic, b"row", partition=row % 3)
    reader = batch(subscribe=topic)
    rows(reader)  # connects
    [pooled] = partition_reader._pool.values()
    fetched = pooled.consumer._fetch_buffer.fetched
    before = fetched.fetches
    assert len(rows(reader)) == 6
    assert fetched.fetches - before == 3


def test_between_offsets_and_times(klamm_broker, batch):
    topic = klamm_broker.topic("between")
    with klamm_broker.producer() as producer:
        for number in range(10):
            producer.send(topic, str(number).encode(), timestamp=1000 * number)
    assert texts(rows(batch(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 7}})))) == ["7", "8", "9"]
    assert texts(rows(batch(assign=json.dumps({topic: [0]}), endingOffsets=json.dumps({topic: {"0": 2}})))) == [
        "0",
        "1",
    ]
    assert texts(rows(batch(subscribe=topic, startingTimestamp="2500", endingTimestamp="5000"))) == ["3", "4"]
    by_partition = json.dumps({topic: {"0": 8000}})
    assert texts(rows(batch(subscribe=topic, startingOffsetsByTimestamp=by_partition))) == ["8", "9"]
    assert rows(batch(subscribe=topic, startingTimestamp="99000", startingOffsetsByTimestampStrategy="latest")) == []
    with pytest.raises(ConfigError, match="no record at or after"):
        batch(subscribe=topic, startingTimestamp="99000").partitions()
    with pytest.raises(ConfigError, match="must name every partition"):
        batch(subscribe=topic, startingOffsets=json.dumps({topic: {"1": 7}})).partitions()


def test_several_topics_by_pattern(klamm_broker, klamm_name, batch):
    prefix = klamm_name("pattern")
    topics = [klamm_broker.topic(f"{prefix}-{word}") for word in ("north", "south")]
    for topic in topics:
        fill(klamm_broker, topic, [topic])
    assert sorted(texts(rows(batch(subscribePattern=f"{prefix}.*")))) == sorted(topics)
    assert texts(rows(batch(subscribePattern=f"{prefix}-north.*"))) == [topics[0]]


def test_a_topic_that_is_not_there_is_refused(batch):
    with pytest.raises(KafkaError, match="nowhere"):
        batch(subscribe="nowhere").partitions()
    with pytest.raises(KafkaError, match="nowhere"):
        batch(assign='{"nowhere":[0]}').partitions()


def test_aborted_records_are_left_out_and_their_offsets_are_gaps(klamm_broker, klamm_name, batch):
    topic = klamm_broker.topic("aborted")
    with klamm_broker.producer(transactional_id=klamm_name("t")) as producer:
        producer.init_transactions()
        for word, end in (("kept", True), ("dropped", False), ("also kept", True), ("dropped too", False)):
            producer.begin_transaction()
            producer.send(topic, word.encode()).result(30)
            producer.commit_transaction() if end else producer.abort_transaction()
    assert texts(rows(batch(subscribe=topic))) == ["kept", "also kept"]
    everything = batch(subscribe=topic, **{"kafka.isolation.level": "read_uncommitted"})
    assert texts(rows(everything)) == ["kept", "dropped", "also kept", "dropped too"]


def test_an_open_transaction_is_the_end_for_readers_of_committed_data(klamm_broker, klamm_name, batch):
    topic = klamm_broker.topic("open")
    fill(klamm_broker, topic, ["before"])
    with klamm_broker.producer(transactional_id=klamm_name("t")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open").result(30)
        fill(klamm_broker, topic, ["after"])
        assert texts(rows(batch(subscribe=topic))) == ["before"]
        producer.commit_transaction()
    assert texts(rows(batch(subscribe=topic))) == ["before", "open", "after"]


def test_what_was_deleted_meanwhile_is_a_loss_or_a_gap(klamm_broker, klamm_admin, batch):
    topic = klamm_broker.topic("deleted")
    fill(klamm_broker, topic, map(str, range(10)))
    strict, lenient = batch(subscribe=topic), batch(subscribe=topic, failOnDataLoss="false")
    planned = strict.partitions()
    klamm_admin.delete_records({TopicPartition(topic, 0): 6})
    with pytest.raises(DataLoss, match="failOnDataLoss=false"):
        rows(strict, planned)
    assert texts(rows(lenient, planned)) == ["6", "7", "8", "9"]
    offsets = json.dumps({topic: {"0": 3}})
    with pytest.raises(DataLoss, match="log start offset is 6"):
        batch(subscribe=topic, startingOffsets=offsets).partitions()


def test_a_topic_created_anew_under_a_running_task(klamm_broker, klamm_admin, batch):
    topic = klamm_broker.topic("anew")
    fill(klamm_broker, topic, ["old"] * 3)
    strict, lenient = batch(subscribe=topic), batch(subscribe=topic, failOnDataLoss="false")
    planned = strict.partitions()
    klamm_admin.delete_topics([topic])
    klamm_admin.create_topic(topic, 1)
    fill(klamm_broker, topic, ["new"] * 3)
    with pytest.raises(DataLoss, match="deleted and recreated"):
        rows(strict, planned)
    assert rows(lenient, planned) == []


# Streams


def test_a_stream_goes_from_offset_to_offset(klamm_broker, stream):
    topic = klamm_broker.topic("stream")
    fill(klamm_broker, topic, ["early"])
    reader = stream(subscribe=topic)
    start = reader.initialOffset()
    assert start[topic] == {"0": 1}
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    assert reader.partitions(start, start) == []
    fill(klamm_broker, topic, ["a", "b"])
    end = reader.latestOffset(start, ReadAllAvailable())
    assert texts(rows(reader, reader.partitions(start, end))) == ["a", "b"]
    assert texts(rows(reader, reader.partitions(start, end))) == ["a", "b"]
    assert stream(subscribe=topic, startingOffsets="earliest").initialOffset()[topic] == {"0": 0}


def test_a_batch_takes_no_more_than_it_may(klamm_broker, stream):
    topic = klamm_broker.topic("limit", partitions=2)
    with klamm_broker.producer() as producer:
        for number in range(40):
            producer.send(topic, b"x", partition=0 if number < 30 else 1)
    reader = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    assert reader.getDefaultReadLimit() == ReadMaxRows(20)
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert end[topic] == {"0": 15, "1": 5}
    assert reader.latestOffset(end, ReadAllAvailable())[topic] == {"0": 30, "1": 10}
    assert reader.reportLatestOffset()[topic] == {"0": 30, "1": 10}


def test_a_batch_waits_for_enough(klamm_broker, stream):
    topic = klamm_broker.topic("least")
    reader = stream(subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger="5", maxTriggerDelay="1h")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(5)
    start = reader.initialOffset()
    fill(klamm_broker, topic, ["1"])
    first = reader.latestOffset(start, limit)  # the first batch does not wait
    assert first[topic] == {"0": 1}
    fill(klamm_broker, topic, ["2", "3", "4"])
    assert reader.latestOffset(first, limit) == first
    fill(klamm_broker, topic, ["5", "6"])
    assert reader.latestOffset(first, limit)[topic] == {"0": 6}


def test_available_now_is_what_was_there_at_the_start(klamm_broker, stream):
    topic = klamm_broker.topic("now")
    fill(klamm_broker, topic, ["1", "2", "3"])
    reader = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="2", minOffsetsPerTrigger="100")
    reader.prepareForTriggerAvailableNow()
    fill(klamm_broker, topic, ["later"])
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    last = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert (first[topic], last[topic]) == ({"0": 2}, {"0": 3})
    assert reader.latestOffset(last, reader.getDefaultReadLimit()) == last


def test_new_partitions_and_topics_are_read_from_their_beginning(klamm_broker, klamm_admin, klamm_name, stream):
    prefix = klamm_name("grow")
    topic = klamm_broker.topic(f"{prefix}-one")
    reader = stream(subscribePattern=f"{prefix}.*")
    start = reader.initialOffset()
    klamm_admin.create_partitions({topic: 2})
    other = klamm_broker.topic(f"{prefix}-two")
    with klamm_broker.producer() as producer:
        producer.send(topic, b"new partition", partition=1).result(30)
    fill(klamm_broker, other, ["new topic"])
    end = reader.latestOffset(start, ReadMaxRows(100))
    assert sorted(texts(rows(reader, reader.partitions(start, end)))) == ["new partition", "new topic"]


def test_a_first_batch_that_is_run_again_after_the_topic_has_grown(klamm_broker, klamm_admin, stream):
    topic = klamm_broker.topic("grown")
    fill(klamm_broker, topic, ["first"])
    reader = stream(subscribe=topic, startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    # The process dies before the batch is committed. Spark has stored its end, and asks for its start again.
    klamm_admin.create_partitions({topic: 2})
    with klamm_broker.producer() as producer:
        producer.send(topic, b"new partition", partition=1).result(30)
    restarted = stream(subscribe=topic, startingOffsets="earliest")
    start = restarted.initialOffset()
    assert len(start[topic]) == 2
    assert texts(rows(restarted, restarted.partitions(start, end))) == ["first"]
    after = restarted.latestOffset(end, ReadAllAvailable())
    assert texts(rows(restarted, restarted.partitions(end, after))) == ["new partition"]


@pytest.mark.parametrize("unread", [["first", "second"], []])
def test_a_first_batch_from_latest_that_is_run_again(klamm_broker, stream, unread):
    """The start was looked up again: a restart lost the records between, and failed if there were none before."""
    topic = klamm_broker.topic("latest")
    fill(klamm_broker, topic, ["before"])
    reader = stream(subscribe=topic, startingOffsets="latest")
    start = reader.initialOffset()
    fill(klamm_broker, topic, unread)
    end = reader.latestOffset(start, ReadAllAvailable())
    # The process dies before the batch is committed. Spark has stored its end, and asks for its start again.
    fill(klamm_broker, topic, ["later"])
    restarted = stream(subscribe=topic, startingOffsets="latest")
    again = restarted.initialOffset()
    assert again[topic] == {"0": 2 + len(unread)}
    assert texts(rows(restarted, restarted.partitions(again, end))) == unread
    after = restarted.latestOffset(end, ReadAllAvailable())
    assert texts(rows(restarted, restarted.partitions(end, after))) == ["later"]
    # Spark compares positions as text: without new records they are the same.
    assert restarted.latestOffset(end, ReadMaxRows(0)) == end
    assert restarted.latestOffset(after, ReadAllAvailable()) == after
    assert ("#start" in restarted.latestOffset(after, ReadAllAvailable())) is (not unread)


@pytest.mark.parametrize("starting", ["latest", "time"])
def test_a_start_that_is_stored_is_where_a_query_without_batches_begins(
    klamm_broker, klamm_admin, stream, tmp_path, starting
):
    """Spark asks for the start at every start until a batch is planned: `latest` skipped what came between two."""
    topic = klamm_broker.topic("latest")
    fill(klamm_broker, topic, ["before"])
    options = {"startingOffsets": "latest"}
    if starting == "time":
        options = {"startingTimestamp": "4000000000000", "startingOffsetsByTimestampStrategy": "latest"}
    options |= {"subscribe": topic, "checkpointLocation": str(tmp_path)}
    start = stream(**options).initialOffset()
    fill(klamm_broker, topic, ["first"])
    klamm_admin.create_partitions({topic: 2})
    restarted = stream(**options)
    assert restarted.initialOffset() == start
    end = restarted.latestOffset(start, ReadAllAvailable())
    assert texts(rows(restarted, restarted.partitions(start, end))) == ["first"]
    stored = json.dumps(start)
    assert stream(subscribe=topic, startingPosition=stored).initialOffset() == start
    assert stream(subscribe=topic).initialOffset()[topic] == {"0": 2, "1": 0}
    (tmp_path / "klamm" / "starts").write_text("{")
    with pytest.raises(ConfigError, match="klamm/starts is damaged"):
        stream(**options).initialOffset()


def test_a_first_batch_whose_records_are_removed_before_it_is_run_again(klamm_broker, klamm_admin, stream):
    """The start was looked up again: the removed records were not noticed."""
    topic = klamm_broker.topic("trimmed")
    fill(klamm_broker, topic, map(str, range(6)))
    reader = stream(subscribe=topic, startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    klamm_admin.delete_records({TopicPartition(topic, 0): 4})
    strict = stream(subscribe=topic, startingOffsets="earliest")
    with pytest.raises(DataLoss, match="was read up to 0, but its log start offset is 4"):
        strict.partitions(strict.initialOffset(), end)
    lenient = stream(subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    assert texts(rows(lenient, lenient.partitions(lenient.initialOffset(), end))) == ["4", "5"]
    fill(klamm_broker, topic, ["6"])
    assert lenient.latestOffset(end, ReadAllAvailable())["#lost"] == {"records": "4"}


def test_a_range_of_a_topic_that_has_grown_since(klamm_broker, klamm_admin):
    """As the join of tables reads a batch again, and the watch of late rows."""
    topic = klamm_broker.topic("grown")
    fill(klamm_broker, topic, ["first", "second"])
    topics = ClusterTopics(compile_text("CREATE STREAM s (n INT);", "p.sql", {"bootstrap": klamm_broker.bootstrap}))
    end = topics.end(topic)
    klamm_admin.create_partitions({topic: 3})
    fill(klamm_broker, topic, ["third"] * 9)
    spark = Mock()
    topics.between(spark, {}, end)
    given = spark.read.format.return_value.options.call_args.kwargs
    reader = BatchReader(given)
    assert texts(rows(reader, reader.partitions())) == ["first", "second"]


def test_records_that_were_lost_are_counted_with_the_position(klamm_broker, klamm_admin, stream):
    topic = klamm_broker.topic("trimmed")
    fill(klamm_broker, topic, map(str, range(10)))
    strict = stream(subscribe=topic, startingOffsets="earliest")
    lenient = stream(subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    start = lenient.initialOffset()
    klamm_admin.delete_records({TopicPartition(topic, 0): 6})
    end = strict.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLoss, match="was read up to 0, but its log start offset is 6"):
        strict.partitions(start, end)
    # A query that failed continues with the batch that it has planned: the count is in that plan.
    assert end["#lost"] == {"records": "6"}
    assert texts(rows(lenient, lenient.partitions(start, end))) == ["6", "7", "8", "9"]
    end = lenient.latestOffset(start, ReadAllAvailable())
    assert end["#lost"] == {"records": "6"}
    assert texts(rows(lenient, lenient.partitions(start, end))) == ["6", "7", "8", "9"]
    # Kept by later batches, and by a reader that does not allow losses any more.
    assert lenient.latestOffset(end, ReadAllAvailable()) == end
    assert strict.latestOffset(end, ReadAllAvailable()) == end
    # Batches that end before the first record that is left count each their part.
    first = lenient.latestOffset(start, ReadMaxRows(4))
    second = lenient.latestOffset(first, ReadMaxRows(4))
    assert [position["#lost"]["records"] for position in (first, second)] == ["4", "6"]


def test_records_lost_after_the_batch_was_planned_are_counted_by_the_next(klamm_broker, klamm_admin, stream):
    topic = klamm_broker.topic("trimmed")
    fill(klamm_broker, topic, map(str, range(4)))
    reader = stream(subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    start = reader.initialOffset()
    first = reader.latestOffset(start, ReadAllAvailable())
    klamm_admin.delete_records({TopicPartition(topic, 0): 3})
    for _ in range(2):  # planned again, it is counted once
        assert texts(rows(reader, reader.partitions(start, first))) == ["3"]
    fill(klamm_broker, topic, map(str, range(4, 8)))
    second = reader.latestOffset(first, ReadAllAvailable())
    assert reader.latestOffset(first, ReadAllAvailable()) == second
    assert second["#lost"] == {"records": "3"}
    klamm_admin.delete_records({TopicPartition(topic, 0): 5})
    assert texts(rows(reader, reader.partitions(first, second))) == ["5", "6", "7"]
    fill(klamm_broker, topic, ["8"])
    third = reader.latestOffset(second, ReadAllAvailable())
    assert third["#lost"] == {"records": "4"}
    assert texts(rows(reader, reader.partitions(second, third))) == ["8"]


def test_a_topic_created_anew_between_batches(klamm_broker, klamm_admin, stream):
    topic = klamm_broker.topic("anew")
    fill(klamm_broker, topic, ["old"] * 5)
    strict = stream(subscribe=topic, startingOffsets="earliest")
    start = strict.latestOffset(strict.initialOffset(), ReadAllAvailable())
    klamm_admin.delete_topics([topic])
    klamm_admin.create_topic(topic, 1)
    fill(klamm_broker, topic, ["new"] * 7)  # its end lies behind the position: only the id tells
    end = strict.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLoss, match="deleted and recreated"):
        strict.partitions(start, end)
    lenient = stream(subscribe=topic, failOnDataLoss="false")
    end = lenient.latestOffset(start, ReadMaxRows(4))
    assert texts(rows(lenient, lenient.partitions(start, end))) == ["new"] * 4


def test_a_topic_that_is_gone(klamm_broker, klamm_admin, klamm_name, stream):
    prefix = klamm_name("gone")
    topics = [klamm_broker.topic(f"{prefix}-{number}") for number in range(2)]
    for topic in topics:
        fill(klamm_broker, topic, [topic])
    strict = stream(subscribe=",".join(topics), startingOffsets="earliest")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    klamm_admin.delete_topics([topics[0]])
    with pytest.raises(KafkaError, match="cannot be read"):
        strict.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLoss, match="was deleted"):
        strict.partitions(start, end)
    lenient = stream(subscribe=",".join(topics), failOnDataLoss="false")
    assert texts(rows(lenient, lenient.partitions(start, end))) == [topics[1]]
    assert list(lenient.latestOffset(start, ReadAllAvailable())) == [topics[1], "#ids", "#start"]


def test_progress_is_shown_to_a_group_and_never_read_back(klamm_broker, klamm_admin, klamm_name, stream):
    topic, group = klamm_broker.topic("progress"), klamm_name("watchers")
    fill(klamm_broker, topic, ["1", "2", "3"])
    reader = stream(subscribe=topic, startingOffsets="earliest", **{"kafka.group.id": group})
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    reader.commit(end)
    where = TopicPartition(topic, 0)
    assert klamm_admin.list_group_offsets(group)[where].offset == 3
    again = stream(subscribe=topic, startingOffsets="earliest", **{"kafka.group.id": group})
    assert again.initialOffset() == start
    again.latestOffset(
        {**end, topic: {"0": 2}}, ReadAllAvailable()
    )  # the last batch of a query is told by the next look
    assert klamm_admin.list_group_offsets(group)[where].offset == 2


def test_progress_that_cannot_be_shown_stops_nothing(klamm_broker, klamm_name, stream):
    topic, group = klamm_broker.topic("busy"), klamm_name("busy")
    fill(klamm_broker, topic, ["1"])
    with Consumer(bootstrap_servers=klamm_broker.bootstrap, group_id=group, auto_offset_reset="earliest") as member:
        member.subscribe([topic])
        while not member.poll(1.0):
            pass
        reader = stream(subscribe=topic, startingOffsets="earliest", **{"kafka.group.id": group})
        reader.commit(reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))


def test_ranges_that_lie_in_a_gap_are_empty(klamm_broker, batch, stream):
    """Offsets without records, as compaction and aborted transactions leave them."""
    topic = klamm_broker.topic("gaps")
    with klamm_broker.producer(transactional_id=topic) as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            for _ in range(5):
                producer.send(topic, str(number).encode())
            producer.flush()
            producer.commit_transaction() if number in (0, 4) else producer.abort_transaction()
    reader = batch(subscribe=topic, maxRecordsPerPartition="3")
    assert texts(rows(reader)) == ["0"] * 5 + ["4"] * 5
    follower = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="4")
    at, seen = follower.initialOffset(), []
    while True:
        upto = follower.latestOffset(at, follower.getDefaultReadLimit())
        if upto == at:
            break
        seen += texts(rows(follower, follower.partitions(at, upto)))
        at = upto
    assert seen == ["0"] * 5 + ["4"] * 5
