"""Numbers of queries, computed without Spark: batches counted once, none missed, bad records by policy, lags."""

import pytest

from klamm.client.types import Record
from klamm.model.ids import TopicPartition
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.core.query_progress import read_offsets, summarize_progress
from klamm.pipeline.sql.core.query_totals import QueryTotals
from klamm.pipeline.sql.status import committed_offsets, error_line, error_summary
from klamm.pipeline.sql.topic_lag import Lag, LagWatch, measure_lag, unread_records
from klamm.pipeline.sql.topics import ClusterTopics


def progress(batch, rows, second, *, idle=False, **more):
    durations = {"triggerExecution": 100} if idle else {"triggerExecution": 100, "addBatch": 50}
    stamp = f"2026-01-01T00:00:{second:02d}.000Z"
    return {"batchId": batch, "numInputRows": rows, "timestamp": stamp, "durationMs": durations, **more}


def test_every_batch_is_counted_once_and_idle_looks_are_none():
    tally = QueryTotals()
    reports = [
        progress(0, 5, 0),
        progress(1, 0, 10, idle=True),  # nothing to do yet: Spark names the batch that comes next
        progress(1, 0, 20, idle=True),
        progress(1, 7, 21),
        progress(2, 1, 22),
        progress(3, 2, 23),
        progress(4, 3, 24),
    ]
    batches = [
        [batch["batch"] for batch in tally.take(reports[seen], lambda seen=seen: reports[: seen + 1], 1)]
        for seen in (0, 0, 1, 2, 3, 3, 6, 6)
    ]
    assert batches == [[0], [], [], [], [1], [], [2, 3, 4], []]
    status = tally.status()
    assert (status["rows_total"], status["batches_total"], status["batch_ms_total"]) == (18, 5, 500)
    assert (status["batch"], status["rows"], tally.done_batch) == (4, 3, 4)


def test_a_look_before_the_first_batch_tells_nothing():
    tally = QueryTotals()
    assert tally.take(None, list, 1) == []
    assert tally.status()["rows_total"] == 0


def test_bad_records_are_added_up_by_policy():
    tally = QueryTotals()
    for batch in range(3):
        observed = {
            "bad.drop.s": {"records": 2},
            "bad.drop.t": {"records": 1},
            "bad.dead_letter.s": {"records": 4},
            "x": {},
        }
        (batch_summary,) = tally.take(progress(batch, 9, batch, observedMetrics=observed), list, 1)
        assert batch_summary["bad_records"] == 7
    assert tally.status()["bad_records"] == {"drop": 9, "dead_letter": 12}


def source(end, latest):
    return {"endOffset": end, "latestOffset": latest}


def test_lag_and_watermark():
    times = {"max": "2026-01-01T00:00:10.000Z", "watermark": "2026-01-01T00:00:05.000Z"}
    now_ms = 1767225615000
    sources = [source('{"t": {"0": 5, "1": 7}}', '{"t": {"0": 9, "1": 7}}')]
    summary = summarize_progress(progress(1, 2, 0, eventTime=times, sources=sources), now_ms)
    assert (summary["lag_records"], summary["lag_ms"], summary["watermark_ms"]) == (4, 5000, now_ms - 10000)
    sources = [source('{"t": {"0": 9}}', '{"t": {"0": 9}}')]
    summary = summarize_progress(progress(1, 2, 0, eventTime=times, sources=sources), now_ms)
    assert (summary["lag_records"], summary["lag_ms"]) == (0, 0)
    summary = summarize_progress(progress(1, 2, 0, eventTime={"watermark": "1970-01-01T00:00:00.000Z"}), now_ms)
    assert (summary["lag_records"], summary["lag_ms"], summary["watermark"], summary["watermark_ms"]) == (
        None,
        None,
        None,
        None,
    )


def test_positions_are_the_smaller_offsets_of_what_is_read_twice():
    sources = [source({"t": {"0": 5}, "id": "x"}, {}), source('{"t": {"0": 3, "1": 1}}', {}), source("odd", {})]
    assert read_offsets({"sources": sources}) == {("t", 0): 3, ("t", 1): 1}


