"""Where queries begin that have no batches yet: the same place at every start, whatever came meanwhile."""

import itertools
import shutil

import pytest

import klamm
from klamm.pipeline.sql import SqlError, compile_text
from klamm.pipeline.sql.runner import run_pipeline

pytestmark = pytest.mark.timeout(600)
FIRST_MS = 1_767_225_600_000
TEXT = """
CREATE STREAM early (n INT) WITH (topic = '{numbers}', bad_records = 'drop');
CREATE STREAM late (n INT) WITH (topic = '{numbers}', starting = 'latest');
CREATE STREAM timed (n INT) WITH (topic = '{numbers}', starting = '2026-01-01T00:00:03Z', bad_records = 'drop');
CREATE STREAM early_copy WITH (topic = '{early}') AS SELECT n FROM early;
CREATE STREAM late_copy WITH (topic = '{late}') AS SELECT n FROM late;
CREATE STREAM timed_copy WITH (topic = '{timed}') AS SELECT n FROM timed;
"""


class Site:
    """A topic of numbers, and a pipeline that reads it from three places."""

    def __init__(self, spark, patiently, broker, name, folder):
        self.spark, self.patiently, self.broker = spark, patiently, broker
        self.folder = folder / "home"
        self.topics = {topic: name(topic) for topic in ("numbers", "early", "late", "timed", "letters")}
        settings = {"bootstrap": broker.bootstrap, "checkpoint": str(self.folder), "partitions": "1"}
        settings["dead_letter_topic"] = self.topics["letters"]
        self.pipeline = compile_text(TEXT.format(**self.topics), "starts.sql", settings)

    def send(self, *values):
        with self.broker.producer() as producer:
            for value in values:
                time_ms = FIRST_MS + 1000 * value if isinstance(value, int) else FIRST_MS
                producer.send(self.topics["numbers"], b'{"n": %s}' % str(value).encode(), timestamp=time_ms)

    def run(self, **options):
        self.patiently(run_pipeline, self.pipeline, once=True, spark=self.spark, **options)

    def rows(self, topic):
        table = klamm.read_topic(self.topics[topic], bootstrap=self.broker.bootstrap, timeout_s=60)
        return sorted(int(row.strip(b'{"n": }')) for row in table["value"].to_pylist())

    def letters(self):
        table = klamm.read_topic(self.topics["letters"], bootstrap=self.broker.bootstrap, timeout_s=60)
        return table["value"].to_pylist()


@pytest.mark.long
def test_a_query_without_batches_begins_where_its_first_start_was(
    spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path
):
    """`latest` was looked up at every start: what came between two starts was skipped."""
    site = Site(spark, patiently, klamm_broker, klamm_name, tmp_path)
    klamm_admin.create_topic(site.topics["numbers"], 1, configs={"retention.ms": "-1"})
    site.send(0, 1, 2, 3, 4, "old")
    site.run()
    assert (site.rows("early"), site.rows("late"), site.rows("timed")) == ([0, 1, 2, 3, 4], [], [3, 4])
    # As if the first run was killed before a batch was planned.
    for query, log in itertools.product(("late_copy.0", "late.dead_letters.0"), ("offsets", "commits", "metadata")):
        path = site.folder / query / log
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    site.send(5, 6, "bad")
    klamm_admin.create_partitions({site.topics["numbers"]: 2})
    site.run()
    assert (site.rows("late"), site.letters()) == ([5, 6], [b'{"n": bad}'])
    # The first batches are planned and written, and their commits are lost.
    for query in ("early_copy", "late_copy", "timed_copy"):
        for path in (site.folder / f"{query}.0" / "commits").iterdir():
            path.unlink()
    site.send(7)
    site.run()
    assert site.rows("early") == [0, 1, 2, 3, 4, 5, 6, 7]
    assert site.rows("late") == [5, 6, 7]
    assert site.rows("timed") == [3, 4, 5, 6, 7]
    # A rebuild reads what the generation before it has read.
    site.run(rebuild=["late_copy"])
    assert site.rows("late") == [5, 5, 6, 6, 7, 7]


@pytest.mark.parametrize("starting", ["tomorrow", "1969-12-31T23:59:59Z", "5"])
def test_what_is_no_start_is_refused(starting):
    text = "CREATE STREAM s (n INT) WITH (starting = '{}'); CREATE STREAM t AS SELECT n FROM s;"
    with pytest.raises(SqlError, match="write earliest, latest, a time such as"):
        compile_text(text.format(starting))
    compile_text(text.format("2026-05-01"))
