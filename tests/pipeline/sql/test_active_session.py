"""Sessions of a pipeline beside those of its caller: each is active in the caller's thread only while it is used."""

import pytest

import klamm
from klamm.pipeline.core.connector_options import EARLIEST, LATEST, ReadBound
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.backfill import plan_backfill, run_backfill
from klamm.pipeline.sql.spark_jvm import active_session
from klamm.pipeline.testing import run

pytestmark = pytest.mark.timeout(600)
TEXT = """
CREATE STREAM numbers (n INT) WITH (topic = '{numbers}');
CREATE STREAM copies WITH (topic = '{copies}') AS SELECT n FROM numbers;
"""


def test_a_plain_query_after_a_pipeline_in_the_same_thread(spark, patiently, klamm_broker, tmp_path):
    out = run(TEXT.format(numbers="numbers", copies="copies"), {"numbers": [{"n": 1}]}, spark=spark)
    out.expect("copies", [{"n": 1}])

    # The pipeline ran in a session without format("klamm"); Spark looks it up in the active one.
    source, target = klamm_broker.topic("source"), klamm_broker.topic("target")
    servers = {"kafka.bootstrap.servers": klamm_broker.bootstrap}
    with klamm_broker.producer() as producer:
        producer.send(source, b"1")

    def copy():
        frame = spark.readStream.format("klamm").options(**servers, subscribe=source, startingOffsets="earliest").load()
        writer = frame.select("value").writeStream.format("klamm").options(**servers, topic=target)
        writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()

    patiently(copy)
    assert klamm.read_topic(target, bootstrap=klamm_broker.bootstrap, timeout_s=60)["value"].to_pylist() == [b"1"]


def test_a_backfill_while_another_session_is_active(spark, klamm_broker, tmp_path):
    names = {name: klamm_broker.topic(name) for name in ("numbers", "copies")}
    with klamm_broker.producer() as producer:
        producer.send(names["numbers"], b'{"n": 1}')
    settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": str(tmp_path / "home")}
    pipeline = compile_text(TEXT.format(**names), "fill.sql", settings)
    job = plan_backfill(pipeline, "copies", ReadBound(everywhere=EARLIEST), ReadBound(everywhere=LATEST))
    with active_session(spark.newSession()):
        assert run_backfill(pipeline, job, spark=spark)
    rows = klamm.read_topic(names["copies"], bootstrap=klamm_broker.bootstrap, timeout_s=60)
    assert rows["value"].to_pylist() == [b'{"n":1}']