class Cluster:
    """Topics whose records are a millisecond apart."""

    def __init__(self, ends):
        self.ends = {TopicPartition("t", part): end for part, end in enumerate(ends)}
        self.at = {}
        self.closed = False

    def end_offsets(self, places):
        return {place: self.ends[place] for place in places}

    def assign(self, places):
        self.at = dict.fromkeys(places, 0)

    def seek(self, place, offset):
        self.at[place] = offset

    def poll(self, timeout_s, limit):
        for place, offset in self.at.items():
            if offset < self.ends[place]:
                return [Record("t", place.partition, offset, 1000 + offset, None, b"")]
        return []

    def close(self):
        self.closed = True


def test_a_lag_is_the_age_of_the_oldest_unread_record():
    cluster = Cluster([10, 20, 30])
    queries = {
        "behind": {("t", 0): 10, ("t", 1): 15, ("t", 2): 4},
        "done": {("t", 0): 10, ("t", 1): 20},
        "new": {},
        "ahead": {("t", 0): 99},
    }
    lags = measure_lag(cluster, queries, 2000)
    first, second, third = (TopicPartition("t", part) for part in range(3))
    assert lags == {
        "behind": Lag(31, 996, {third: 26, second: 5, first: 0}, {third: 996, second: 985}),
        "done": Lag(0, 0, {first: 0, second: 0}),
        "ahead": Lag(0, 0, {first: 0}),
    }
    assert cluster.at == {}
    assert list(unread_records(queries["behind"], cluster.ends)) == [third, second, first]
    assert unread_records(queries["behind"], {second: 16}) == {second: 1}
    assert measure_lag(cluster, {"new": {}}, 2000) == {}


@pytest.mark.filterwarnings("error")
def test_a_cluster_that_is_away_is_asked_again():
    answers = [OSError("away"), Cluster([3])]
    cluster = answers[1]

    def connect():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with LagWatch(connect, lambda: {"q": {("t", 0): 1}}, every_s=0.001) as watch:
        while not watch.lags and watch._thread.is_alive():
            watch._thread.join(0.001)
    assert watch.lags["q"].records == 2
    assert cluster.closed


def test_where_a_query_was_is_read_from_its_checkpoint(tmp_path):
    assert committed_offsets(str(tmp_path)) == {}
    for folder in ("commits", "offsets"):
        (tmp_path / folder).mkdir()
    begun, committed = 12, 11  # the last batch was planned, and not done
    for batch in range(begun):
        text = f'v1\n{{"batchWatermarkMs":0}}\n{{"t":{{"0":{batch}}},"id":"x"}}\n{{"u":{{"1":7}}}}'
        (tmp_path / "offsets" / str(batch)).write_text(text)
        (tmp_path / "offsets" / f".{batch}.crc").touch()
        if batch < committed:
            (tmp_path / "commits" / str(batch)).touch()
    assert committed_offsets(str(tmp_path)) == {("t", 0): committed - 1, ("u", 1): 7}
    (tmp_path / "offsets" / str(committed - 1)).unlink()
    assert committed_offsets(str(tmp_path)) == {}


FAILED = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "worker.py", line 1, in main
    work()
ModuleNotFoundError: No module named 'far'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
UnboundLocalError: reader
 SQLSTATE: 38000"""


def test_one_line_tells_what_went_wrong():
    assert error_line(FAILED) == "ModuleNotFoundError: No module named 'far'"
    assert error_line("first\nsecond") == "first"
    assert error_line("") == ""
    assert error_summary("words\n\tat org.apache.spark\n\tat more") == "words"


def test_the_lag_of_a_topic(klamm_broker):
    topic = klamm_broker.topic("lag", partitions=2)
    with klamm_broker.producer() as producer:
        for number in range(10):
            producer.send(topic, b"", partition=number % 2, timestamp=1_700_000_000_000 + number)
    text = f"CREATE STREAM s (a INT) WITH (topic = '{topic}');"
    pipeline = compile_text(text, "p.sql", {"bootstrap": klamm_broker.bootstrap})
    cluster = ClusterTopics(pipeline, {"group.id": "not used"}).watcher()
    try:
        queries = {
            "half": {(topic, 0): 2, (topic, 1): 3},
            "all": {(topic, 0): 5, (topic, 1): 5},
            "none": {(topic, 0): 0},
        }
        lags = measure_lag(cluster, queries, 1_700_000_001_000)
        first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        assert lags == {
            "half": Lag(5, 996, {first: 3, second: 2}, {first: 996, second: 993}),
            "all": Lag(0, 0, {first: 0, second: 0}),
            "none": Lag(5, 1000, {first: 5}, {first: 1000}),
        }
        assert measure_lag(cluster, queries, 1_700_000_001_000) == lags
    finally:
        cluster.close()
