"""Records that were deleted before a query read them: the query stops with both ways on, or counts them."""

import json

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


def test_deleted_records_stop_a_query_or_are_counted(spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path):
    names = {name: klamm_name(name) for name in ("numbers", "copies")}
    klamm_admin.create_topic(names["numbers"], 1)
    settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": str(tmp_path / "home"), "partitions": "1"}

    def send(*numbers):
        with klamm_broker.producer() as producer:
            for number in numbers:
                producer.send(names["numbers"], json.dumps({"n": number}).encode())

    def run(more="", **options):
        pipeline = compile_text(TEXT.format(more=more, **names), "loss.sql", settings)
        patiently(run_pipeline, pipeline, once=True, spark=spark, **options)
        return home_of(pipeline).status()["queries"]["copies"]

    def copies():
        rows = klamm.read_topic(names["copies"], bootstrap=klamm_broker.bootstrap, timeout_s=60).to_pylist()
        return [json.loads(row["value"])["n"] for row in rows]

    send(0, 1, 2)
    # Another session of the caller, which has no format("klamm"), is the active one from here on.
    spark.newSession().createDataFrame([(1,)], "n int")
    assert run()["lost_records"] == 0
    send(3, 4, 5, 6)
    klamm_admin.delete_records({TopicPartition(names["numbers"], 0): 5})
    lines = []
    with pytest.raises(ConfigError) as refusal:
        run(report=lines.append)
    loss = f"{names['numbers']}-0 was read up to 3, but its log start offset is 5"
    assert str(refusal.value) == f"copies failed: numbers: {loss}"
    (advice,) = (line for line in lines if line.startswith("copies: to go on:"))
    assert "on_data_loss = 'continue' of numbers (or SET)" in advice
    assert "--rebuild copies" in advice
    assert copies() == [0, 1, 2]
    assert run(", on_data_loss = 'continue'")["lost_records"] == 2
    assert copies() == [0, 1, 2, 5, 6]
    # The count is part of the position: it stays after a restart, and losses are not counted twice.
    send(7)
    assert run(", on_data_loss = 'continue'")["lost_records"] == 2
    assert copies() == [0, 1, 2, 5, 6, 7]
