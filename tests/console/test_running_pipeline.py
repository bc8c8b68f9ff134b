"""The pipeline pages over `klamm pipeline run` with real Spark: graph, rate, lag, pause, restart, redrive, stop."""

import os
import re
import subprocess
import sys
import time

import pytest

from klamm.client import TopicPartition

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

WAIT_S = 400
BASE = "/c/test/pipelines/shop"
TEXT = """
SET name = 'shop';
CREATE STREAM numbers (n INT) WITH (topic = 'numbers', partitions = 1);
CREATE STREAM copies WITH (topic = 'copies', partitions = 1) AS SELECT n FROM numbers;
CREATE TABLE sums WITH (topic = 'sums', key = 'k', partitions = 1) AS SELECT n % 2 AS k, sum(n) AS total FROM numbers
  GROUP BY n % 2;
"""


class Writer:
    """Writes numbers, one after the other."""

    def __init__(self, producer):
        self._producer = producer
        self.count = 0

    def write(self, count):
        for _ in range(count):
            self._producer.send("numbers", b'{"n": %d}' % self.count)
            self.count += 1
        self._producer.flush()


@pytest.fixture
def writer(broker):
    with broker.admin() as admin, broker.producer() as producer:
        admin.create_topic("numbers", num_partitions=1)
        yield Writer(producer)


@pytest.fixture
def run(broker, writer, tmp_path, monkeypatch):
    """The process of the pipeline, which has read some records."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "shop.sql").write_text(TEXT)
    writer.write(20)
    command = [sys.executable, "-m", "klamm", "pipeline", "run", "shop.sql", "--no-progress", "-b", broker.bootstrap]
    log = (tmp_path / "run.log").open("w")
    with log, subprocess.Popen(command, cwd=tmp_path, env=dict(os.environ), stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def wait_for(visit, condition, what, path=BASE):
    """Return the page when it shows a state."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        response = visit.client.get(path)
        if response.status_code == 200 and condition(response.text):
            return response.text
        assert time.monotonic() < deadline_s, f"{what}:\n{response.text}"
        time.sleep(0.5)


def query_row(html, query):
    """The cells of a query by their labels."""
    row = re.search(rf'<tr><th scope="row">{query}.*?</tr>', html, re.DOTALL)
    cells = re.findall(r'data-label="([^"]+)">(.*?)</td>', row[0] if row else "", re.DOTALL)
    return {label: re.sub(r"<[^>]+>", "", text).strip() for label, text in cells}


def has_state(query, state):
    def check(html):
        return query_row(html, query).get("State") == state

    return check


def end_of(broker, topic):
    with broker.consumer(enable_auto_commit=False) as consumer:
        return consumer.end_offsets([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]


def wait_for_copies(broker, count):
    """Wait until so many records are in the output; each batch ends with a marker of its transaction."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        with broker.consumer(isolation_level="read_committed", enable_auto_commit=False) as consumer:
            consumer.assign([TopicPartition("copies", 0)])
            consumer.seek_to_beginning()
            end, values = end_of(broker, "copies"), 0
            while consumer.position(TopicPartition("copies", 0)) < end:
                values += len(list(consumer.poll(1.0)))
        if values >= count:
            assert values == count
            return
        assert time.monotonic() < deadline_s
        time.sleep(0.5)


def test_a_running_pipeline_is_seen_paused_restarted_redriven_and_stopped(broker, console, visit, writer, run):
    console.collect()
    html = wait_for(visit, has_state("copies", "running"), "copies runs")
    assert "shop" in visit.get("/c/test/pipelines")
    # The graph: both queries read the stream, and each statement leads to its topic.
    assert html.count('class="edge"') == 2
    for topic in ("numbers", "copies", "sums"):
        assert f'href="/c/test/topics/{topic}"' in html
    wait_for_copies(broker, 20)

    # The rate, while records come.
    def has_rate(page):
        writer.write(50)
        return re.search("[1-9]", query_row(page, "copies").get("Rows/s", ""))

    wait_for(visit, has_rate, "a rate")

    # A paused query falls behind; the other goes on.
    assert "Paused copies of shop." in visit.post(BASE, BASE, action="pause", query="copies")
    html = wait_for(visit, has_state("copies", "paused"), "copies is paused")
    assert query_row(html, "sums")["State"] == "running"
    writer.write(100)

    def has_lag(page):
        return int(re.sub(r"\D", "", query_row(page, "copies").get("Lag", "")) or 0) >= 100

    wait_for(visit, has_lag, "a lag of 100 records")
    visit.post(BASE, BASE, action="resume", query="copies")
    wait_for_copies(broker, writer.count)
    wait_for(visit, lambda page: query_row(page, "copies").get("Lag") == "0", "no lag")

    # A restart goes on where it was.
    assert "Restarted shop." in visit.post(BASE, BASE, action="restart")
    writer.write(10)
    wait_for_copies(broker, writer.count)
    wait_for(visit, has_state("copies", "running"), "copies runs again")

    # A record that cannot be read is a dead letter; sent again, it becomes another one.
    with broker.producer() as producer:
        producer.send("numbers", b"no JSON").result()
    letters = f"{BASE}/dead-letters/numbers"

    def has_letters(count):
        def check(page):
            # The topic is made with the first letter: a sample has to show it.
            console.collect()
            return page.count("no JSON") >= count

        return check

    wait_for(visit, has_letters(1), "the dead letter", letters)
    before = visit.get(letters).count("no JSON")
    sent = re.search(r"They were (\d+) record", page := visit.post(letters, letters))
    assert sent, re.findall(r'class="notice.*?</div>', page, re.DOTALL)
    # A letter of each query that has read the record by then.
    assert int(sent[1]) in (1, 2)
    wait_for(visit, has_letters(before + 1), "the letter that was sent again", letters)
    wait_for_copies(broker, writer.count)

    assert "stops after its batches" in visit.post(BASE, BASE, action="stop")
    assert run.wait(WAIT_S) == 0
    wait_for(visit, lambda page: "Pause all" not in page, "it has stopped")
