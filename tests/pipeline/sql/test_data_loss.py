"""Records that were deleted before a query read them: the query stops with both ways on, or counts them.

A topic that was deleted and created again has lost records, too; and a query that has failed leaves the others running.
"""

import json
import threading

import pytest

import klamm
from klamm.model.errors import ConfigError
from klamm.model.ids import TopicPartition
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.runner import run_pipeline
from klamm.pipeline.sql.state_folders import home_of

pytestmark = pytest.mark.timeout(600)
TEXT = """
CREATE STREAM numbers (n INT) WITH (topic = '{numbers}', bad_records = 'drop'{more});
CREATE STREAM copies WITH (topic = '{copies}') AS SELECT n FROM numbers;
"""


class Loss:
    """A stream that is copied, and its topic."""

    def __init__(self, spark, patiently, broker, admin, name, folder):
        self._spark, self._patiently, self._broker, self._admin = spark, patiently, broker, admin
        self.names = {name_: name(name_) for name_ in ("numbers", "copies")}
        self.settings = {"bootstrap": broker.bootstrap, "checkpoint": str(folder / "home"), "partitions": "1"}
        admin.create_topic(self.names["numbers"], 1)

    def send(self, *numbers):
        with self._broker.producer() as producer:
            for number in numbers:
                producer.send(self.names["numbers"], json.dumps({"n": number}).encode())

    def recreate(self):
        self._admin.delete_topics([self.names["numbers"]])
        self._admin.create_topic(self.names["numbers"], 1)

    def run(self, more="", **options):
        pipeline = compile_text(TEXT.format(more=more, **self.names), "loss.sql", self.settings)
        self._patiently(run_pipeline, pipeline, once=True, spark=self._spark, **options)
        return self.copies()

    def lost(self):
        pipeline = compile_text(TEXT.format(more="", **self.names), "loss.sql", self.settings)
        return home_of(pipeline).status()["queries"]["copies"]["lost_records"]

    def copies(self):
        rows = klamm.read_topic(self.names["copies"], bootstrap=self._broker.bootstrap, timeout_s=60).to_pylist()
        return [json.loads(row["value"])["n"] for row in rows]


def test_deleted_records_stop_a_query_or_are_counted(spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path):
    loss = Loss(spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path)
    loss.send(0, 1, 2)
    # Another session of the caller, which has no format("klamm"), is the active one from here on.
    spark.newSession().createDataFrame([(1,)], "n int")
    loss.run()
    assert loss.lost() == 0
    loss.send(3, 4, 5, 6)
    topic = loss.names["numbers"]
    klamm_admin.delete_records({TopicPartition(topic, 0): 5})
    lines = []
    with pytest.raises(ConfigError) as refusal:
        loss.run(report=lines.append)
    assert str(refusal.value) == f"copies failed: numbers: {topic}-0 was read up to 3, but its log start offset is 5"
    (advice,) = (line for line in lines if line.startswith("copies: to go on:"))
    assert "on_data_loss = 'continue' of numbers (or SET)" in advice
    assert "--rebuild copies" in advice
    assert loss.copies() == [0, 1, 2]
    assert loss.run(", on_data_loss = 'continue'") == [0, 1, 2, 5, 6]
    assert loss.lost() == 2
    # The count is part of the position: it stays after a restart, and losses are not counted twice.
    loss.send(7)
    assert loss.run(", on_data_loss = 'continue'") == [0, 1, 2, 5, 6, 7]
    assert loss.lost() == 2


def test_a_topic_that_was_created_again_stops_a_query_or_is_read_from_its_beginning(
    spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path
):
    loss = Loss(spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path)
    loss.send(0, 1, 2)
    assert loss.run() == [0, 1, 2]
    loss.recreate()
    loss.send(10, 11, 12, 13)  # more than before: by offsets alone it would continue with 13
    lines = []
    with pytest.raises(ConfigError, match="was deleted and recreated; its earlier records are lost"):
        loss.run(report=lines.append)
    (advice,) = (line for line in lines if line.startswith("copies: to go on:"))
    assert "on_data_loss = 'continue' of numbers (or SET)" in advice
    assert loss.copies() == [0, 1, 2]
    assert loss.run(", on_data_loss = 'continue'") == [0, 1, 2, 10, 11, 12, 13]
    loss.send(14)
    assert loss.run() == [0, 1, 2, 10, 11, 12, 13, 14]


UNLUCKY = """
CREATE STREAM fussy WITH (topic = '{fussy}') AS
  SELECT IF(n = 13, raise_error('unlucky number'), n) AS n FROM numbers;
"""


def test_a_failed_query_leaves_the_others_running(spark, klamm_broker, klamm_admin, klamm_name, tmp_path):
    loss = Loss(spark, None, klamm_broker, klamm_admin, klamm_name, tmp_path)
    text = (TEXT + UNLUCKY).format(more="", fussy=klamm_name("fussy"), **loss.names)
    pipeline = compile_text(text, "loss.sql", {**loss.settings, "restarts": "1"})
    home, failures = home_of(pipeline), []

    def run():
        try:
            run_pipeline(pipeline, spark=spark)
        except ConfigError as error:
            failures.append(str(error))

    def wait_for(reached):
        while not reached(home.status()["queries"]):
            thread.join(0.1)
            assert thread.is_alive(), failures

    loss.send(1, 13)
    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda queries: queries.get("fussy", {}).get("state") == "failed")
    loss.send(2, 3)
    wait_for(lambda queries: queries["copies"].get("rows_total", 0) >= 4)
    status = home.status()["queries"]
    assert status["copies"]["state"] == "running"
    assert "unlucky number" in status["fussy"]["error"]
    home.request_stop()
    thread.join(120)
    assert not thread.is_alive()
    assert [failure.partition(":")[0] for failure in failures] == ["fussy failed"]
    assert loss.copies() == [1, 13, 2, 3]
